"""Workers' reports in, plans out: state, machine, and the rule for the next world."""
