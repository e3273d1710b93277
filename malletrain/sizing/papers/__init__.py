"""Policies of papers and baselines: plug-ins, which nothing else here imports."""
