"""The commit protocol: members sum something together, and each member that has the sums has committed the round.

A *round* is one step's gradients or one slice of an evaluation. At each member it either comes to its sums, and is
committed there, or it is void and repeated in another world. A fault can leave members at most one round apart, since
the next sum needs every member. One that missed a round which others have committed cannot follow: their scripts may
have gone on to the next epoch or an evaluation. Its process ends, and joins anew with their state; no vote is needed.

A *control vector* of int64 (a sum in bfloat16 would stick at 256) travels beside the sums: weights, and which
generation each member could switch to. When all members name the same generation, all switch right after that round.

Before anything else of a round, members sum a table of which each fills its own row: what kind of round it makes,
where in the training, with which learning rates. All see all rows, so members that are about to sum different things
find out before they mix them up. What the rows hold is up to the caller (`invariants.agreement`).
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import torch

from malletrain.elastic.comm.group import Group, SoloGroup, Work, table_of
from malletrain.elastic.errors import Aborted, PeerLost

#: How often a waiting member checks whether its world still stands.
POLL_INTERVAL_S = 0.02

#: The fields of the control vector, by index; every field is a sum over members. READY holds the generation that a
#: member is ready for, and READY_SQUARED its square: all n members name the same one exactly if n * sum(r^2) equals
#: sum(r)^2.
WEIGHT, READY, READY_SQUARED, ENDING, SAVE_DUE = range(5)
CONTROL_LENGTH = 5

#: Weights are summed in this unit: they may be fractions (class weights), and sums of integers are exact.
WEIGHTS_PER_UNIT = 2**30


class WorldMonitor(Protocol):
    """What the commit protocol needs of the runtime: see `resize.member.Member`."""

    def check(self, generation: int) -> None: ...

    def fault(self, generation: int, how: str, detail: str) -> None: ...

    def ready_for(self) -> int: ...

    def is_ending(self) -> bool: ...


@dataclass(slots=True)
class TrainingWorld:
    """The processes that train together; this one is `group.rank`."""

    generation: int
    workers: tuple[str, ...]  #: the nodes, in rank order; each has `local_size` processes with consecutive ranks
    group: Group = field(default_factory=SoloGroup)
    chosen_batch: int = 0  #: samples of a step that the daemon asks for
    local_size: int = 1  #: processes a node (torchrun's LOCAL_WORLD_SIZE)
    rank: int = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.rank, self.size = self.group.rank, self.group.size

    @property
    def nodes(self) -> int:
        return self.group.size // self.local_size

    def worker_of(self, rank: int) -> str:
        """The node that a rank runs on, and which of its processes it is if there are several."""
        node, place = divmod(rank, self.local_size)
        return self.workers[node] if self.local_size == 1 else f"{self.workers[node]} (process {place})"


@dataclass(slots=True)
class StepOutcome:
    """What members said in a committed round."""

    agreed: int  #: the generation that all members are ready for, or 0
    ending: int  #: how many members were asked to end
    save_due: bool  #: whether it is time for a checkpoint


def total_weight(control: torch.Tensor) -> float:
    """The sum of all members' weights, from a summed control vector."""
    return int(control[WEIGHT]) / WEIGHTS_PER_UNIT


class StepCommitter:
    """One member's part in the commit protocol. `judge_rows`: called with the rows of a round before it is committed;
    may raise, and then does on every member."""

    def __init__(self, monitor: WorldMonitor) -> None:
        self._monitor = monitor
        self.world = TrainingWorld(0, ())
        self.rounds_done = 0  #: rounds that this member has committed
        self._step_times: deque[float] = deque(maxlen=50)
        self.waiting_since: float | None = None  #: since when this member waits for others (monotonic)
        self.waited_s = 0.0  #: seconds spent waiting for others, in total
        self.save_is_due: Callable[[], bool] = lambda: False  #: returns whether this member wants a checkpoint
        self.judge_rows: Callable[[list[list[int]]], None] = lambda _: None
        self._opening: tuple[Work, torch.Tensor] | None = None  #: the sum of the rows of a round in progress

    def open_round(self, row: Sequence[int]) -> None:
        """Begin a round, or a further pass of one: start to exchange rows, all of one length. Raises `Aborted`: the
        group has failed."""
        self._opening = None
        if self.world.size > 1:
            table = table_of(self.world.group, row)
            self._opening = self.start(table), table

    def rows_of_all(self, row: Sequence[float], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """A table of all members' rows, by rank; each gives one of the same length. Raises as `sum`."""
        return self.sum(table_of(self.world.group, row, dtype))

    def meet(self) -> None:
        """Wait until every member has begun this round, and compare their rows. Raises `Aborted`: the world failed
        before; and what `judge_rows` raises."""
        opening, self._opening = self._opening, None
        if opening is not None:
            work, table = opening
            self.wait(work)
            self.judge_rows(table.tolist())

    def control_vector(self, weight: float, further: Sequence[int] = ()) -> torch.Tensor:
        """This member's control vector: its samples or tokens in the round, what it says of itself, and `further`
        fields of the caller's own."""
        # (A tensor is made once: to set an element of one takes as long as all else here.)
        fields, ready = [0] * CONTROL_LENGTH, self._monitor.ready_for()
        fields[WEIGHT] = round(weight * WEIGHTS_PER_UNIT)
        fields[READY], fields[READY_SQUARED] = ready, ready * ready
        fields[ENDING], fields[SAVE_DUE] = int(self._monitor.is_ending()), int(self.save_is_due())
        return torch.tensor([*fields, *further], dtype=torch.int64)

    def check(self) -> None:
        """Raise `Aborted` or `Released` if this member's world was given up meanwhile."""
        self._monitor.check(self.world.generation)

    def start(self, tensor: torch.Tensor) -> Work:
        """Start to sum a tensor over members, in place; all start the same ones in the same order. Raises `Aborted`:
        the group has failed."""
        try:
            return self.world.group.all_reduce(tensor)
        except PeerLost as lost:
            raise self._abort(lost) from lost

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over members, in place, and wait for it. Raises as `start` and `wait`."""
        self.wait(self.start(tensor))
        return tensor

    def sum_pass(
        self,
        pending: Sequence[Work],
        control: torch.Tensor,
        refuse: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait for the operations started, and sum the control vector. Nothing is committed yet.

        Args:
            pending: what `start` returned.
            control: this member's `control_vector`.
            refuse: called with all sums made; may raise, and then does on every member.

        Raises:
            Aborted: the world has failed.
        """
        self.meet()
        # With several processes a node the control vector follows when the sums are complete: else some processes of
        # a node would commit a round that the others miss more often.
        together = self.world.local_size == 1
        last = [self.start(control)] if together and self.world.size > 1 else []
        for operation in [*pending, *last]:
            self.wait(operation)
        if not together:
            self.wait(self.start(control))
        refuse()

    def commit_alone(self) -> StepOutcome:
        """Commit a round of a world of one."""
        self.rounds_done += 1
        ready = self._monitor.ready_for()
        agreed = ready if ready > self.world.generation else 0
        return StepOutcome(agreed, int(self._monitor.is_ending()), self.save_is_due())

    def commit(self, control: torch.Tensor) -> StepOutcome:
        """Commit the round in progress, with its summed control vector."""
        self.rounds_done += 1
        self._opening = None
        size, fields = self.world.size, control[:CONTROL_LENGTH].tolist()
        ready = fields[READY]
        same = size * fields[READY_SQUARED] == ready * ready
        agreed = ready // size if same and ready else 0
        agreed = agreed if agreed > self.world.generation else 0
        return StepOutcome(agreed, fields[ENDING], bool(fields[SAVE_DUE]))

    def wait(self, operation: Work) -> None:
        """Wait for an operation while checking that the world still stands; report peers that stall. Raises
        `Aborted`: the world was given up, or a peer is lost; `Released`: this worker has to end."""
        limit = self.stall_timeout_s()
        self.waiting_since = started = time.monotonic()
        report_at = started + limit
        try:
            while not operation.wait(POLL_INTERVAL_S):
                self._monitor.check(self.world.generation)
                if time.monotonic() >= report_at:
                    waited = time.monotonic() - started
                    self._monitor.fault(self.world.generation, "stalled", f"no answer from a peer for {waited:.1f} s")
                    report_at = time.monotonic() + limit
        except PeerLost as lost:
            raise self._abort(lost) from lost
        finally:
            self.waiting_since = None
            self.waited_s += time.monotonic() - started

    def _abort(self, lost: PeerLost) -> Aborted:
        opening, self._opening = self._opening, None
        with suppress(PeerLost):
            if opening is not None and opening[0].wait(0.0):
                # A member that makes another round ends as soon as it has seen this one's row.
                self.judge_rows(opening[1].tolist())
        self._monitor.fault(self.world.generation, "closed", str(lost))
        return Aborted(str(lost))

    def record_step_time(self, seconds: float) -> None:
        """Record how long a step took, for `median_step_s` and `stall_timeout_s`."""
        self._step_times.append(seconds)

    def median_step_s(self) -> float:
        """Median duration of the recent steps; 0 before the first."""
        return statistics.median(self._step_times) if self._step_times else 0.0

    def stall_timeout_s(self) -> float:
        """How long to wait for peers before a stall is reported: the daemon then gives them 2 s to check in, so that
        a frozen one is out within max(5 s, 10 median steps)."""
        return max(2.5, 9 * self.median_step_s() - 2.0)
