"""Values that all members agree on, outside steps."""

from __future__ import annotations

from typing import Any, Literal

import torch

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.invariants.agreement import RoundKind
from malletrain.elastic.runtime import Runtime

#: How one value is made of those of all members.
How = Literal["mean", "sum", "min", "max", "main", "all", "any"]


def agree(runtime: Runtime, value: float, how: How) -> float | bool:
    """See `Session.agree`."""
    _check_place(runtime)
    number = float(value)
    world = runtime.committer.world

    def table() -> torch.Tensor:
        """A row for values, one for who has one, and one for weights, with a column a member."""
        rows = torch.zeros(3, runtime.committer.world.size, dtype=torch.float64)
        rows[:, runtime.committer.world.rank] = torch.tensor([number, 1.0, runtime.weight], dtype=torch.float64)
        return rows

    if world.size == 1:
        values, weights = torch.tensor([number], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    else:
        summed = _sum(runtime, table)
        values, weights = summed[::2, summed[1] > 0]
    if how == "main":
        return float(values[0])
    if how == "all":
        return bool((values != 0).all())
    if how == "any":
        return bool((values != 0).any())
    if how == "mean" and weights.any():
        return float((weights * values).sum() / weights.sum())
    if how in ("mean", "sum", "min", "max"):
        return float(getattr(values, how)())
    raise ElasticError(f"agree(how={how!r}): one of mean, sum, min, max, main, all, any")


def all_reduce(runtime: Runtime, tensor: torch.Tensor) -> torch.Tensor:
    """See `Session.all_reduce`."""
    _check_place(runtime)
    if runtime.committer.world.size == 1:
        return tensor.clone()
    return _sum(runtime, lambda: tensor.detach().cpu().contiguous().clone()).to(tensor.device)


def _check_place(runtime: Runtime) -> None:
    if runtime.share is not None:
        raise ElasticError("call s.agree() after the `with s.step():` block, not inside it")


def _sum(runtime: Runtime, make_table: Any) -> torch.Tensor:
    runtime.calls += 1
    return runtime.lifecycle.sum_of_all(make_table, RoundKind.AGREE, runtime.calls)
