"""Compares between members what their forward passes compute with, and says who differs and where."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import torch

from malletrain.elastic.comm.step_commit import StepCommitter
from malletrain.elastic.guards.objections import Objections
from malletrain.elastic.guards.operations import number_table
from malletrain.elastic.guards.operations.forward_numbers import VALUES, ForwardNumbers

UNLIKE = (
    "a number that workers have unlike, and that may be read from their own samples by .item() (then decide by "
    's.agree(...) after the block of the step before) or be counted (then keep it in s.state["name"])'
)

UNLIKE_TENSOR = (
    "a tensor that workers have unlike, since each makes it of what it has seen itself (make it by s.gather(...) or "
    's.agree(...), or keep it in s.state["name"])'
)

#: Values of tensors that differ by less, as a part of them, come from other processors.
ROUNDING = 1e-5

_CURE = (
    'if it follows from what the script counts or keeps, keep that in s.state["name"], or compute it from '
    "s.steps_done or the epoch: a worker that joins begins with the script's first value"
)


class ForwardAgreement:
    """One member's judgement of everybody's forward pass.

    Args:
        committer: sums tables over members.
        objections: where a difference goes.
        source: returns what the present step computes with; None where that is not looked at.

    Attributes:
        found: numbers that differ and may follow from a worker's own samples, with the script's line.
    """

    def __init__(
        self, committer: StepCommitter, objections: Objections, source: Callable[[], ForwardNumbers | None]
    ) -> None:
        self._committer = committer
        self._objections = objections
        self._source = source
        self.found: dict[str, str] = {}
        self._own: ForwardNumbers | None = None

    def digest(self) -> int:
        """Of the present step; 0 if there is nothing to compare."""
        own = self._source()
        digest = 0 if own is None else own.digest
        self._own = own if digest else None
        return digest

    def judge(self, digests: Sequence[int]) -> None:
        """Compare; `digests` are those of all members. Every member takes part.

        Raises:
            ElasticError: members differ, and their samples do not explain it.
        """
        if len({digest for digest in digests if digest}) < 2:
            return
        ranks = [rank for rank, digest in enumerate(digests) if digest]
        table = torch.zeros(len(digests), number_table.ROW_LENGTH, dtype=torch.int64)
        if self._own is not None:
            table[self._committer.world.rank] = torch.tensor(number_table.row_of(self._own))
        self._sum(table)
        rows = [table[rank].tolist() for rank in ranks]
        slot = number_table.odd_number(rows)
        if slot is not None:
            self._object_to_number(ranks, slot, may_follow=number_table.have_read(rows))
        elif number_table.computes_otherwise(rows):
            self._object_to_lines(len(ranks))

    def _object_to_number(self, ranks: Sequence[int], slot: int, *, may_follow: bool) -> None:
        world = self._committer.world
        name, value = ("", math.nan) if self._own is None else number_table.number_at(self._own, slot)
        table = torch.zeros(world.size, 2, dtype=torch.float64)
        if name:
            table[world.rank] = torch.tensor([1.0, value], dtype=torch.float64)
        self._sum(table)
        seen = {rank: f"{float(table[rank, 1]):.10g}" for rank in ranks if table[rank, 0]}
        usual = Counter(seen.values()).most_common(1)[0][0]
        odd = next(rank for rank, shown in seen.items() if shown != usual)
        other = next(rank for rank, shown in seen.items() if shown == usual)
        line, operation, *_ = name.split() if name else ("", "")
        if operation == VALUES:
            values = [float(table[rank, 1]) for rank in seen]
            if not all(math.isclose(value, values[0], rel_tol=ROUNDING) for value in values):
                self.found.setdefault(UNLIKE_TENSOR, line)
            return
        called = f" in {operation.strip('_')}()" if operation != "scalar" else ", kept in a tensor,"
        where = f"{called} ({line})" if line else ""
        said = ", ".join(f"{world.worker_of(rank)} has {seen[rank]}" for rank in (odd, other))
        if may_follow:
            self.found.setdefault(f"{UNLIKE}: {said}", line)
            return
        self._objections.raise_or_warn(
            f"{world.worker_of(odd)} computes with another number{where} than the others ({said}): {_CURE}",
            f"number {line}",
        )

    def _object_to_lines(self, members: int) -> None:
        own = self._own
        counts = torch.tensor([0] * number_table.LINES if own is None else number_table.lines_of(own))
        self._sum(counts)
        unlike = [place for place, count in enumerate(counts.tolist()) if 0 < count < members]
        line = "" if own is None else number_table.line_at(own, unlike)
        where = f"what {line} computes here others do not" if line else "others compute what this one does not"
        self._objections.raise_or_warn(
            f"workers compute different things in a step: {where}, and nothing of their samples decides it. Is the "
            f"model in train() mode on all of them? Else, {_CURE}",
            line,
        )

    def _sum(self, table: torch.Tensor) -> None:
        self._committer.wait(self._committer.start(table))
