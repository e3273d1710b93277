"""Where this process stands among those of its node.

A node is one member of the world, with one or more processes (one for each GPU, say). The script starts them with
torchrun or srun; they all run the same code, and the first of them speaks with the daemon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from malletrain.elastic.errors import ElasticError


@dataclass(frozen=True, slots=True)
class LocalRank:
    """The `rank` of a process among the `size` ones of its node."""

    rank: int = 0
    size: int = 1

    @property
    def is_leader(self) -> bool:
        """Whether this is the process that speaks for its node."""
        return self.rank == 0


def find_local_rank(environ: Mapping[str, str]) -> LocalRank:
    """As torchrun says (LOCAL_RANK, LOCAL_WORLD_SIZE), or srun of a step with several tasks (SLURM_LOCALID,
    SLURM_STEP_NUM_TASKS); else the process is alone on its node.

    Raises:
        ElasticError: it was started with processes on other nodes, which a pilot does not have.
    """
    for rank, size, all_of_them in (
        ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"),
        ("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS"),
    ):
        said = [environ.get(name, "") for name in (rank, size)]
        if all(each.isdecimal() for each in said) and int(said[0]) < int(said[1]):
            if said[1] != "1" and environ.get(all_of_them, said[1]) != said[1]:
                raise ElasticError(
                    f"{size} is {said[1]} and {all_of_them} is {environ[all_of_them]}: start the processes of this "
                    "node alone (torchrun --standalone --nproc-per-node=N); the session finds the other nodes"
                )
            return LocalRank(int(said[0]), int(said[1]))
    return LocalRank()
