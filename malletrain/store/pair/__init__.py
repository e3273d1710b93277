"""What a pair of daemons keeps: the fence in each journal, the register of who is active, the passive one's copy."""
