"""A mean over a data set, by all members together, the same to the last bit at every size.

The data set is cut into chunks. In one round each member fills in its chunks' rows of a table that is then summed;
every row has one writer, so the sum is exact, and the final figure is added up in the order of the chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from malletrain.elastic.data.sample_loader import SampleLoader
from malletrain.elastic.errors import Aborted, ElasticError

if TYPE_CHECKING:
    from malletrain.elastic.session import Session

#: Chunks of one round for each member: after a fault, at most these are worked out again.
CHUNKS_A_MEMBER = 8


def evaluate(
    session: Session, loader: SampleLoader, metrics: Callable[[Any], Mapping[str, Any]], batch_size: int
) -> dict[str, float]:
    """See `Session.evaluate`."""
    length = len(loader.dataset)
    if length == 0:
        raise ElasticError("evaluate(): the data set is empty")
    starts = list(range(0, length, batch_size))
    names: list[str] = []
    rows: list[list[float]] = []
    was_training = session.model.training
    session.model.eval()
    try:
        with torch.no_grad():
            while len(rows) < len(starts):
                session._lifecycle.between_rounds()
                many = min(len(starts) - len(rows), CHUNKS_A_MEMBER * ROUND_MEMBERS)
                table, names = _fill(
                    session, loader, metrics, batch_size, starts[len(rows) : len(rows) + many], names
                )
                summed = session._lifecycle.sum(table)
                if summed is not None:
                    rows.extend(summed.tolist())
    finally:
        session.model.train(was_training)
    return {name: sum(row[column] for row in rows) / length for column, name in enumerate(names)}


#: Commit rounds are cut alike at every size, so that a member of another world can take part in the next.
ROUND_MEMBERS = 8


def _fill(
    session: Session,
    loader: SampleLoader,
    metrics: Callable[[Any], Mapping[str, Any]],
    batch_size: int,
    starts: list[int],
    names: list[str],
) -> tuple[torch.Tensor, list[str]]:
    world = session._committer.world
    table: torch.Tensor | None = None
    length = len(loader.dataset)
    # Every member works out at least one chunk, to know the names of the figures. Where the model is sharded over a
    # node, its processes must call it equally often.
    mine = list(range(world.rank, len(starts), world.size))
    often = -(-len(starts) // world.size) if session._sharded else 1
    mine += [0] * (often - len(mine))
    for number in mine:
        begin = starts[number]
        values = metrics(loader.load(-1, range(begin, min(begin + batch_size, length))))
        if table is None:
            names = sorted(values)
            table = torch.zeros(len(starts), len(names), dtype=torch.float64)
        if number % world.size == world.rank:
            table[number] = torch.tensor([float(values[name]) for name in names], dtype=torch.float64)
    if table is None:
        raise Aborted("nothing to evaluate")
    return table, names
