"""What Slurm says of tasks and nodes that are named, asked just before something is done to them."""

from __future__ import annotations

from collections.abc import Sequence, Set

from malletrain.domain.errors import ClusterUnavailable, InvalidInput
from malletrain.domain.job import task_of
from malletrain.domain.snapshot import Node
from malletrain.slurm import pilots
from malletrain.slurm.command import Commands
from malletrain.slurm.formats import normalise, squeue, text

#: Slurm's words for "there is no such job any more": what was to be ended has ended.
_GONE = (
    "Invalid job id",
    "already completing or completed",
    "Job/step already completing",
    "already finished",
)


def is_gone(error: str) -> bool:
    """Whether an error says that there is no such job any more."""
    return any(words in error for words in _GONE)


class Queries:
    """Looks at single tasks and nodes.

    All raise `ClusterUnavailable` where Slurm does not answer, or answers what cannot be right.
    """

    def __init__(self, commands: Commands, harvest_partition: str) -> None:
        self._commands = commands
        self._partition = harvest_partition
        self._fields: Sequence[str] = (*squeue.TASK_FIELDS, squeue.EXCLUSIVE)  #: without the last on an older Slurm

    def nodes(self, names: Set[str]) -> dict[str, Node]:
        """Nodes by name, those that are in Slurm. One command for all; one by one when one of them is not."""
        wanted = ",".join(sorted(names))
        answer = self._commands.run(["scontrol", "-a", "-o", "show", "node", wanted])
        if not answer.ok or "not found" in answer.output:
            if "not found" not in f"{answer.error} {answer.output}":
                raise ClusterUnavailable(f"scontrol: {answer.error}")
            if len(names) == 1:
                return {}
            return {name: node for each in sorted(names) for name, node in self.nodes({each}).items()}
        try:
            return {row.name: normalise.node(row) for row in text.nodes(answer.output)}
        except InvalidInput as error:
            raise ClusterUnavailable(f"Slurm's answer cannot be right: {error}") from error

    def tasks(self, wanted: Sequence[str]) -> dict[str, squeue.TaskRecord]:
        """Rows of these tasks, those that Slurm shows."""
        return _by_name(self._query(["-j", ",".join(wanted)])) if wanted else {}

    def task(self, pilot: str) -> squeue.TaskRecord | None:
        """The row of a pilot's task; None: Slurm does not show it.

        Raises:
            InvalidInput: that is no task's name.
        """
        task = task_of(pilot)
        pilots.split_id(task)  # refuses what is no task's name
        return self.tasks([task]).get(task)

    def accounted(self, pilot: str) -> pilots.EndState | None:
        """How a task that slurmctld has forgotten ended, by accounting; None: accounting does not know, or there is
        none."""
        try:
            answer = self._commands.run(
                ["sacct", "-X", "-D", "-n", "-P", "-j", task_of(pilot), "-o", "State,ExitCode,End,NodeList"]
            )
        except ClusterUnavailable:
            return None
        return pilots.accounted_end(answer.output) if answer.ok else None

    def array(self, array_id: int) -> list[squeue.TaskRecord]:
        """All tasks of one array."""
        return self._query(["-j", str(array_id)])

    def comments(self, wanted: Sequence[str]) -> dict[str, str]:
        """What owners have written into the comments of these tasks, of those that Slurm shows."""
        if not wanted:
            return {}
        mark = self._commands.mark()
        which = ["-j", ",".join(wanted), "-o", f"%i{mark}%k{mark}\x1d{mark}"]
        answer = self._commands.run(["squeue", "-a", "-h", "-r", "-t", "all", *which])
        if not answer.ok:
            if is_gone(answer.error):
                return {}
            raise ClusterUnavailable(f"squeue: {answer.error}")
        rows = [row.split(mark) for row in answer.output.split(f"{mark}\x1d{mark}")[:-1]]
        return {row[0].strip(): row[1].strip() for row in rows if len(row) == 2}

    def harvest(self) -> dict[str, squeue.TaskRecord]:
        """All tasks of the harvest partition."""
        return _by_name(self._query(["-p", self._partition]))

    def _query(self, which: list[str]) -> list[squeue.TaskRecord]:
        mark = self._commands.mark()
        ask = ["squeue", "-a", "-h", "-r", "-t", "all", *which, "-O"]
        answer = self._commands.run([*ask, squeue.task_format(mark, self._fields)])
        if "Invalid job format" in answer.error and squeue.EXCLUSIVE in self._fields:
            self._fields = squeue.TASK_FIELDS
            answer = self._commands.run([*ask, squeue.task_format(mark)])
        if not answer.ok:
            if is_gone(answer.error):
                return []
            raise ClusterUnavailable(f"squeue: {answer.error}")
        try:
            return squeue.parse_tasks(answer.output, mark, self._fields)
        except InvalidInput as error:
            raise ClusterUnavailable(f"Slurm's answer cannot be right: {error}") from error


def _by_name(rows: Sequence[squeue.TaskRecord]) -> dict[str, squeue.TaskRecord]:
    return {f"{row.array_id}_{task}": row for row in rows if row.array_id is not None for task in row.tasks}
