"""Ranks inside a pilot of several nodes, from MPI (mtbatch --mpi=pmi2 or pmix) or from Slurm's environment.

Where the site allows pilots with several nodes, one process runs on each. Here they divide a list of files, so that
each node caches its part. Run it without a cluster: `python examples/pilot_ranks.py`.
"""

from __future__ import annotations

import argparse
import os


def ranks(by: str) -> tuple[int, int]:
    """Rank of this process in its pilot, and number of processes."""
    if by == "mpi":
        from mpi4py import MPI  # pip install './malletrain-0.2.0-py3-none-any.whl[mpi]'; needs MPI's library

        # Count the processes over MPI, which shows that it works.
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
