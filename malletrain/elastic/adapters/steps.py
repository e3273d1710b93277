"""Common to all adapters: a session's batches as a framework's data loader, and steps that are repeated until
committed.

A framework takes a batch from its loader and trains on it once. In a session a step may be aborted and has to be
repeated with another part of the batch; `Steps.train_on` does that inside the framework's training step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.session import Session

T = TypeVar("T")


class Length:
    """What a framework asks of a data loader besides batches."""

    def __init__(self, dataset: Any, batch_size: int) -> None:
        self.dataset, self.batch_size = dataset, batch_size

    def __len__(self) -> int:
        """Steps of a whole epoch; a worker that joins during an epoch makes fewer in it."""
        return max(1, -(-len(self.dataset) // self.batch_size))


class Led:
    """What drives a framework's training by the `Steps` of a session, once there is one."""

    _steps: Steps | None = None

    @property
    def steps(self) -> Steps:
        """Raises `ElasticError` before training has begun."""
        if self._steps is None:
            raise ElasticError("there is no session before training has begun (train() or fit())")
        return self._steps

    @property
    def session(self) -> Session:
        """The elastic session. Raises `ElasticError` before training has begun."""
        return self.steps.session

    @property
    def is_main(self) -> bool:
        """Whether this is the session's main worker, which logs and saves."""
        return self._steps is None or self._steps.session.is_main


class Steps(Length):
    """The batches of a session, for so many epochs in total: each iteration is one. Raises `ElasticError`: the
    session's batch size changes with the number of workers, or from batch to batch."""

    def __init__(self, session: Session, dataset: Any, epochs: int) -> None:
        if not session.info.fixed_batch:
            raise ElasticError("the framework counts an epoch's steps beforehand: give a batch size that is a number")
        if not session.info.equal_batches:
            raise ElasticError(
                "the framework counts an epoch's steps beforehand: give an order of indices, not of batches"
            )
        super().__init__(dataset, session.info.batch_size)
        self.session = session
        self._epochs = session.epochs(epochs)
        self._batches: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        """The remaining batches of the epoch in progress, and at each later call those of the next epoch."""
        if next(self._epochs, None) is None:
            return
        self._batches = self.session.batches()
        yield from self._batches

    def train_on(self, batch: Any, train: Callable[[Any], T], weight: Callable[[Any], int | None]) -> T:
        """Train on a batch until the step is committed; a repeated step uses this worker's new part of the batch.

        Args:
            batch: from this iterator.
            train: runs the model forward and backward on a batch.
            weight: returns the `weight` that `Session.step` takes for a batch.

        Returns:
            What `train` returned in the committed step.
        """
        while True:
            before = self.session.steps_done
            with self.session.step(weight(batch)):
                result = train(batch)
            if self.session.steps_done > before:
                return result
            batch = next(self._batches)  # it is yielded again
