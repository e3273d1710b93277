"""What a replay gives to policies that need more than curves: budgets, batches, classes of nodes."""
