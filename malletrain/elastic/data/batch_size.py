"""The size of the global batch: a number, the same at every number of workers, or `Chosen` by the daemon together
with the number of nodes, within a range that the training tolerates (Saxena et al.: Effective Elastic Scaling of
Deep Learning Workloads, MASCOTS 2020).

The batch changes only when the world does. `SessionBatch` applies the rule and what follows from it
(`gradients.learning_rate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from malletrain.elastic.data.sampler import Sampler
from malletrain.elastic.data.streams import StreamSampler
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients.learning_rate import LearningRate, LearningRateScaling
from malletrain.elastic.gradients.noise_scale import NoiseScale
from malletrain.elastic.state.training_state import TrainingState


@dataclass(frozen=True, slots=True)
class Chosen:
    """The batch that the daemon chooses (`mtbatch --batch-min --batch-max`), and `reference` until it has chosen one
    or without a daemon.

    Args:
        reference: the global batch that the learning rate was tuned for.
        low, high: the smallest and the largest batch to accept.

    Raises:
        ElasticError: `reference` is not within `low` and `high`, or these are not a range.
    """

    reference: int
    low: int | None = None
    high: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.reference, bool) or not isinstance(self.reference, int) or self.reference < 1:
            raise ElasticError(f"batch_size must be a whole number of at least 1, not {self.reference!r}")
        low, high = self.low or 1, self.high or max(self.reference, self.low or 1)
        if not 1 <= low <= high:
            raise ElasticError(f"Chosen: low={self.low} and high={self.high} make no range")
        if not low <= self.reference <= high:
            raise ElasticError(f"Chosen: reference={self.reference} is not within {low} to {high}")

    @property
    def fixed(self) -> bool:
        """Whether there is nothing to choose."""
        return self.low == self.high == self.reference

    def batch(self, chosen: int, present: int) -> int:
        """Samples of a step: the daemon's choice (0: it made none), else those of `present`, within the range."""
        wanted = max(chosen or present, self.low or 1)
        return wanted if self.high is None else min(wanted, self.high)


def as_rule(batch_size: int | Chosen) -> Chosen:
    """The rule that `Session(batch_size=...)` was given. Raises `ElasticError` if it is neither number nor rule."""
    if isinstance(batch_size, Chosen):
        return batch_size
    if isinstance(batch_size, int) and not isinstance(batch_size, bool):
        return Chosen(batch_size, batch_size, batch_size)
    raise ElasticError(f"batch_size must be a number or Chosen(...), not {batch_size!r}")


class SessionBatch:
    """The batch of one session, with the learning rates and the noise scale that go with it (which `measure` wants
    measured; by default, unless the batch is fixed)."""

    def __init__(self, rule: Chosen, learning_rate: LearningRate | None, measure: bool | None) -> None:
        self.rule = rule
        self.fixed = rule.fixed
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

    def update(self, sampler: Sampler | StreamSampler, chosen: int) -> None:
        """Set the batch of the next step; `chosen`: by the daemon, or 0."""
        if self.fixed and sampler.batch_size == self.lr_scaling.batch:
            return
        self.lr_scaling.change(min(self.rule.batch(chosen, self.lr_scaling.batch), sampler.length))
        sampler.batch_size = self.lr_scaling.batch
