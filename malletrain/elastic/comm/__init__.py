"""Process groups and what is agreed over them: gloo, MPI, groups of nodes, the step's commit."""
