"""What members must agree on in each round: where they are, how they learn, and, now and then, every parameter.

Each member describes itself in a row (see `comm.step_commit`), and all judge the same table: members that differ are
named on every worker, before the round is committed.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch

from malletrain.elastic.comm.step_commit import StepCommitter
from malletrain.elastic.errors import Aborted, ElasticError, LayoutChanged
from malletrain.elastic.invariants.digest import Digests, DigestTimer, digest_of_text, exceeds_rounding
from malletrain.elastic.state.training_state import Position

log = logging.getLogger("malletrain.elastic")

#: The columns of a row. A column that is 0 is not compared.
KIND, PLACE_EPOCH, PLACE_CURSOR, PLACE_PASS, LAYOUT, RATES, STATE, VALUES, DIGEST_NEXT = range(9)
ROW_LENGTH = 9

#: Names that are compared one by one once a row differs, and tensors that are looked at element by element.
MAX_NAMES, MAX_TENSORS = 512, 8

#: How a value is shown that is no number.
_NO_NUMBER = "another value"

#: So few elements of a replica that differ from all others' are taken for damage: sums of gradients are the same on
#: all members, so an element that memory or a wire has changed stays the only one. A script changes whole tensors.
MAX_DAMAGED_ELEMENTS = 16

_RATES_CURE = "set it from s.steps_done or s.epoch, or track the scheduler: s.track(scheduler=scheduler)"
_STATE_CURE = "a worker sets it by its own samples or count: decide by s.agree(...), or set it from s.steps_done"


class RoundKind(IntEnum):
    """What a round is for. The values travel."""

    STEP = 1
    EVALUATE = 2
    AGREE = 3
    FINISH = 4
    GATHER = 5
    COUNT = 6


_CALLS = {
    RoundKind.STEP: "s.step()",
    RoundKind.EVALUATE: "s.evaluate()",
    RoundKind.AGREE: "s.agree()",
    RoundKind.FINISH: "s.finish()",
    RoundKind.GATHER: "s.gather()",
    RoundKind.COUNT: "s.mean()",
}


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a row's values come from.

    Attributes:
        layout: of parameters that the script has frozen or unfrozen since the last step; 0 if it has not.
        rates: learning rates and the like, by name.
        state: what the script keeps in `s.state`, plain values by name.
        values: parameters and tracked state.
    """

    layout: Callable[[], int]
    rates: Callable[[], dict[str, Any]]
    state: Callable[[], dict[str, Any]]
    values: Callable[[], Digests]


class Agreement:
    """One member's rows, and its judgement of everybody's.

    Args:
        committer: exchanges the rows.
        position: of the training.
        sources: of what is compared.

    Attributes:
        leave: called with why, on a member whose replica is damaged: it is to leave its world, without a further step
            and without giving its state to others.
    """

    def __init__(self, committer: StepCommitter, position: Position, sources: Sources) -> None:
        self._committer = committer
        self._position = position
        self._sources = sources
        self._timer = DigestTimer()
        self._digest_due = True
        self._digests: Digests | None = None
        self._rates, self._state = _Hashed(), _Hashed()
        self._epoch_left: tuple[int, dict[str, int]] = -1, {}  #: the last step of an epoch, and the digests after it
        self._save_held = self._save_compared = False
        self._damaged: set[str] = set()  #: tensors of which a replica was damaged before
        self.leave: Callable[[str], None] = lambda _: None
        committer.judge_rows = self._judge

    def want_digest(self) -> None:
        """Compare all parameters in the next step."""
        self._digest_due = True

    def epoch_ended(self) -> None:
        """The last step of an epoch is made: what changes now, the script changes."""
        if self._committer.world.size > 1:
            self._epoch_left = self._position.step, self._sources.values().by_name()

    def hold_save(self) -> None:
        """A checkpoint is due: compare all parameters before it is written (`release_save`)."""
        if not self._save_held:
            self._digest_due = self._save_held = True
            self._save_compared = False

    def release_save(self) -> bool:
        """Whether a checkpoint that was held may be written now. Call it when a round is committed."""
        if self._save_held and (self._save_compared or self._committer.world.size == 1):
            self._save_held = False
            return True
        return False

    def open(self, kind: RoundKind, place: int = 0) -> None:
        """Begin a round, or the next pass of a step: exchange rows.

        Args:
            place: the pass of a step, or the number of a round of this kind.

        Raises:
            Aborted: the group has failed.
        """
        if self._committer.world.size > 1:
            self._committer.open_round(self._row(kind, place))

    def _row(self, kind: RoundKind, place: int) -> list[int]:
        row = [0] * ROW_LENGTH
        at = self._position
        row[KIND], row[PLACE_EPOCH], row[PLACE_CURSOR], row[PLACE_PASS] = kind, at.epoch + 1, at.cursor + 1, place + 1
        if kind not in (RoundKind.STEP, RoundKind.FINISH):
            return row
        if kind is RoundKind.STEP:
            row[LAYOUT] = self._sources.layout()
        row[RATES], row[STATE] = self._rates.of(self._sources.rates()), self._state.of(self._sources.state())
        due, self._digest_due = self._digest_due, False
        if due and not place:
            with self._timer:
                self._digests = self._sources.values()
            row[VALUES], self._save_compared = self._digests.total, True
        row[DIGEST_NEXT] = int(self._committer.world.rank == 0 and self._timer.is_due())
        return row

    # --- judging ----------------------------------------------------------------------------------------------

    def _judge(self, rows: list[list[int]]) -> None:
        """Raises:
        LayoutChanged: all members train other parameters than before.
        Aborted: one member's replica is damaged, and it leaves; the others repeat the step.
        ElasticError: members differ.
        """
        first = rows[0]
        if first[KIND] and not first[LAYOUT] and not first[DIGEST_NEXT] and rows.count(first) == len(rows):
            return
        self._judge_places(rows)
        layouts = {row[LAYOUT] for row in rows if row[KIND]}
        if layouts != {0}:
            if len(layouts) == 1 and all(row[KIND] for row in rows):
                raise LayoutChanged
            who = self._names(odd_ones([row[LAYOUT] + 1 if row[KIND] else 0 for row in rows]))
            raise ElasticError(
                f"{who} froze or unfroze other parameters than the rest: let every worker do it at the same place, "
                "for example at `if epoch == 3:` in `for epoch in s.epochs(...)`, and in Options(when_joining=...)"
            )
        try:
            self._judge_values(rows)
        except ElasticError:
            # The process that ends first takes its connections with it: not before all have come to this verdict.
            # (Members at the same place have started the same sums; others may not be asked for one more.)
            with suppress(Aborted):
                self._sum(torch.zeros(1, dtype=torch.int64))
            raise
        self._digest_due = self._digest_due or any(row[DIGEST_NEXT] for row in rows)

    def _judge_values(self, rows: list[list[int]]) -> None:
        # First what may be the cause: a counter that sets the learning rate.
        self._judge_named(rows, STATE, self._state.values, "has another", _STATE_CURE)
        self._judge_named(rows, RATES, self._rates.values, "learns with another", _RATES_CURE)
        odd = odd_ones([row[VALUES] for row in rows])
        if odd:
            self._judge_tensors(odd, at_end=rows[odd[0]][KIND] == RoundKind.FINISH)

    def _judge_places(self, rows: list[list[int]]) -> None:
        places = [tuple(row[: PLACE_PASS + 1]) if row[KIND] else 0 for row in rows]
        odd = odd_ones(places)
        if not odd:
            return
        usual = next(place for rank, place in enumerate(places) if place and rank not in odd)
        theirs = places[odd[0]]
        raise ElasticError(
            f"{self._names(odd)} is at another place of the script than the others: {_place(theirs)}, and the others "
            f"{_place(usual)}. Every worker must make the same steps and calls of s: decide by s.agree(...), not by "
            "this worker's own loss or time, and call s.evaluate() outside `if s.is_main:`"
        )

    def _judge_named(self, rows: list[list[int]], column: int, values: dict[str, Any], what: str, cure: str) -> None:
        odd = odd_ones([row[column] for row in rows])
        if odd:
            name, own = self._locate(values)
            said = ", ".join(f"{who} has {value}" for who, value in own.items())
            said = f" ({said})" if set(own.values()) != {_NO_NUMBER} else ""
            raise ElasticError(f"{self._names(odd)} {what} {name} than the others{said}: {cure}")

    def _judge_tensors(self, odd: list[int], *, at_end: bool) -> None:
        """Find the first tensor that differs by more than rounding. Every member takes part.

        Args:
            at_end: whether this is in `s.finish()`: then the main worker may have loaded its best parameters, or
                merged some, to save them, which is no fault. It is one where no member has changed the tensor since
                the last step.
        """
        digests, world = self._digests, self._committer.world
        if digests is None:
            raise ElasticError("members compare parameters that this one has not looked at: a fault of malletrain")
        table = torch.zeros(world.size, len(digests.names), dtype=torch.int64)
        table[world.rank] = digests.sums
        self._sum(table)
        different = [place for place in range(len(digests.names)) if len(set(table[:, place].tolist())) > 1]
        beyond = torch.zeros(MAX_TENSORS, dtype=torch.int64)
        unlike = torch.zeros(2, dtype=torch.int64)  # elements; members that have seen the tensor damaged before
        for number, place in enumerate(different[:MAX_TENSORS]):
            tensor = digests.tensors[place].detach()
            mean = tensor.to(torch.float64, copy=True).contiguous().cpu()
            self._sum(mean)
            mean /= world.size
            beyond[number] = exceeds_rounding(tensor.cpu(), mean)
            unlike[0] += int((~torch.isclose(tensor.cpu().to(mean), mean, rtol=1e-12, atol=0.0)).sum())
        unlike[1] = digests.names[different[0]] in self._damaged
        self._sum(beyond)
        self._sum(unlike)
        who, place = self._names(odd), different[int((beyond > 0).to(torch.int64).argmax())]
        name = digests.names[place]
        if not beyond.any():
            log.warning("%s has %s equal to the others' only up to rounding: other processors?", who, name)
            return
        if at_end and self._is_changed_since(name, int(digests.sums[place])):
            log.warning(
                "%s ends with other parameters than the others, first %s: right if it has changed them since the "
                "last step to save them; else something changes them on one worker and not on another",
                *(who, name),
            )
            return
        of_buffer = name.startswith(("buffer ", "frozen "))  # which scripts change more often than memory fails
        if len(different) == 1 and not of_buffer and self._is_damage(odd, *unlike.tolist()):
            self._set_apart(odd[0], name)
        cure = (
            "a worker changes it by its own samples. Change it by those of all, `rows = s.gather(rows)` before the "
            "last backward()"
            if of_buffer
            else "something changes it on one worker and not on another. What the script keeps from step to step and "
            "changes parameters or gradients with (a count, earlier norms or losses, slow weights, a generator) "
            'belongs into s.state["name"], which a worker that joins is given; what belongs to a step goes after '
            "backward() inside `with s.step():`"
        )
        raise ElasticError(
            f"after step {self._position.step} {who} has another {name} than the others: {cure}. `malletrain check` "
            "looks for the line"
        )

    def _is_changed_since(self, name: str, digest: int) -> bool:
        """Whether a tensor may have been changed on any member since the last step. Every member takes part."""
        step, left = self._epoch_left
        changed = torch.tensor([step != self._position.step or left.get(name) != digest], dtype=torch.int64)
        self._sum(changed)
        return bool(changed.any())

    def _is_damage(self, odd: list[int], elements: int, seen_before: int) -> bool:
        """Whether one member's replica was changed by no script: the first time, in few elements, against a majority.

        Args:
            elements: that differ from the mean, over all members.
            seen_before: members that have seen this tensor damaged already: then a script does it.
        """
        world = self._committer.world
        alone = len(odd) == 1 and world.size > 2 and world.local_size == 1
        return alone and 0 < elements <= MAX_DAMAGED_ELEMENTS * world.size and not seen_before

    def _set_apart(self, rank: int, name: str) -> None:
        """The member of the damaged replica leaves; a newcomer gets a sound one from the others.

        Raises:
            Aborted: always.
        """
        self._damaged.add(name)
        why = (
            f"after step {self._position.step} {self._names([rank])} has few elements of {name} unlike the others', "
            "as damaged memory leaves it: it leaves, and the others go on"
        )
        log.warning("%s", why)
        if self._committer.world.rank == rank:
            self.leave(why)
        raise Aborted(why)

    def _sum(self, table: torch.Tensor) -> None:
        self._committer.wait(self._committer.start(table))

    def _locate(self, values: dict[str, Any]) -> tuple[str, dict[str, str]]:
        """The first name whose value differs, and the values that two members have. Every member takes part."""
        world = self._committer.world
        names = sorted(values)[:MAX_NAMES]
        hashes = torch.zeros(world.size, MAX_NAMES, dtype=torch.int64)
        numbers = torch.zeros(world.size, MAX_NAMES, dtype=torch.float64)
        for place, name in enumerate(names):
            value = values[name]
            hashes[world.rank, place] = _hash({name: value})
            numbers[world.rank, place] = float(value) if isinstance(value, int | float) else float("nan")
        self._sum(hashes)
        self._sum(numbers)
        columns: list[list[int]] = hashes.T.tolist()
        for place, name in enumerate(names):
            odd = odd_ones(columns[place])
            if odd:
                other = next(rank for rank in range(world.size) if rank not in odd)
                shown = {rank: float(numbers[rank, place]) for rank in (odd[0], other)}
                return name, {
                    world.worker_of(rank): _NO_NUMBER if math.isnan(value) else f"{value:.10g}"
                    for rank, value in shown.items()
                }
        return "value", {}

    def _names(self, ranks: Sequence[int]) -> str:
        names = list(dict.fromkeys(self._committer.world.worker_of(rank) for rank in ranks))
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


class _Hashed:
    """Named values as they are now, and their hash, which is made anew only where one has changed."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._hash = 0

    def of(self, values: dict[str, Any]) -> int:
        if values != self.values:
            self.values, self._hash = values, _hash(values)
        return self._hash


def odd_ones(values: Sequence[Any]) -> list[int]:
    """The ranks whose value is not that of most; zeros are not compared. Of two equally frequent values the one of
    the lowest rank is the usual one."""
    known = [value for value in values if value]
    if len(set(known)) < 2:
        return []
    usual = Counter(known).most_common(1)[0][0]
    return [rank for rank, value in enumerate(values) if value and value != usual]


def _place(place: Any) -> str:
    kind, epoch, cursor, _ = place
    where = "" if kind in (RoundKind.FINISH,) else f" in epoch {epoch - 1} after {cursor - 1} samples"
    return f"in {_CALLS[RoundKind(kind)]}{where}"


def _hash(values: dict[str, Any]) -> int:
    """A positive 62-bit hash of named plain values; 0 of none. Numbers count with twelve digits: processors differ in
    the last bits of a cosine."""
    if not values:
        return 0
    return digest_of_text("\n".join(f"{name}={_text(value)}" for name, value in sorted(values.items())))


def _text(value: Any) -> str:
    if isinstance(value, float | bool):
        return f"{value:.12g}"
    if isinstance(value, list | tuple):
        return ",".join(_text(each) for each in value)
    return repr(value)
