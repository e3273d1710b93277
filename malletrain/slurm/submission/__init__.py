"""From a script and options to a held array in Slurm: what `mtbatch` submits."""
