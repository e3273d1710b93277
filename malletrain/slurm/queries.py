"""What Slurm says of tasks and nodes that are named, asked just before something is done to them; and of main jobs
that have ended, or came in the last weeks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set

from malletrain.domain.errors import ClusterUnavailable, InvalidInput
from malletrain.domain.job import PilotEnd, task_of
from malletrain.domain.snapshot import Node, SlurmJob, SlurmState
from malletrain.slurm import pilots
from malletrain.slurm.command import CommandResult, Commands, readable
from malletrain.slurm.formats import hostlist, normalise, scalars, squeue, text

#: The kernel starts no command with an argument of 128 KiB (MAX_ARG_STRLEN); a task's name has up to 19 characters.
MAX_LIST_CHARS = 100_000

#: Slurm's words for "there is no such job any more": what was to be ended has ended.
_GONE = ("Invalid job id", "already completing or completed", "Job/step already completing", "already finished")


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
        """Nodes by name, those that are in Slurm. One command for all; by halves when one of them is not."""
        wanted = hostlist.folded(names)
        if len(wanted) > MAX_LIST_CHARS:
            return self._nodes_by_halves(names)
        answer = self._commands.run(["scontrol", "-a", "-o", "show", "node", wanted])
        if not answer.ok or "not found" in answer.output:
            if "not found" not in f"{answer.error} {answer.output}":
                raise ClusterUnavailable(f"scontrol: {answer.error}")
            return self._nodes_by_halves(names) if len(names) > 1 else {}
        with readable():
            return {row.name: normalise.node(row) for row in text.nodes(answer.output)}

    def _nodes_by_halves(self, names: Set[str]) -> dict[str, Node]:
        ordered, middle = sorted(names), len(names) // 2
        return self.nodes(frozenset(ordered[:middle])) | self.nodes(frozenset(ordered[middle:]))

    def tasks(self, wanted: Sequence[str]) -> dict[str, squeue.TaskRecord]:
        """Rows of these tasks, those that Slurm shows."""
        return _by_name([row for listed in _lists(wanted) for row in self._query(["-j", listed])])

    def task(self, pilot: str) -> squeue.TaskRecord | None:
        """The row of a pilot's task; None: Slurm does not show it. Raises `InvalidInput`: that is no task's name."""
        task = task_of(pilot)
        pilots.split_id(task)  # refuses what is no task's name
        return self.tasks([task]).get(task)

    def accounted(self, pilot: str) -> PilotEnd | None:
        """How a task that slurmctld has forgotten ended, by accounting; None: accounting does not know, or there is
        none."""
        try:
            ask = ["sacct", "-X", "-D", "-n", "-P", "-j", task_of(pilot), "-o", "State,ExitCode,End,NodeList"]
            answer = self._commands.run(ask)
        except ClusterUnavailable:
            return None
        return pilots.accounted_end(answer.output) if answer.ok else None

    def array(self, array_id: int) -> list[squeue.TaskRecord]:
        """All tasks of one array."""
        return self._query(["-j", str(array_id)])

    def comments(self, wanted: Sequence[str]) -> dict[str, str]:
        """What owners have written into the comments of these tasks, of those that Slurm shows."""
        return {task: comment for listed in _lists(wanted) for task, comment in self._comments(listed)}

    def _comments(self, listed: str) -> list[tuple[str, str]]:
        mark = self._commands.mark()
        which = ["-j", listed, "-o", f"%i{mark}%k{mark}\x1d{mark}"]
        printed = _shown(self._commands.run(["squeue", "-a", "-h", "-r", "-t", "all", *which]))
        rows = [row.split(mark) for row in printed.split(f"{mark}\x1d{mark}")[:-1]]
        return [(row[0].strip(), row[1].strip()) for row in rows if len(row) == 2]

    def harvest(self) -> dict[str, squeue.TaskRecord]:
        """All tasks of the harvest partition."""
        return _by_name(self._query(["-p", self._partition]))

    def jobs_of_harvest(self) -> dict[str, squeue.TaskRecord]:
        """All jobs of the harvest partition, tasks of arrays one by one, by the ids that squeue has."""
        return {row.id: row for row in self._query(["-p", self._partition])}

    def steps(self, jobs: Sequence[str]) -> list[str]:
        """The running steps of these jobs that `srun` has begun, such as 12.0; none where squeue does not say."""
        ask = ["squeue", "-a", "-h", "-s", "-o", "%i", "-j"]
        said = [step for listed in _lists(jobs) for step in self._commands.run([*ask, listed]).output.split()]
        return [step for step in said if step.rpartition(".")[2].isdigit()]

    def _query(self, which: list[str]) -> list[squeue.TaskRecord]:
        mark = self._commands.mark()
        ask = ["squeue", "-a", "-h", "-r", "-t", "all", *which, "-O"]
        answer = self._commands.run([*ask, squeue.task_format(mark, self._fields)])
        if "Invalid job format" in answer.error and squeue.EXCLUSIVE in self._fields:
            self._fields = squeue.TASK_FIELDS
            answer = self._commands.run([*ask, squeue.task_format(mark)])
        with readable():
            return squeue.parse_tasks(_shown(answer), mark, self._fields)

    def ended_main_jobs(self, nodes: Collection[str]) -> Sequence[SlurmJob]:
        """Jobs of other partitions that have ended on any of `nodes`; squeue shows them for MinJobAge. (Perhaps
        others, too, where the list of nodes is too long for a command.)"""
        mark, listed = self._commands.mark(), hostlist.folded(nodes)
        ask = ["squeue", "-a", "-h", "-t", "all", "-o", squeue.queue_format(mark)]
        answer = self._commands.run([*ask, "-w", listed] if len(listed) <= MAX_LIST_CHARS else ask)
        if "Invalid node name" in answer.error:  # one of them is no longer in Slurm
            answer = self._commands.run(ask)
        warnings = normalise.Warnings()
        with readable():
            rows = squeue.parse_queue(_shown(answer), mark)
            jobs = [normalise.job(row, warnings) for row in rows if row.partition != self._partition]
        return [job for job in jobs if not job.holds_nodes and job.state is not SlurmState.PENDING]


def _shown(answer: CommandResult) -> str:
    """What squeue printed; nothing where the jobs that were asked for are gone. Raises `ClusterUnavailable`: it
    failed."""
    if not answer.ok and not is_gone(answer.error):
        raise ClusterUnavailable(f"squeue: {answer.error}")
    return answer.output if answer.ok else ""


def _lists(tasks: Sequence[str]) -> Iterator[str]:
    """All of them, in lists that each fit one argument."""
    return map(",".join, batches(tasks, 5_000))


def batches(tasks: Sequence[str], most: int) -> Iterator[Sequence[str]]:
    """All of them, at most so many at a time."""
    for begin in range(0, len(tasks), most):
        yield tasks[begin : begin + most]


def _by_name(rows: Sequence[squeue.TaskRecord]) -> dict[str, squeue.TaskRecord]:
    return {f"{row.array_id}_{task}": row for row in rows if row.array_id is not None for task in row.tasks}


#: Periods that accounting is asked for, in days, until it answers in time: hundreds of thousands of rows take long.
PERIODS_DAYS = (28, 7, 1)


def past_arrivals(
    commands: Commands, harvest_partition: str, most_days: int = PERIODS_DAYS[0]
) -> list[tuple[str, float, int]]:
    """Main jobs as (id, submission in Unix seconds, nodes), of the newest `most_days`, or fewer, for which accounting
    answers in time; empty where it does not, or shows none. Each component of a heterogeneous job is one: `12+0`."""
    for days in (period for period in PERIODS_DAYS if period <= most_days):
        ask = ["sacct", "-a", "-X", "-n", "-P", "-S", f"now-{days}days", "-E", "now"]
        try:
            answer = commands.run([*ask, "-o", "JobID,Partition,Submit,NNodes"])
        except ClusterUnavailable:
            continue
        if answer.ok:
            return parse_arrivals(answer.output, harvest_partition)
    return []


def parse_arrivals(text: str, harvest_partition: str) -> list[tuple[str, float, int]]:
    """The rows of `sacct -X -n -P -o JobID,Partition,Submit,NNodes`; a row that cannot be read is left out."""
    found = []
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) != 4 or cells[1] == harvest_partition:
            continue
        try:
            submitted = scalars.moment(cells[2])
        except InvalidInput:
            continue
        width = scalars.number(cells[3])
        if submitted is not None and width > 0:
            found.append((cells[0], submitted, width))
    return found
