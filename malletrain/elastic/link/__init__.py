"""The worker's link to the daemon and to the processes of its node, and what it reports."""
