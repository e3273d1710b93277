"""What all members compute together outside steps: values that they agree on, and means over a data set.

For a mean, the data set is cut into chunks. In each commit round every member fills the rows of its chunks in a
table, which is then summed over members. Each row has one writer, so the sum is exact; the rows are added up in the
order of chunks: the result is bit-identical at every size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch

from malletrain.elastic.data.prefetch import SampleLoader
from malletrain.elastic.data.random_seeds import kept_random_state
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.invariants.agreement import RoundKind
from malletrain.elastic.runtime import Runtime

#: How one value is made of those of all members.
How = Literal["mean", "sum", "min", "max", "main", "all", "any"]

#: Chunks of one round, which are computed again after a fault: as many at every size, so they are the same ones.
CHUNKS_PER_ROUND = 64


def evaluate(
    runtime: Runtime, loader: SampleLoader, metrics: Callable[[Any], Mapping[str, Any]], batch_size: int
) -> dict[str, float]:
    """See `Session.evaluate`."""
    length = len(loader.dataset)
    if length == 0:
        raise ElasticError("evaluate(): the data set is empty")
    runtime.end_step_for("evaluate")
    starts, names, rows = list(range(0, length, batch_size)), list[str](), list[list[float]]()
    # Each by itself: a script may keep a part in eval mode, such as a frozen backbone.
    training = [(module, module.training) for module in runtime.model.modules()]
    runtime.model.eval()
    try:
        with torch.no_grad():
            while len(rows) < len(starts):
                runtime.lifecycle.between_steps(in_evaluation=True)
                many = min(len(starts) - len(rows), CHUNKS_PER_ROUND)
                chunks = starts[len(rows) : len(rows) + many]
                table, names = _fill(runtime, loader, metrics, batch_size, chunks)
                summed = runtime.lifecycle.sum(table, RoundKind.EVALUATE, len(rows))
                if summed is not None:
                    rows.extend(summed.tolist())
    finally:
        for module, was in training:
            module.training = was
    return {name: sum(row[column] for row in rows) / length for column, name in enumerate(names)}


def _fill(
    runtime: Runtime,
    loader: SampleLoader,
    metrics: Callable[[Any], Mapping[str, Any]],
    batch_size: int,
    starts: list[int],
) -> tuple[torch.Tensor, list[str]]:
    """A table with this member's rows, and the names of its columns."""
    world, length = runtime.committer.world, len(loader.dataset)
    found: dict[int, dict[str, float]] = {}
    # Every member computes at least one chunk, to get the names of the metrics.
    for number in range(world.rank, len(starts), world.size) or [0]:
        begin = starts[number]
        with kept_random_state():
            batch = loader.load(-1, range(begin, min(begin + batch_size, length)))
        found[number] = {name: float(value) for name, value in metrics(batch).items()}
    names = sorted(next(iter(found.values())))
    table = torch.zeros(len(starts), len(names), dtype=torch.float64)
    for number, values in found.items():
        if number % world.size == world.rank:
            table[number] = torch.tensor([values[name] for name in names], dtype=torch.float64)
    return table, names


def agree(runtime: Runtime, value: float, how: How) -> float | bool:
    """See `Session.agree`."""

    def table() -> torch.Tensor:
        """A row for values, and one for weights, with a column a member."""
        world = runtime.committer.world
        rows = torch.zeros(2, world.size, dtype=torch.float64)
        rows[:, world.rank] = torch.tensor([value, runtime.reducer.weight], dtype=torch.float64)
        return rows

    values, weights = _sum(runtime, table)
    if how == "main":
        return float(values[0])
    if how in ("all", "any"):
        return bool(getattr(values != 0, how)())
    if how == "mean" and weights.any():
        return float((weights * values).sum() / weights.sum())
    if how in ("mean", "sum", "min", "max"):
        return float(getattr(values, how)())
    raise ElasticError(f"agree(how={how!r}): one of mean, sum, min, max, main, all, any")


def all_reduce(runtime: Runtime, tensor: torch.Tensor) -> torch.Tensor:
    """See `Session.agree`, of a tensor."""
    return _sum(runtime, lambda: tensor.detach().cpu().contiguous().clone()).to(tensor.device)


def _sum(runtime: Runtime, make_table: Callable[[], torch.Tensor]) -> torch.Tensor:
    runtime.end_step_for("agree")
    runtime.join()
    if runtime.committer.world.size == 1:
        return make_table()
    runtime.calls += 1
    return runtime.lifecycle.sum_of_all(make_table, RoundKind.AGREE, runtime.calls)
