"""What a loss takes of all members: their rows in one tensor, for one that compares the samples of the whole batch
(`s.gather(embeddings)`), and their counts, for a mean over something else than samples (`s.mean(errors, over=n)`).

Every member computes the same loss L from the gathered rows Z. Backward sums the gradients by these rows over
members: member q, whose gradients the reducer multiplies by f_q (its share of the batch), passes on
(1 / f_q) sum_r f_r dL_r/dZ_q. So parameters behind the rows of a member get the gradient of the whole batch, and
parameters past the gathering (a temperature) the mean of equal gradients. The same holds for a loss of a member's own
rows against all; where losses are sums, f = 1.

(torch.distributed.nn.functional.all_gather leaves the weights to the caller, and needs equal parts.)
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any

import torch

from malletrain.elastic.comm.step_commit import StepCommitter
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients.reducer import GradientReducer


class BatchGather:
    """Gathers rows over the members of one session, within a step. `open_round`, `open_count`: called with the number
    of the gathering, or of the count, in this step before anything of it is summed: members that do something else
    then are found out. `sharded`: whether the script makes its loss for virtual shards."""

    def __init__(
        self,
        committer: StepCommitter,
        reducer: GradientReducer,
        open_round: Callable[[int], None],
        open_count: Callable[[int], None],
        *,
        sharded: bool,
    ) -> None:
        self._sharded = sharded
        self._committer = committer
        self._reducer = reducer
        self._open_round = open_round
        self._open_count = open_count
        self.calls = 0  #: in the step under way; set back by who begins one

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Session.gather`."""
        self._check_place("s.gather()")
        reducer = self._reducer
        rows = max(1, reducer.samples)  # a member without samples has one that does not count
        if tensor.ndim < 1 or tensor.shape[0] != rows:
            raise ElasticError(
                f"s.gather() takes one row for each of this worker's {rows} samples, not a tensor of shape "
                f"{tuple(tensor.shape)}: gather each view by itself, before they are put together"
            )
        if self._committer.world.size == 1:
            self.calls += 1
            return tensor.clone()
        kind = zlib.crc32(f"{tuple(tensor.shape[1:])} {tensor.dtype}".encode())
        table = self._table(self._open_round, [reducer.samples if reducer.weight else 0, kind], torch.int64)
        if reducer.aborted is not None:
            # The step is void: what is computed from this is not used.
            repeats = -(-reducer.batch // rows)
            return tensor.repeat(repeats, *[1] * (tensor.ndim - 1))[: reducer.batch]
        counts: list[int] = table[:, 0].tolist()
        if len(set(table[:, 1].tolist())) > 1:
            raise ElasticError(
                f"s.gather() was given rows of another shape or type on another worker than here, {tensor.dtype} of "
                f"shape {tuple(tensor.shape[1:])}: pad them to one shape"
            )
        out: torch.Tensor = _Gather.apply(tensor, self, counts)  # type: ignore[no-untyped-call]
        return out

    def mean(self, values: torch.Tensor, over: float) -> torch.Tensor:
        """See `Session.mean`. Member q's gradients count w_q of all W samples, so of its sum S_q and the count C of
        all members it passes on W / (w_q C) S_q."""
        self._check_place("s.mean()")
        if not 0.0 <= over < math.inf:
            raise ElasticError(f"s.mean(values, over={over}): a number of at least 0, of this worker's own part")
        reducer = self._reducer
        if reducer.samples and reducer.weight != reducer.samples:
            raise ElasticError("s.mean() says over how much its values are: leave weight= out of s.step()")
        weight = reducer.weight if reducer.mean else float(reducer.weight > 0)
        table = self._table(self._open_count, [weight, over if weight else 0.0], torch.float64)
        samples, count = (float(each) for each in table.sum(0))
        if not weight or not count:
            return values.sum() * 0.0
        return values.sum() * ((samples / weight if reducer.mean else 1.0) / count)

    def _table(self, open_round: Callable[[int], None], row: list[float], dtype: torch.dtype) -> torch.Tensor:
        """The rows of all members, by rank; of this one alone where the step is void."""
        self.calls += 1
        if self._committer.world.size > 1 and self._reducer.aborted is None:
            with self._reducer.holding():
                open_round(self.calls)
                self._committer.meet()
                return self._committer.rows_of_all(row, dtype)
        return torch.tensor([row], dtype=dtype)

    def _check_place(self, call: str) -> None:
        if self._sharded:
            raise ElasticError(f"{call} does not bear virtual_shards")
        if not self._reducer.is_armed:
            raise ElasticError(f"call {call} in a step, before its last backward(); for figures s.agree()")
        if self._reducer.accumulating:
            raise ElasticError(f"{call} inside step.accumulate(): workers may have different numbers of parts")

    def gather_rows(self, tensor: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """All members' rows, by rank. Each row has one writer, so the sum is exact."""
        start = sum(counts[: self._committer.world.rank])
        own = counts[self._committer.world.rank]
        table = torch.zeros(sum(counts), *tensor.shape[1:], dtype=_summable(tensor.dtype))
        table[start : start + own] = tensor[:own].cpu()
        return self._reducer.sum_in_step(table).to(tensor)

    def scatter_gradients(self, gradient: torch.Tensor, counts: list[int], rows: int) -> torch.Tensor:
        """The gradient by this member's rows, from those that each member has by all rows."""
        rank = self._committer.world.rank
        factor = self._reducer.factor_of(self._reducer.weight)
        table = gradient.cpu().to(_summable(gradient.dtype), copy=True).mul_(factor)
        self._reducer.sum_in_step(table)
        out = torch.zeros(rows, *gradient.shape[1:], dtype=gradient.dtype, device=gradient.device)
        start, own = sum(counts[:rank]), counts[rank]
        if own and factor:
            out[:own] = (table[start : start + own] / factor).to(out)
        return out


def _summable(dtype: torch.dtype) -> torch.dtype:
    """The type in which rows are summed over members."""
    if dtype in (torch.float16, torch.bfloat16):
        return torch.float32
    return torch.int64 if dtype == torch.bool else dtype


class _Gather(torch.autograd.Function):
    """The rows of all members."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, gather: BatchGather, counts: list[int]) -> torch.Tensor:
        ctx.gather, ctx.counts, ctx.rows = gather, counts, tensor.shape[0]
        return gather.gather_rows(tensor, counts)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return ctx.gather.scatter_gradients(gradients[0], ctx.counts, ctx.rows), None, None
