"""The batch of one session as the world changes: its rule, what follows for the rates, and the noise scale."""

from __future__ import annotations

import torch

from malletrain.elastic.data.batch_rule import BatchRule, Fixed
from malletrain.elastic.data.sampler import Sampler
from malletrain.elastic.gradients.learning_rate import LearningRate, Rates
from malletrain.elastic.gradients.noise_scale import NoiseScale
from malletrain.elastic.state.training_state import TrainingState


class Batching:
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
        self.rates = Rates(learning_rate or LearningRate(), rule.reference, self.noise_scale)

    def noise_scale(self) -> float | None:
        """In samples; None while it is not known."""
        return self.noise.samples if self.noise is not None else None

    def enter(self, state: TrainingState, optimizer: torch.optim.Optimizer) -> None:
        """Make what depends on the batch part of the training state, and of the optimizer's steps."""
        state.track("malletrain.rates", self.rates)
        if self.noise is not None:
            state.track("malletrain.noise", self.noise)
        self.rates.attach(optimizer)

    def settle(self, sampler: Sampler, workers: int, chosen: int, *, owes_a_step: bool) -> None:
        """Before a step of `workers` workers: set its batch.

        A member that makes a step good which the others have committed takes the batch that they had: its own, as it
        was, since it missed no step before.
        """
        if not owes_a_step:
            self.rates.change(min(self.rule.batch(workers, chosen, self.rates.batch), sampler.length))
        sampler.batch_size = self.rates.batch
