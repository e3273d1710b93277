"""Pilots as Slurm shows them: whether a task is what it was when it was taken on, how it ended, and what is to start
on which nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from malletrain.domain.decision import StartPilot
from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import ArrayReport, PilotEnd, task_of
from malletrain.domain.pilot_life import NO_DAEMON_STATUS
from malletrain.domain.snapshot import ENDED_STATES, FREE_STATES, HELD_PRIORITY, Node, SlurmState
from malletrain.slurm.formats import hostlist
from malletrain.slurm.formats.squeue import TaskRecord
from malletrain.slurm.formats.states import job_state
from malletrain.slurm.site.site_facts import Harvest
from malletrain.slurm.submission.sbatch import NO_PYTHON_STATUS

#: Every task is submitted with this limit, so that one that its owner releases by hand ends at once.
SUBMITTED_LIMIT_S = 60.0

#: What exit statuses of a pilot's own mean.
_WORDS = {
    NO_PYTHON_STATUS: "no Python for it on the node (mtbatch --python), ",
    NO_DAEMON_STATUS: "it reached no daemon, or was refused (its output says why), ",
}


def end_state(row: TaskRecord | None) -> PilotEnd:
    """How the task stands, from its row in `squeue -t all`: PENDING, RUNNING (it may leave its node just now), or how
    it ended. Preemption is known by PreemptTime alone: a payload that exits 0 on SIGTERM leaves COMPLETED, one that
    exits 143 FAILED, and only one that ignores it PREEMPTED (measured, 22.05)."""
    if row is None:
        return PilotEnd(SlurmState.UNKNOWN, detail="Slurm no longer knows this task")
    state = job_state(row.state)
    if state is SlurmState.PENDING:
        return PilotEnd(state, held=is_held(row), detail=row.reason)
    if state not in ENDED_STATES:
        return PilotEnd(SlurmState.RUNNING, detail=row.reason)
    code, signal = _exit(row.exit_code)
    preempted = state is SlurmState.PREEMPTED or is_preempted(row)
    words = _WORDS.get(code or 0, "")
    detail = f"{words}{row.state.lower()}, exit code {code}:{signal}" + (f", {row.reason}" if row.reason else "")
    return PilotEnd(SlurmState.PREEMPTED if preempted else state, preempted, exit_code=code, detail=detail)


def is_preempted(row: TaskRecord) -> bool:
    """Whether Slurm has begun to take the node from the task's present or last run."""
    return row.preempt_time is not None and (row.start_time is None or row.preempt_time >= row.start_time)


def accounted_end(text: str) -> PilotEnd | None:
    """How a task that slurmctld has forgotten (MinJobAge) ended, by the rows of `sacct -X -D -n -P -o State,ExitCode`
    and more; None: it has none that is over. sacct shows a preemption only where the payload ignored SIGTERM."""
    found = None
    for line in text.splitlines():
        word, code = [*line.strip().split("|"), ""][:2]
        state = job_state(word.partition(" ")[0])
        if state in ENDED_STATES:
            detail = f"{word.lower()}, exit code {code}, by sacct"
            found = PilotEnd(state, state is SlurmState.PREEMPTED, exit_code=_exit(code)[0], detail=detail)
    return found


def _exit(text: str) -> tuple[int | None, int | None]:
    """Exit code and signal of `2:15`, or of the raw status of wait(2) that squeue -O prints (`512`)."""
    code, colon, signal = text.partition(":")
    if not code.isdigit() or (colon and not signal.isdigit()):
        return None, None
    if colon:
        return int(code), int(signal)
    status = int(code)
    return (0, status & 0x7F) if status & 0x7F else (status >> 8, 0)


def is_held(row: TaskRecord) -> bool:
    """Whether the waiting task is held, by whomever."""
    return row.priority == HELD_PRIORITY


def faults(row: TaskRecord, harvest: Harvest, uid: int | None) -> tuple[str, ...]:
    """What makes this task not the pilot that it should be. The owner of a held task may change its partition,
    account, QOS and limits at any time, so this is asked again right before each release."""
    limit_s, most_s = row.time_limit_s, float("inf") if harvest.max_time_s is None else harvest.max_time_s
    limit = "no limit" if limit_s is None else f"a limit of {limit_s / 60:g} min"
    table = (
        (uid is not None and row.uid != uid, f"it belongs to uid {row.uid}, not to uid {uid}"),
        (row.array_id is None, "it is not a task of an array"),
        (row.partition != harvest.partition, f"its partition is {row.partition}, not {harvest.partition}"),
        (harvest.account and row.account != harvest.account,
         f"its account is {row.account or 'none'}, not {harvest.account}"),
        (harvest.qos and row.qos != harvest.qos, f"its QOS is {row.qos or 'none'}, not {harvest.qos}"),
        (row.node_count != 1 and not was_widened(row, harvest), f"it asks for {row.node_count} nodes, not 1"),
        (row.dependency, f"it waits for another job ({row.dependency[:60]})"),
        (row.oversubscribe in ("YES", "OK", "USER", "MCS") or row.exclusive not in ("", "NODE"),
         "it does not ask for the whole node (--exclusive)"),
        (row.licenses, f"it asks for licences ({row.licenses[:60]}), which the main queue would lack"),
        (row.burst_buffer, "it asks for a burst buffer, which pilots cannot wait for"),
        (harvest.max_time_s is not None and (limit_s is None or limit_s > most_s),
         f"it has {limit}, and MaxTime of {harvest.partition} is {most_s / 60:g} min"),
        (row.reason == "JobHeldAdmin", "the staff holds it"),
    )  # fmt: skip
    return tuple(fault for holds, fault in table if holds)


def was_widened(row: TaskRecord, harvest: Harvest) -> bool:
    """Whether the task may ask for several nodes because it was started on so many before: it keeps their number
    until its next start, which says anew how many."""
    return row.restarts > 0 or 1 <= row.node_count <= harvest.max_nodes


def changed_by_slurm(
    row: TaskRecord, harvest: Harvest, uid: int, nodes: Sequence[str], minutes: int
) -> tuple[str, ...]:
    """What is not as it was asked for, in a task that was pinned to `nodes` for `minutes` a moment ago: a job_submit
    plug-in may rewrite updates too (job_submit.lua: slurm_job_modify)."""
    found = list(faults(row, harvest, uid))
    if set(_expanded(row.required_nodes)) != set(nodes):
        found.append(f"it is pinned to {row.required_nodes or 'no node'}, not to {','.join(nodes)}")
    if len(nodes) > 1 and row.node_count != len(nodes):
        found.append(f"it asks for {row.node_count} nodes, not {len(nodes)}")
    if row.time_limit_s is None or row.time_limit_s > 60.0 * minutes:
        limit = "unlimited" if row.time_limit_s is None else f"{row.time_limit_s / 60:g} min"
        found.append(f"its limit is {limit}, not {minutes} min")
    if not is_held(row):
        found.append("it is no longer held")
    return tuple(found)


def _expanded(nodes: str) -> tuple[str, ...]:
    try:
        return hostlist.expand(nodes)
    except InvalidInput:
        return (nodes,)


def inspect(array_id: int, rows: Sequence[TaskRecord], harvest: Harvest, uid: int | None) -> ArrayReport:
    """The held tasks of an array, and everything that is wrong with it: none is taken then. `gone`: Slurm has no such
    array of this user's, though its number may be another job's by now."""
    mine = [row for row in rows if row.array_id == array_id and uid in (None, row.uid)]
    if not mine:  # the same words as for another user's: Slurm's PrivateData may hide it
        return ArrayReport(array_id, faults=(f"Slurm knows no job array {array_id}",), gone=True)
    tasks: list[int] = []
    found: dict[str, None] = {}
    for row in mine:
        if job_state(row.state) is not SlurmState.PENDING:
            continue
        wrong = list(faults(row, harvest, uid))
        if not is_held(row):
            wrong.append(f"it is not held ({row.reason or 'no reason'}); submit it with --hold")
        if row.requeue:
            wrong.append("Slurm may requeue it by itself; submit it with --no-requeue")
        if row.time_limit_s is None or row.time_limit_s > SUBMITTED_LIMIT_S:
            wrong.append("its time limit is above 1 minute; submit it with --time=1")
        found.update((f"{row.id}: {fault}", None) for fault in wrong)
        tasks.extend(row.tasks)
    return ArrayReport(array_id, () if found else tuple(sorted(tasks)), tuple(found))


def split_id(pilot: str) -> tuple[int, int]:
    """(123, 4) of `123_4`. Raises `InvalidInput`: not the id of an array task."""
    array, _, task = pilot.partition("_")
    if not (array.isascii() and array.isdigit() and task.isascii() and task.isdigit()):
        raise InvalidInput("pilot", f"{pilot[:40]!r} is not the id of an array task (123_4)")
    return int(array), int(task)


@dataclass(frozen=True, slots=True)
class PinnedTask:
    """A held task that is to hold `nodes` for at most `limit_s` seconds. `jobs`: for whom, which must be one."""

    task: str
    jobs: frozenset[int]
    nodes: tuple[str, ...]
    limit_s: float

    @property
    def job(self) -> int:
        return min(self.jobs)

    @property
    def minutes(self) -> int:
        """The limit in Slurm's unit."""
        return int(self.limit_s // 60)

    def fault(self, harvest: Harvest) -> str:
        """What is wrong with it whatever Slurm shows, or ''."""
        if self.limit_s < 60:
            return f"the hole of {self.limit_s:.0f} s is shorter than Slurm's least limit, 1 minute"
        if len(self.nodes) > harvest.max_nodes:
            return f"it would hold {len(self.nodes)} nodes, and pilot.max_nodes is {harvest.max_nodes}"
        if len(self.jobs) > 1 or len(set(self.nodes)) < len(self.nodes):
            return "the nodes of a task are different ones, all for one job"
        return ""

    def not_to_be_had(self, nodes: Mapping[str, Node], partition: str) -> str:
        """Which of its nodes cannot be taken now, and why, or ''. `nodes`: those that are in Slurm."""
        for name in self.nodes:
            node = nodes.get(name)
            if node is None:
                return f"Slurm knows no node {name}"
            if node.state not in FREE_STATES:
                return f"{name} is {node.state} now" + (f" ({node.reason[:80]})" if node.reason else "")
            if partition not in node.partitions:
                return f"{name} is not in partition {partition}"
        return ""

    def pin(self, row: TaskRecord, now: float) -> list[str]:
        """The command that pins the held task to its nodes, and limits it; `now` in Unix seconds."""
        update = ["scontrol", "update", f"JobId={self.task}"]
        count = len(self.nodes)
        if count > 1 or row.node_count > 1:  # a task that ran before is as wide as it was then
            update += [f"NumNodes={count}-{count}", f"NumTasks={count}"]
        update += [f"NodeList={','.join(self.nodes)}", f"TimeLimit={self.minutes}"]
        if row.requeue:  # left so by a daemon that died in the midst of recycling
            update.append("Requeue=0")
        if row.restarts or (row.eligible_time is not None and row.eligible_time > now):
            update.append("StartTime=now")  # a requeued task would wait about 120 s
        return update


def together(actions: Iterable[StartPilot]) -> dict[str, PinnedTask]:
    """What is to start, by task, in the order of `actions`."""
    same: dict[str, list[StartPilot]] = {}
    for action in actions:
        same.setdefault(task_of(action.pilot), []).append(action)
    return {
        task: PinnedTask(
            task,
            frozenset(each.job_id for each in found),
            tuple(each.node for each in found),
            min(each.limit_s for each in found),
        )
        for task, found in same.items()
    }
