"""NAS and HPO studies whose trials are malleable jobs."""
