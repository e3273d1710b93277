"""Slurm as seen through its commands."""
