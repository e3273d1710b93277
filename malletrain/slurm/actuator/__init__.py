"""The process that holds Slurm's rights, its protocol, and its client."""
