"""A step is tried whole and in two parts, in forked processes: whatever a script does in it, the two must agree."""
