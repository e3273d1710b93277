"""The size of the global batch, and how it follows the number of workers.

- `Fixed`: the same at every number of workers; what a plain number given to `Session` means.
- `PerWorker`: so many samples for each worker, up to a limit for all together (Or, Zhang, Freedman: Resource
  Elasticity in Distributed Deep Learning, MLSys 2020).
- `Chosen`: chosen by the daemon together with the number of nodes, within a range that the training tolerates (Saxena
  et al.: Effective Elastic Scaling of Deep Learning Workloads, MASCOTS 2020).

The batch changes only when the world does. Each rule has a `reference`: the batch that learning rate, momentum and
schedules were tuned for. `SessionBatch` applies a rule and what follows from it (`gradients.learning_rate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from malletrain.elastic.data.sampler import Sampler
from malletrain.elastic.data.streams import StreamSampler
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients.learning_rate import LearningRate, LearningRateScaling
from malletrain.elastic.gradients.noise_scale import NoiseScale
from malletrain.elastic.state.training_state import TrainingState


@runtime_checkable
class BatchRule(Protocol):
    """How many samples a step has, over all workers."""

    @property
    def reference(self) -> int:
        """The batch that the script's learning rate was tuned for."""
        ...

    def batch(self, workers: int, chosen: int, present: int) -> int:
        """Samples of a step of `workers` workers.

        Args:
            chosen: the daemon's choice, or 0 if it made none.
            present: the batch so far.
        """
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """`reference` samples at every number of workers."""

    reference: int

    def __post_init__(self) -> None:
        _at_least_one("batch_size", self.reference)

    def batch(self, workers: int, chosen: int, present: int) -> int:
        return self.reference


@dataclass(frozen=True, slots=True)
class PerWorker:
    """`samples` for each worker, but at most `limit` for all; beyond that, each worker's share becomes smaller.

    Args:
        samples: of one worker.
        limit: of all workers together.

    Raises:
        ElasticError: `samples` is not positive, or `limit` is below `samples`.
    """

    samples: int
    limit: int

    def __post_init__(self) -> None:
        _at_least_one("PerWorker: samples", self.samples)
        if self.limit < self.samples:
            raise ElasticError(f"PerWorker: limit={self.limit} is below the {self.samples} samples of one worker")

    @property
    def reference(self) -> int:
        return self.samples

    def batch(self, workers: int, chosen: int, present: int) -> int:
        return min(self.samples * workers, self.limit)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The batch that the daemon chooses (`mtbatch --batch-min --batch-max`), and `reference` until it has chosen one
    or without a daemon.

    Args:
        reference: the global batch that the learning rate was tuned for.
        low: the smallest batch to accept.
        high: the largest batch to accept.

    Raises:
        ElasticError: `reference` is not within `low` and `high`, or these are not a range.
    """

    reference: int
    low: int | None = None
    high: int | None = None

    def __post_init__(self) -> None:
        _at_least_one("Chosen: reference", self.reference)
        low, high = self.low or 1, self.high or max(self.reference, self.low or 1)
        if not 1 <= low <= high:
            raise ElasticError(f"Chosen: low={self.low} and high={self.high} make no range")
        if not low <= self.reference <= high:
            raise ElasticError(f"Chosen: reference={self.reference} is not within {low} to {high}")

    def batch(self, workers: int, chosen: int, present: int) -> int:
        wanted = max(chosen or present, self.low or 1)
        return wanted if self.high is None else min(wanted, self.high)


def as_rule(batch_size: int | BatchRule) -> BatchRule:
    """The rule that `Session(batch_size=...)` was given. Raises `ElasticError` if it is neither number nor rule."""
    if isinstance(batch_size, BatchRule):
        return batch_size
    if isinstance(batch_size, int) and not isinstance(batch_size, bool):
        return Fixed(batch_size)
    raise ElasticError(f"batch_size must be a number, PerWorker(...) or Chosen(...), not {batch_size!r}")


def _at_least_one(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ElasticError(f"{name} must be a whole number of at least 1, not {value!r}")


class SessionBatch:
    """The batch of one session, with the learning rates and the noise scale that go with it (which `measure` wants
    measured; by default, unless the batch is fixed)."""

    def __init__(self, rule: BatchRule, learning_rate: LearningRate | None, measure: bool | None) -> None:
        self.rule = rule
        self.fixed = isinstance(rule, Fixed)
        self.noise = NoiseScale() if measure or (measure is None and not self.fixed) else None
        self.lr_scaling = LearningRateScaling(learning_rate or LearningRate(), rule.reference, self.noise_scale)

    def noise_scale(self) -> float | None:
        """The gradient noise scale in samples; None while it is not known."""
        return self.noise.samples if self.noise is not None else None

    def attach(self, state: TrainingState, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Track what depends on the batch in the training state, and scale the optimizers' steps. Call it once."""
        state.track("malletrain.rates", self.lr_scaling)
        if self.noise is not None:
            state.track("malletrain.noise", self.noise)
        self.lr_scaling.attach(optimizers)

    def update(self, sampler: Sampler | StreamSampler, workers: int, chosen: int) -> None:
        """Set the batch of the next step, by the number of workers and what the daemon has chosen, or 0."""
        if self.fixed and sampler.batch_size == self.lr_scaling.batch:
            return
        self.lr_scaling.change(min(self.rule.batch(workers, chosen, self.lr_scaling.batch), sampler.length))
        sampler.batch_size = self.lr_scaling.batch
