"""What all adapters share: a session's batches as the data loader of a framework, and steps that repeat themselves.

A framework asks its loader for a batch and then trains on it once. Here the first part is a session's batch, and the
second may have to be done again with another part of it, so the adapter's training step does that itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.session import Session

T = TypeVar("T")


class Steps:
    """The batches of a session, epoch after epoch, and how to train on one of them until it is committed.

    Attributes:
        dataset: the session's; frameworks ask loaders for it.
        in_epoch: steps of a whole epoch.

    Raises:
        ElasticError: the session's batch changes with the number of workers.
    """

    def __init__(self, session: Session, dataset: Any, epochs: int) -> None:
        if not session.fixed_batch:
            raise ElasticError("the framework counts an epoch's steps beforehand: give a batch size that is a number")
        self.session = session
        self.dataset = dataset
        self.batch_size = session.batch_size
        self.in_epoch = -(-len(dataset) // session.batch_size)
        self._epochs = session.epochs(epochs)
        self._batches: Iterator[Any] = iter(())

    def __len__(self) -> int:
        """Steps of a whole epoch; a worker that joins in the middle of one gets fewer."""
        return self.in_epoch

    def __iter__(self) -> Iterator[Any]:
        """What is left of the epoch under way, then each time another one."""
        if next(self._epochs, None) is None:
            return
        self._batches = self.session.batches()
        yield from self._batches

    def train_on(self, batch: Any, train: Callable[[Any], T], weight: Callable[[Any], int | None]) -> T:
        """Forward and backward on a batch, until the step is committed; with whatever this worker's part of it is by
        then.

        Args:
            train: runs the model forward and backward.
            weight: what `Session.step` takes, of a batch.
        """
        while True:
            before = self.session.steps_done
            with self.session.step(weight(batch)):
                result = train(batch)
            if self.session.steps_done > before:
                return result
            batch = next(self._batches, None)
            if batch is None:
                raise ElasticError("a step was not committed, and no batch follows: this is a fault of the adapter")
