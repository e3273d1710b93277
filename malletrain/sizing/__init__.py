"""How many nodes each job gets: problems, constraints, policies. Pure."""
