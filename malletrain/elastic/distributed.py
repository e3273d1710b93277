"""Stands in for torch.distributed in a script that uses `elastic.ddp`:

    from malletrain.elastic import distributed as dist

What can be kept is here. Any other name raises an error that says what to use instead: workers come and go between
two calls, so a call that waits for all of them would wait for some that are not there yet.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch.distributed import ReduceOp

from malletrain.elastic.adapters.ddp import ElasticLoader, latest_loader
from malletrain.elastic.errors import ElasticError

__all__ = [
    "ReduceOp", "all_reduce", "destroy_process_group", "get_rank", "get_world_size", "init_process_group",
    "is_available", "is_initialized",
]  # fmt: skip


def init_process_group(*args: Any, **more: Any) -> None:
    """Does nothing: the session makes its groups as training begins and whenever workers come or go."""


def destroy_process_group(group: None = None) -> None:
    """End the training, as `Session.finish` does."""
    _loader("destroy_process_group").session.finish()


def is_available() -> bool:
    """True."""
    return True


def is_initialized() -> bool:
    """Whether `elastic.ddp` has been called."""
    return latest_loader() is not None


def get_rank(group: None = None) -> int:
    """This worker's rank now, 0 for the main worker. Ask wherever it is needed: it changes as workers leave.

    Raises:
        ElasticError: `elastic.ddp` has not been called.
    """
    return _loader("get_rank").rank


def get_world_size(group: None = None) -> int:
    """How many processes train now.

    Raises:
        ElasticError: `elastic.ddp` has not been called.
    """
    return _loader("get_world_size").session.size


def all_reduce(tensor: torch.Tensor, op: Any = ReduceOp.SUM, group: None = None, async_op: bool = False) -> None:
    """Replace a tensor by its sum or mean over all workers. Call it after the loop over batches, on every worker.

    Raises:
        ElasticError: it is called in the loop, or for another operation.
    """
    loader = _loader("all_reduce")
    if loader.in_body:
        raise ElasticError(
            "dist.all_reduce belongs after the loop over batches: within it the step may have to be repeated"
        )
    if op not in (ReduceOp.SUM, ReduceOp.AVG) or async_op:
        raise ElasticError("dist.all_reduce sums or averages, and waits: for others use s.agree(value, 'max')")
    session = loader.session
    total = session.agree(tensor.reshape(-1), "sum").reshape(tensor.shape)
    tensor.copy_(total / session.size if op == ReduceOp.AVG else total)


def _loader(name: str) -> ElasticLoader:
    loader = latest_loader()
    if loader is None:
        raise ElasticError(
            f"dist.{name}() before elastic.ddp(model, optimizer, loader): who trains is not settled, and changes "
            "later: ask where it is needed, `if dist.get_rank() == 0:`"
        )
    return loader


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise ElasticError(
        f"dist.{name} cannot be kept, because workers come and go: s.state gives workers that join what the others "
        "have, s.gather(rows) the rows of all, s.agree(value) one value (docs/how-to/adapters.md)"
    )
