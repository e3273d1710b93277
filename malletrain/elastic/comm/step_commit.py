"""Rounds: what members do together. A step's gradients are one, a slice of an evaluation is one.

A round either comes to its sum at a member, and is committed there, or it is void. Since each sum is known whole to
everyone who has it, a member that committed can give it to one that did not: nobody is ever more than one round
ahead, so the last sum is all that has to be kept. No vote is needed.

Beside the sums travels a row of 64-bit words (a sum in bf16 would stick at 256): weights, and which generation each
member is ready for. When all name the same one, all switch to it after this very round.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from malletrain.elastic.comm.groups import Group, Pending, Solo
from malletrain.elastic.comm.node_group import NodeGroup
from malletrain.elastic.errors import Aborted, PeerLost

#: How soon a waiting member notices that its world was given up.
SLICE_S = 0.02

WEIGHT, READY, READY_SQUARED, ENDING, BAD, BAD_RANKS, SAVING, CHANGED, CONTROL_LENGTH = 0, 1, 2, 3, 4, 5, 6, 7, 8


class Watch(Protocol):
    """What a waiting member looks at, and whom it tells."""

    def check(self, generation: int) -> None:
        """Raise `Aborted` when the world of `generation` was given up, `Released` when this worker has to go."""
        ...

    def fault(self, generation: int, how: str, detail: str) -> None:
        """Tell the daemon that the world of `generation` does not work."""
        ...

    def ready_for(self) -> int:
        """The generation that this member could switch to at once, or 0."""
        ...

    def is_ending(self) -> bool:
        """Whether this process was told to end."""
        ...


@dataclass(slots=True)
class World:
    """The processes that train together; this one is `group.rank`.

    `workers` are its members: nodes, each with `places` processes, one after the other. `recovering_ranks`: ranks
    that get the state while the others make the next step; their part of it is empty.
    """

    generation: int
    workers: tuple[str, ...]
    group: Group = field(default_factory=Solo)
    chosen_batch: int = 0  #: samples of a step that the daemon wants, or 0
    places: int = 1
    recovering_ranks: frozenset[int] = frozenset()

    @property
    def rank(self) -> int:
        return self.group.rank

    @property
    def size(self) -> int:
        return self.group.size

    @property
    def nodes(self) -> int:
        return self.group.size // self.places

    def saves(self, *, sharded: bool) -> bool:
        """Whether this process writes checkpoints: the first one; all of the first node where each holds a part."""
        return self.rank < (self.places if sharded else 1)

    def worker_of(self, rank: int) -> str:
        """The member that a process belongs to."""
        return self.workers[rank // self.places]


@dataclass(slots=True)
class StepOutcome:
    """The sums of a round and its words. `agreed`: the generation that all are ready for, or 0; `ending`: how many
    members were told to end; `saving`: it is time for a checkpoint; `changed`: the state that was lent to newcomers
    changed before the round was done."""

    sums: list[torch.Tensor]
    control: torch.Tensor
    agreed: int
    ending: int
    saving: bool
    changed: bool = False


class StepCommitter:
    """The rounds of one member.

    Attributes:
        done: how many rounds this member has committed.
        last: the sums of the last one, for a member that lacks it.
        given: the sums of the round under way, got from a member that has committed it.
        complete: where nodes have several processes, the sums of the round under way with this member's own words.
            Words follow when the sums are complete. So once anyone has the words, everyone has the sums.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.world = World(0, ())
        self.done = 0
        self.last: list[torch.Tensor] = []
        self.given: list[torch.Tensor] | None = None
        self.complete: list[torch.Tensor] = []
        self._step_times: deque[float] = deque(maxlen=50)
        self.waiting_since: float | None = None
        #: Whether this member finds that it is time for a checkpoint.
        self.save_is_due: Callable[[], bool] = lambda: False
        #: Whether the state changed that this member lends.
        self.lent_changed: Callable[[], bool] = lambda: False
        #: Seconds spent in waiting for others, in all.
        self.waited_s = 0.0

    def control_vector(self, weight: int, extra: int = 0) -> torch.Tensor:
        """This member's words; `extra` more follow the fixed ones, all zero."""
        control = torch.zeros(CONTROL_LENGTH + extra, dtype=torch.int64)
        ready = self._watch.ready_for()
        control[WEIGHT] = weight
        control[READY] = ready
        control[READY_SQUARED] = ready * ready
        control[ENDING] = int(self._watch.is_ending())
        control[SAVING] = int(self.save_is_due())
        control[CHANGED] = int(self.lent_changed())
        return control

    def check(self) -> None:
        """Raise when this world was given up meanwhile."""
        self._watch.check(self.world.generation)

    def start(self, tensor: torch.Tensor, *, shard: bool = False) -> Pending:
        """Begin to sum one tensor, in place. Every member starts the same ones in the same order. `shard`: each place
        of a node has another part, so that only the nodes' are summed.

        Raises:
            Aborted: the group is of no more use.
        """
        group = self.world.group
        try:
            if shard and isinstance(group, NodeGroup):
                return group.all_reduce_across(tensor)
            return group.all_reduce(tensor)
        except PeerLost as lost:
            self._watch.fault(self.world.generation, "closed", str(lost))
            raise Aborted(str(lost)) from lost

    def finish(
        self,
        pending: Sequence[Pending],
        sums: list[torch.Tensor],
        control: torch.Tensor,
        refuse: Callable[[torch.Tensor], None] = lambda _: None,
    ) -> StepOutcome:
        """Wait for what was started, and for the words, the last of `sums`; then commit. `refuse` may raise when it
        has seen them: the same on every member.

        Raises:
            Aborted: the world was given up before; nothing is committed here.
        """
        together = self.world.places == 1
        last = [self.start(control)] if together and self.world.size > 1 else []
        for operation in [*pending, *last]:
            self.wait(operation)
        if not together:
            self.complete = [*sums[:-1], control.clone()]
            self.wait(self.start(control))
        refuse(control)
        return self.commit(sums, control)

    def take_given(self) -> list[torch.Tensor] | None:
        """The sums of the round under way if a member that is ahead has given them; they are handed out once."""
        given, self.given = self.given, None
        return given

    def commit_given(self, sums: list[torch.Tensor]) -> StepOutcome:
        """The round is done, as others have told: in the world before this one, so its words agree on nothing."""
        outcome = self.commit(sums, sums[-1])
        outcome.agreed, outcome.ending, outcome.saving, outcome.changed = 0, 0, False, False
        return outcome

    def commit(self, sums: list[torch.Tensor], control: torch.Tensor) -> StepOutcome:
        """The round is done."""
        self.done += 1
        self.last, self.complete = sums, []
        size, ready = self.world.size, int(control[READY])
        same = size * int(control[READY_SQUARED]) == ready * ready
        agreed = ready // size if same and ready else 0
        agreed = agreed if agreed > self.world.generation else 0
        return StepOutcome(sums, control, agreed, int(control[ENDING]), bool(control[SAVING]), bool(control[CHANGED]))

    def wait(self, operation: Pending) -> None:
        """Wait in slices, with an eye on whether the world still stands.

        Raises:
            Aborted: it does not.
        """
        limit = self.stall_limit()
        self.waiting_since = started = time.monotonic()
        report_at = started + limit
        try:
            while not operation.wait(SLICE_S):
                self._watch.check(self.world.generation)
                if time.monotonic() >= report_at:
                    waited = time.monotonic() - started
                    self._watch.fault(self.world.generation, "stalled", f"no answer from a peer for {waited:.1f} s")
                    report_at = time.monotonic() + limit
        except PeerLost as lost:
            self._watch.fault(self.world.generation, "closed", str(lost))
            raise Aborted(str(lost)) from lost
        finally:
            self.waiting_since = None
            self.waited_s += time.monotonic() - started

    def timed(self, seconds: float) -> None:
        """A step took so long: what is normal decides what is late."""
        self._step_times.append(seconds)

    def median_step(self) -> float:
        """Seconds; 0 before the first step."""
        return statistics.median(self._step_times) if self._step_times else 0.0

    def stall_limit(self) -> float:
        """Seconds of waiting after which peers are asked whether they are there: with the 2 s that they are given
        to answer, and the step after whose computing waiting begins, a frozen one is out within max(5 s, 10 median
        steps)."""
        return max(2.5, 9 * self.median_step() - 2.0)
