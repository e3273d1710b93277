"""Values: what the cluster showed, jobs, decisions, events. Standard library only."""
