"""Lists of thousands of nodes or tasks: the kernel starts no command with an argument of 128 KiB (MAX_ARG_STRLEN)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from malletrain.slurm.command import CommandResult, Commands
from malletrain.slurm.formats import hostlist
from malletrain.slurm.queries import Queries

MAX_ARGUMENT_BYTES = 128 * 1024
FOLDED = [f"node{number:05}" for number in range(6500)]
#: Slurm folds no names that do not end in a number.
UNFOLDED = [f"node{number:05}.cluster.example.org" for number in range(6500)]


class Limited(Commands):
    """scontrol that knows all nodes but `missing`, and the others without a row."""

    def __init__(self, missing: Sequence[str] = ()) -> None:
        super().__init__({})
        self.missing = set(missing)
        self.asked: list[Sequence[str]] = []

    def run(self, argv: Sequence[str], timeout_s: float | None = None) -> CommandResult:
        assert max(map(len, argv)) < MAX_ARGUMENT_BYTES, f"{argv[0]}: Argument list too long"
        self.asked.append(argv)
        names = hostlist.opened(argv[-1]) if argv[0] == "scontrol" else ()
        lines = [
            f"Node {name} not found" if name in self.missing else f"NodeName={name} State=IDLE Partitions=p"
            for name in names
        ]
        return CommandResult("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("names", [FOLDED, UNFOLDED], ids=["folded", "unfolded"])
def test_thousands_of_nodes_are_asked_for(names: list[str]) -> None:
    commands = Limited()
    assert Queries(commands, "p").nodes(set(names)).keys() == set(names)
    assert len(commands.asked) == (1 if names is FOLDED else 2)


def test_nodes_that_are_no_longer_in_slurm_cost_a_few_commands_each() -> None:
    commands = Limited(missing=FOLDED[:2])
    assert Queries(commands, "p").nodes(set(FOLDED)).keys() == set(FOLDED[2:])
    assert len(commands.asked) < 40


@pytest.mark.parametrize("names", [FOLDED, UNFOLDED], ids=["folded", "unfolded"])
def test_jobs_that_ended_on_thousands_of_nodes(names: list[str]) -> None:
    commands = Limited()
    assert Queries(commands, "p").ended_main_jobs(names) == []
    assert {argv[0] for argv in commands.asked} == {"squeue"}


def test_thousands_of_tasks_are_asked_for() -> None:
    queries = Queries(Limited(), "p")
    tasks = [f"{12_345_678 + number // 500}_{number % 500}" for number in range(13_000)]
    assert queries.tasks(tasks) == {}
    assert queries.comments(tasks) == {}
