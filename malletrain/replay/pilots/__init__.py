"""What the daemon's rules make of pilots: their holes, tasks of several nodes, and turns of jobs that wait."""
