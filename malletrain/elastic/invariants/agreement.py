"""What members must agree on in each round: where they are, how they learn, and, now and then, every parameter.

Each member describes itself in a row (see `comm.step_commit`), and all judge the same table: members that differ are
named on every worker, before the round is committed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any

import torch

from malletrain.elastic.comm.step_commit import StepCommitter
from malletrain.elastic.errors import Aborted, ElasticError, LayoutChanged
from malletrain.elastic.invariants.digest import Digests, digest, digest_of_text, exceeds_rounding
from malletrain.elastic.state.training_state import Position

log = logging.getLogger("malletrain.elastic")

#: The columns of a row. VALUES is 0 where a member has not looked at them.
KIND, PLACE_EPOCH, PLACE_CURSOR, PLACE_PASS, LAYOUT, PLAIN, VALUES = range(7)
ROW_LENGTH = 7

#: Names that are compared one by one once a row differs, and tensors that are looked at element by element.
MAX_NAMES, MAX_TENSORS = 512, 8

#: All parameters are compared so often, and in the first step of an epoch.
STEPS_BETWEEN_DIGESTS = 64

#: What a script sets, in a row's plain values; the others are rates and the like.
SCRIPT_SETS = ("s.state", "data set")


class RoundKind(IntEnum):
    """What a round is for. The values travel."""

    STEP, EVALUATE, AGREE, FINISH, GATHER, COUNT = range(1, 7)


_CALLS = ("", "step", "evaluate", "agree", "finish", "gather", "mean")


class Agreement:
    """One member's rows, which `committer` exchanges, and its judgement of everybody's. `layout`: a digest of what is
    trained, if the script has changed that since the last step; else 0. `plain`: what the script keeps in `s.state`,
    learning rates and the like, by name. `digest_due`: whether all parameters are compared in the next step."""

    def __init__(
        self,
        committer: StepCommitter,
        position: Position,
        layout: Callable[[], int],
        plain: Callable[[], dict[str, Any]],
        values: Callable[[], Digests],
    ) -> None:
        self._committer, self._position = committer, position
        self._layout_of, self._plain_of, self._values_of = layout, plain, values
        self.digest_due = True
        self._digests = digest([])
        self._plain, self._plain_hash = dict[str, Any](), 0
        self._epoch_left = -1, self._digests  #: the last step of an epoch, and the digests after it
        self._save_held = False
        committer.judge_rows = self._judge

    def epoch_ended(self) -> None:
        """The last step of an epoch is made: what changes now, the script changes."""
        if self._committer.world.size > 1:
            self._epoch_left = self._position.step, self._values_of()

    def may_save(self, *, due: bool) -> bool:
        """In each committed round: whether a checkpoint that is or was `due` may be written, all being compared."""
        if due and not self._save_held:
            self.digest_due = self._save_held = True
        may = self._save_held and (not self.digest_due or self._committer.world.size == 1)
        self._save_held = self._save_held and not may
        return may

    def open(self, kind: RoundKind, place: int = 0) -> None:
        """Begin a round, the pass or call `place` of its kind: exchange rows. Raises `Aborted` if the group fails."""
        if self._committer.world.size > 1:
            self._committer.open_round(self._row(kind, place))

    def _row(self, kind: RoundKind, place: int) -> list[int]:
        row = [0] * ROW_LENGTH
        at = self._position
        row[KIND], row[PLACE_EPOCH], row[PLACE_CURSOR], row[PLACE_PASS] = kind, at.epoch, at.cursor, place
        if kind is RoundKind.STEP:
            row[LAYOUT] = self._layout_of()
            due = self.digest_due or not at.cursor or at.step % STEPS_BETWEEN_DIGESTS == 0
            if due and not place:
                self._digests, self.digest_due = self._values_of(), False
                row[VALUES] = self._digests.total
        elif kind is RoundKind.FINISH and self._epoch_left[0] == at.step:
            # As the last step left them: the main worker may have loaded its best parameters since, to save them.
            self._digests = self._epoch_left[1]
            row[VALUES] = self._digests.total
        if kind in (RoundKind.STEP, RoundKind.FINISH):
            plain = self._plain_of()
            if plain != self._plain:
                self._plain, self._plain_hash = plain, _hash(plain)
            row[PLAIN] = self._plain_hash
        return row

    def _judge(self, rows: list[list[int]]) -> None:
        """Raise `ElasticError` if members differ, `LayoutChanged` if all train other parameters than before."""
        first = rows[0]
        if not first[LAYOUT] and rows.count(first) == len(rows):
            return
        self._judge_places(rows)
        layouts = [row[LAYOUT] for row in rows]
        if odd := odd_ones(layouts):
            raise ElasticError(
                f"{self._names(odd)} froze or unfroze other parameters than the rest: let every worker do it at the "
                "same place, such as `if epoch == 3:`, and in Options(when_joining=...)"
            )
        if layouts[0]:
            raise LayoutChanged
        try:
            # First what may be the cause: a counter that sets the learning rate.
            if odd := odd_ones([row[PLAIN] for row in rows]):
                self._refuse_plain(odd)
            values = [row[VALUES] for row in rows]
            if 0 not in values and (odd := odd_ones(values)):
                self._judge_tensors(odd, at_end=rows[0][KIND] == RoundKind.FINISH)
        except ElasticError:
            # The process that ends first takes its connections with it: not before all have come to this verdict.
            # (Members at the same place have started the same sums; others may not be asked for one more.)
            with suppress(Aborted):
                self._committer.sum(torch.zeros(1, dtype=torch.int64))
            raise

    def _judge_places(self, rows: list[list[int]]) -> None:
        places = [tuple(row[: PLACE_PASS + 1]) for row in rows]
        odd = odd_ones(places)
        if odd:
            usual = next(place for rank, place in enumerate(places) if rank not in odd)
            raise ElasticError(
                f"{self._names(odd)} is at another place of the script than the others: {_place(*places[odd[0]])}, "
                f"and the others {_place(*usual)}. Every worker must make the same steps and calls of s: decide by "
                "s.agree(...), not by this worker's own loss or time, and call s.evaluate() outside `if s.is_main:`"
            )

    def _refuse_plain(self, odd: list[int]) -> None:
        """Name the first that differs. Every member takes part."""
        names = sorted(self._plain, key=lambda name: (not name.startswith(SCRIPT_SETS), name))[:MAX_NAMES]
        hashes = [_hash({name: self._plain[name]}) for name in names]
        columns = self._committer.rows_of_all(hashes + [0] * (MAX_NAMES - len(hashes))).T.tolist()
        place = next((place for place, column in enumerate(columns) if odd_ones(column)), MAX_NAMES)
        name = names[place] if place < len(names) else "number of values"
        what, cure = "learns with", "set it from s.steps_done, or track the scheduler (s.track(scheduler=scheduler))"
        if name.startswith(SCRIPT_SETS):
            what, cure = "has", "a worker sets it by its own samples or count: decide by s.agree(...)"
        value = self._plain.get(name)
        here = f" (here {value:.10g})" if isinstance(value, int | float) else ""
        raise ElasticError(f"{self._names(odd)} {what} another {name} than the others{here}: {cure}")

    def _judge_tensors(self, odd: list[int], *, at_end: bool) -> None:
        """Find the first tensor that differs by more than rounding. Every member takes part."""
        digests, who = self._digests, self._names(odd)
        table = self._committer.rows_of_all(digests.sums.tolist())
        different = [place for place in range(len(digests.names)) if len(set(table[:, place].tolist())) > 1]
        for place in different[:MAX_TENSORS]:
            name, tensor = digests.names[place], digests.tensors[place].detach()
            mean = tensor.to(torch.float64, copy=True).contiguous().cpu()
            self._committer.sum(mean)
            mean /= self._committer.world.size
            changed = at_end and digest([(name, tensor)]).sums[0] != digests.sums[place]
            seen = torch.tensor([exceeds_rounding(tensor.cpu(), mean), changed], dtype=torch.int64)
            self._committer.sum(seen)
            if seen[0] and not seen[1]:
                after = f"after step {self._position.step} {who} has another {name} than the others"
                raise ElasticError(f"{after}: {_cure(name)}. `malletrain check` looks for the line")
        names = ", ".join(digests.names[place] for place in different[:1])
        log.warning("%s has %s equal to the others' only up to rounding: other processors?", who, names)

    def _names(self, ranks: Sequence[int]) -> str:
        names = list(dict.fromkeys(self._committer.world.worker_of(rank) for rank in ranks))
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def odd_ones(values: Sequence[Any]) -> list[int]:
    """The ranks whose value is not that of most; of two values as frequent, not that of the lowest rank."""
    usual = Counter(values).most_common(1)[0][0]
    return [rank for rank, value in enumerate(values) if value != usual]


def _place(kind: int, epoch: int, cursor: int, _: int) -> str:
    where = "" if kind == RoundKind.FINISH else f" in epoch {epoch} after {cursor} samples"
    return f"in s.{_CALLS[kind]}(){where}"


def _cure(name: str) -> str:
    if name.startswith(("buffer ", "frozen ")):
        return "a worker changes it by its own samples: change it by those of all, s.gather(rows) before backward()"
    return (
        "something changes it on one worker and not on another: what is kept from step to step belongs into "
        's.state["name"], what belongs to a step into its body'
    )


def _hash(values: dict[str, Any]) -> int:
    """A hash of named plain values; numbers count with twelve digits: processors differ in a cosine's last bits."""
    return digest_of_text("\n".join(f"{name}={_text(value)}" for name, value in sorted(values.items())))


def _text(value: Any) -> str:
    if isinstance(value, float | bool):
        return f"{value:.12g}"
    if isinstance(value, list | tuple):
        return ",".join(_text(each) for each in value)
    return repr(value)
