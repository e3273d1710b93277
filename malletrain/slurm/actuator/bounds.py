"""What the actuator does at most, by its own configuration and what Slurm shows. The side that orders may have been
broken into: nothing that it says widens a bound, and which job a task belongs to its owner says in its comment."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from malletrain.domain.decision import StartPilot
from malletrain.domain.job import task_of
from malletrain.domain.snapshot import HOLDING_STATES, SlurmState
from malletrain.slurm.formats.squeue import TaskRecord
from malletrain.slurm.formats.states import job_state
from malletrain.slurm.pilots import is_held
from malletrain.slurm.submission.sbatch import comment_of

MINUTE_S = 60.0
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class ActuatorBounds:
    """The bounds. `max_limit_s`: no pilot's time limit is set longer; `max_pilots`: most tasks that hold nodes;
    `include` (empty: all) and `exclude`: names of nodes; starts in a minute, and tasks cancelled in an hour."""

    max_limit_s: float
    max_pilots: int = 5000
    include: frozenset[str] = frozenset()
    exclude: frozenset[str] = frozenset()
    starts_per_minute: int = 300
    cancels_per_hour: int = 2000

    def node_refusal(self, node: str) -> str:
        """Why no pilot may start on the node, or ''."""
        if node in self.exclude:
            return f"{node} is excluded (pool.exclude)"
        if self.include and node not in self.include:
            return f"{node} is not among the nodes of pool.include"
        return ""


class RateBudget:
    """At most `count` of something in any `window_s` seconds."""

    def __init__(self, count: int, window_s: float) -> None:
        self._count = count
        self._window_s = window_s
        self._taken: deque[float] = deque()

    def room(self, now: float) -> int:
        """How many more there may be at `now` (seconds of one clock that never jumps)."""
        while self._taken and now - self._taken[0] >= self._window_s:
            self._taken.popleft()
        return self._count - len(self._taken)

    def take(self, number: int, now: float) -> None:
        """Count `number`."""
        self._taken.extend([now] * number)


def start_refusals(
    starts: Iterable[StartPilot],
    bounds: ActuatorBounds,
    present: Mapping[str, TaskRecord],
    comments: Mapping[str, str],
    rate_room: int,
) -> dict[str, str]:
    """Why tasks may not be started, by task. `present`: all tasks of the harvest partition; `comments`: of those in
    question; `rate_room`: how many may start now by the rate."""
    refused: dict[str, str] = {}
    in_order: dict[str, list[StartPilot]] = {}
    for start in starts:
        in_order.setdefault(task_of(start.pilot), []).append(start)
    active = {name for name, row in present.items() if holds_node(row)}
    room = bounds.max_pilots - len(active)
    for task, same in in_order.items():
        why = next((said for each in same if (said := bounds.node_refusal(each.node))), "")
        why = why or comment_refusal(task, same[0].job_id, comments)
        if not why and task in active:
            why = "it holds a node already"
        if not why and room <= 0:
            why = f"{bounds.max_pilots} pilots hold nodes already (pool.max_pilots)"
        if not why and rate_room <= 0:
            why = f"more than {bounds.starts_per_minute} starts in a minute "
        if why:
            refused[task] = why
        else:
            room, rate_room = room - 1, rate_room - 1
    return refused


def comment_refusal(task: str, job: int, comments: Mapping[str, str]) -> str:
    """Why the task is not one of `job` by its owner's own word, or ''."""
    wanted, found = comment_of(job), comments.get(task, "")
    if found == wanted or found.startswith(f"{wanted};"):
        return ""
    return f"its owner has not announced it for job {job}: its comment in Slurm is {found[:60]!r}, not {wanted!r}"


def holds_node(row: TaskRecord) -> bool:
    """Whether a task holds a node, or was released and may do so at any moment."""
    state = job_state(row.state)
    return state in HOLDING_STATES or (state is SlurmState.PENDING and not is_held(row))


def cancellable(pilots: Collection[str], job: int, comments: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """The pilots of a cancel that are the job's by their owner's word, and why others are not."""
    refused = {pilot: comment_refusal(task_of(pilot), job, comments) for pilot in pilots}
    allowed = tuple(pilot for pilot, why in refused.items() if not why)
    return allowed, next((why for why in refused.values() if why), "")
