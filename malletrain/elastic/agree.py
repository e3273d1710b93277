"""Values that all members agree on, outside steps."""

from __future__ import annotations

from typing import Any, Literal

import torch

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.guards.agreement import RoundKind
from malletrain.elastic.runtime import Runtime

#: How one value is made of those of all members.
How = Literal["mean", "sum", "min", "max", "main", "all", "any"]


def agree(runtime: Runtime, value: float, how: How) -> float | bool:
    """See `Session.agree`."""
    _check_place(runtime)
    number = float(value)
    world = runtime.committer.world

    def table() -> torch.Tensor:
        """A row for values and one for who has one, with a column a member."""
        both = torch.zeros(2, runtime.committer.world.size, dtype=torch.float64)
        both[0, runtime.committer.world.rank], both[1, runtime.committer.world.rank] = number, 1.0
        return both

    if world.size == 1:
        values = torch.tensor([number], dtype=torch.float64)
    else:
        summed = _sum(runtime, table)
        values = summed[0][summed[1] > 0]
    if how == "main":
        return float(values[0])
    if how == "all":
        return bool((values != 0).all())
    if how == "any":
        return bool((values != 0).any())
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
        raise ElasticError("call s.agree() and s.all_reduce() after the `with s.step():` block, not inside it")


def _sum(runtime: Runtime, make_table: Any) -> torch.Tensor:
    if runtime.trial_member is not None:
        return runtime.trial_member.sum(make_table())
    runtime.calls += 1
    return runtime.lifecycle.sum_of_all(make_table, RoundKind.AGREE, runtime.calls)
