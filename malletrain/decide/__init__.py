"""What to do now: a pure function of snapshot, ledger and time."""
