"""Values: what the cluster showed, jobs, decisions, events. Standard library only, no behaviour beyond their own laws."""
