"""How a site's Slurm is configured, and what is wrong with it for harvesting."""
