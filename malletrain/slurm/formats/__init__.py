"""What Slurm prints, turned into values. Pure."""
