"""Connections outside the process group: to the daemon, and to the other processes of the node."""
