"""Process groups and the commit protocol that runs over them.

`group` defines the contract of a process group; `gloo_group`, `mpi_group`, `device_group` and `node_group` implement
it, and `carrier` chooses. `step_commit` turns all-reduces into rounds that every member commits or repeats.
`peer_store`, `addresses`, `local_rank` and `static_rendezvous` are how processes find each other, `authentication`
how they know each other.
"""
