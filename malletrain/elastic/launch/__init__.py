"""What a pilot runs: the launcher, restart mode, and the start of a worker."""
