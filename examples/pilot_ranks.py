"""Who shares this pilot: ranks by MPI where there is one (mtbatch --mpi=pmi2 or pmix), else by Slurm's environment.

Where the site lets one pilot hold several nodes, one process runs on each. Here they share out a folder of files that
each node is to keep at hand. Alone: `python examples/pilot_ranks.py`.
"""

from __future__ import annotations

import argparse
import os


def ranks(by: str) -> tuple[int, int]:
    """(rank, size) of this process among those of its pilot."""
    if by == "mpi":
        from mpi4py import MPI  # pip install 'malletrain[mpi]', and MPI's library

        # MPI says so itself: every process adds one.
        return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.allreduce(1)
    return int(os.environ.get("SLURM_NODEID", "0")), int(os.environ.get("SLURM_NNODES", "1"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--by", choices=("mpi", "slurm"), default="slurm")
    parser.add_argument("--files", type=int, default=12)
    options = parser.parse_args()
    rank, size = ranks(options.by)
    mine = [f"shard-{number:03}" for number in range(rank, options.files, size)]
    print(f"rank {rank} of {size} by {options.by}: {' '.join(mine)}", flush=True)


if __name__ == "__main__":
    main()
