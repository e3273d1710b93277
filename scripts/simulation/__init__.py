"""The daemon, its workers, Slurm and the network in one process and one thread: one seed, one history.

The loop, its decisions, the ledger and the membership are the daemon's own. Slurm is `loop.memory.MemoryCluster`,
which passes the contract tests of the live one. Workers are state machines that follow the protocol of
`malletrain.elastic`. `python -m scripts.simulation` searches for histories that break a law; docs/reliability.md says
which laws.
"""
