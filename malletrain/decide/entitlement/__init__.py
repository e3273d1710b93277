"""What a job may have, and what it is owed: budgets, limits, deadlines, an end to waiting."""
