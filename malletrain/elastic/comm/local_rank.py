"""The local rank of this process: its place among the processes of its node.

A node is one member of the world and runs one or more processes, one a GPU for example, started by torchrun or srun.
All of them run the same code; local rank 0 communicates with the daemon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from malletrain.elastic.errors import ElasticError


@dataclass(frozen=True, slots=True)
class LocalRank:
    """Torchrun's LOCAL_RANK (`rank`) and LOCAL_WORLD_SIZE (`size`)."""

    rank: int = 0
    size: int = 1

    @property
    def is_leader(self) -> bool:
        return self.rank == 0


def find_local_rank(environ: Mapping[str, str]) -> LocalRank:
    """By torchrun's variables, else srun's; without either, the process is alone on its node. Raises `ElasticError`:
    the launcher started processes on other nodes too; each pilot starts those of its node only."""
    for rank, size, world_size in (
        ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"),
        ("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS"),
    ):
        values = [environ.get(name, "") for name in (rank, size)]
        if all(each.isdecimal() for each in values) and int(values[0]) < int(values[1]):
            if values[1] != "1" and environ.get(world_size, values[1]) != values[1]:
                raise ElasticError(
                    f"{size} is {values[1]} and {world_size} is {environ[world_size]}: start the processes of this "
                    "node alone (torchrun --standalone --nproc-per-node=N); the session finds the other nodes"
                )
            return LocalRank(int(values[0]), int(values[1]))
    return LocalRank()
