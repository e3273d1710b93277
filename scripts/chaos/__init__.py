"""Faults on a real Slurm: daemon, workers, Slurm's own daemons and nodes fail while jobs train and a main queue runs.

`python -m scripts.chaos` says what was broken and what came of it; docs/reliability.md has the laws.
"""
