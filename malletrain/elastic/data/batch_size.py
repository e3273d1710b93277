"""How many samples a step has, whatever the number of workers, or by it.

- `Fixed`: the same at every size. What a script that gives a plain number has.
- `PerWorker`: each worker has the same, up to a limit for all together (Or, Zhang, Freedman: Resource Elasticity in
  Distributed Deep Learning, MLSys 2020).
- `Chosen`: by the daemon, with the number of nodes, within a range that the training bears (Saxena et al.: Effective
  Elastic Scaling of Deep Learning Workloads, MASCOTS 2020).

A batch changes with the world, and only then. Each rule has a `reference`: the batch that learning rate, momentum and
schedules were tuned for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from malletrain.elastic.data.sampler import Sampler
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients.learning_rate import LearningRate, LearningRateScaling
from malletrain.elastic.gradients.noise_scale import NoiseScale
from malletrain.elastic.state.training_state import TrainingState


@runtime_checkable
class BatchRule(Protocol):
    """Samples of one step, over all workers."""

    @property
    def reference(self) -> int:
        """The batch that the script's learning rate is meant for."""
        ...

    def batch(self, workers: int, chosen: int, present: int) -> int:
        """Samples of a step of `workers` workers; `chosen` by the daemon (0: it has said nothing), `present` until
        now."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """`samples` at every size."""

    samples: int

    def __post_init__(self) -> None:
        _at_least_one("batch_size", self.samples)

    @property
    def reference(self) -> int:
        return self.samples

    def batch(self, workers: int, chosen: int, present: int) -> int:
        return self.samples


@dataclass(frozen=True, slots=True)
class PerWorker:
    """`samples` for each worker, at most `limit` for all; beyond that, shares become smaller.

    `tuned_for`: the batch of all workers that the learning rate is meant for; by default that of one worker.
    """

    samples: int
    limit: int
    tuned_for: int | None = None

    def __post_init__(self) -> None:
        _at_least_one("PerWorker: samples", self.samples)
        if self.limit < self.samples:
            raise ElasticError(f"PerWorker: limit={self.limit} is below the {self.samples} samples of one worker")
        if self.tuned_for is not None:
            _at_least_one("PerWorker: tuned_for", self.tuned_for)

    @property
    def reference(self) -> int:
        return self.tuned_for or self.samples

    def batch(self, workers: int, chosen: int, present: int) -> int:
        return min(self.samples * workers, self.limit)


@dataclass(frozen=True, slots=True)
class Chosen:
    """As the daemon chooses (`mtbatch --batch-min --batch-max`), within `low` and `high` where they are given;
    `reference` where it has not chosen, and on a laptop."""

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
    """What `Session(batch_size=...)` was given, as a rule."""
    if isinstance(batch_size, int) and not isinstance(batch_size, bool):
        return Fixed(batch_size)
    if isinstance(batch_size, BatchRule):
        return batch_size
    raise ElasticError(f"batch_size must be a number, PerWorker(...) or Chosen(...), not {batch_size!r}")


def _at_least_one(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ElasticError(f"{name} must be a whole number of at least 1, not {value!r}")


class SessionBatch:
    """What `Session` asks between two steps.

    Args:
        rule: of the batch.
        learning_rate: how rates follow it.
        measure: whether the gradient noise scale is measured; None: where the batch is not fixed.
    """

    def __init__(self, rule: BatchRule, learning_rate: LearningRate | None, measure: bool | None) -> None:
        self.rule = rule
        self.fixed = isinstance(rule, Fixed)
        self.noise = NoiseScale() if measure or (measure is None and not self.fixed) else None
        self.lr_scaling = LearningRateScaling(learning_rate or LearningRate(), rule.reference, self.noise_scale)

    def noise_scale(self) -> float | None:
        """In samples; None while it is not known."""
        return self.noise.samples if self.noise is not None else None

    def attach(self, state: TrainingState, optimizer: torch.optim.Optimizer) -> None:
        """Make what depends on the batch part of the training state, and of the optimizer's steps."""
        state.track("malletrain.rates", self.lr_scaling)
        if self.noise is not None:
            state.track("malletrain.noise", self.noise)
        self.lr_scaling.attach(optimizer)

    def update(self, sampler: Sampler, workers: int, chosen: int, *, owes_a_step: bool) -> None:
        """Before a step of `workers` workers: set its batch.

        A member that makes a step good which the others have committed takes the batch that they had: its own, as it
        was, since it missed no step before.
        """
        if not owes_a_step:
            self.lr_scaling.change(min(self.rule.batch(workers, chosen, self.lr_scaling.batch), sampler.length))
        sampler.batch_size = self.lr_scaling.batch
