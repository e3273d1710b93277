"""How learning rate and schedules follow a batch that changes.

With b the batch and b0 the reference batch, the learning rate that the script or its scheduler sets is multiplied by

    none      1
    linear    b / b0               Goyal et al., Accurate, Large Minibatch SGD (arXiv 1706.02677)
    sqrt      sqrt(b / b0)         for Adam and its kin: Malladi et al., On the SDEs and Scaling Rules for Adaptive
                                   Gradient Algorithms (NeurIPS 2022)
    adascale  (b / b0) (B + b0) / (B + b)    Johnson et al., AdaScale SGD (ICML 2020), whose gain in terms of the
                                   gradient noise scale B (in samples, see `noise_scale`) is this

during `optimizer.step()` only: the script, its schedulers and the saved state always see the unscaled rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from malletrain.elastic.errors import ElasticError

RULES = ("none", "linear", "sqrt", "adascale")


@dataclass(frozen=True, slots=True)
class LearningRate:
    """How the learning rate follows the batch; the formulas are in the module's description. Raises `ElasticError`:
    the rule does not exist, or `warm_up` is not a number of samples."""

    rule: Literal["none", "linear", "sqrt", "adascale"] = "none"
    warm_up: int = 0  #: samples over which the rate moves linearly to its new value after a change of the batch

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ElasticError(f"LearningRate: rule must be one of {', '.join(RULES)}, not {self.rule!r}")
        if isinstance(self.warm_up, bool) or not isinstance(self.warm_up, int) or self.warm_up < 0:
            raise ElasticError(f"LearningRate: warm_up must be a number of samples, not {self.warm_up!r}")

    def gain(self, batch: int, reference: int, noise: float | None) -> float:
        """The factor after the warm-up. `noise`: the gradient noise scale in samples; where it is not known, adascale
        gives 1, which is safe."""
        ratio = batch / reference
        if self.rule == "linear":
            return ratio
        if self.rule == "sqrt":
            return math.sqrt(ratio)
        if self.rule == "adascale":
            return 1.0 if noise is None else ratio * (noise + reference) / (noise + batch)
        return 1.0


class LearningRateScaling:
    """Scales the learning rates of one session, which were tuned for the batch `reference`; part of the training
    state. `noise`: returns the gradient noise scale in samples, or None if it is not known."""

    def __init__(self, rule: LearningRate, reference: int, noise: Callable[[], float | None]) -> None:
        self._rule = rule
        self._reference = reference
        self._noise = noise
        self.batch = reference  #: samples of a full step
        self._samples = 0
        self._from, self._since = 1.0, -rule.warm_up  #: the gain before the last change; samples_done at that change
        self._progress = 0.0

    @property
    def gain(self) -> float:
        """The factor on the learning rate now."""
        if self._rule.rule == "none":
            return 1.0
        aim = self._rule.gain(self.batch, self._reference, self._noise())
        passed = self._samples - self._since
        if passed >= self._rule.warm_up:
            return aim
        return self._from + (aim - self._from) * passed / self._rule.warm_up

    @property
    def progress(self) -> float:
        """Training so far in steps of the reference batch: samples divided by the reference batch, or with adascale
        the sum of gains."""
        return self._progress if self._rule.rule == "adascale" else self._samples / self._reference

    def change(self, batch: int) -> None:
        """Set the batch from the next step on."""
        if batch != self.batch:
            self._from, self._since, self.batch = self.gain, self._samples, batch

    def committed(self, total: int) -> None:
        """Record that a step was committed, and `total` samples since training began."""
        self._progress += self.gain
        self._samples = total

    def attach(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Scale the rate during the optimizers' steps, by hooks."""
        for optimizer in optimizers if self._rule.rule != "none" else []:
            self._attach(optimizer)

    def _attach(self, optimizer: torch.optim.Optimizer) -> None:
        kept: list[Any] = []

        def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            if kept:
                raise ElasticError("optimizer.step() was called inside optimizer.step()")
            kept.extend(group["lr"] for group in optimizer.param_groups)
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * self.gain

        def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            for group, rate in zip(optimizer.param_groups, kept, strict=True):
                group["lr"] = rate
            kept.clear()

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)

    def state_dict(self) -> dict[str, Any]:
        changed = {"from": self._from, "since": self._since}
        return {"batch": self.batch, "samples": self._samples, "progress": self._progress, **changed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batch, self._samples = int(state["batch"]), int(state["samples"])
        self._from, self._since = float(state["from"]), int(state["since"])
        self._progress = float(state["progress"])
