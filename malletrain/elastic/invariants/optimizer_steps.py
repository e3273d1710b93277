"""Checks each optimizer step: only gradients of the whole batch, and of this step alone, may change the model.

Gradients are sums over all workers once a step is committed. Where the next step adds to them, each worker adds its
part to the whole sum of before, which then counts once for each worker; and a worker that joins has none.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients.reducer import GradientPhase, GradientReducer

#: Parameters whose gradients are looked at, evenly over the model.
MAX_PARAMETERS = 4

#: Where a gradient lies, and how often it was written.
_Mark = tuple[int, int]


class StaleGradients:
    """Marks the gradients that a step leaves, and finds them unchanged as the next step's arrive.

    Attributes:
        found: the ids of their parameters.
    """

    def __init__(self) -> None:
        self._left: list[tuple[torch.Tensor, _Mark]] = []
        self.found = frozenset[int]()

    def step_ended(self, parameters: Sequence[torch.Tensor]) -> None:
        """A step was committed, and its block is over."""
        some = parameters[:: max(1, -(-len(parameters) // MAX_PARAMETERS))]
        self.found = frozenset()
        self._left = [
            (each, (grad.data_ptr(), grad._version))
            for each in some
            if (grad := each.grad) is not None and grad.layout is torch.strided
        ]

    def forget(self) -> None:
        """A step was given up."""
        self._left, self.found = [], frozenset()

    def arrived(self, first: torch.Tensor) -> None:
        """The first gradient of a step has been added to that of this parameter."""
        found = []
        for parameter, (place, version) in self._left:
            now, expected = parameter.grad, version + int(parameter is first)
            if now is not None and now._version == expected and now.data_ptr() == place:
                found.append(id(parameter))
        self.found = frozenset(found)

    def in_any(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether a gradient of this one's parameters has more in it than this step's."""
        return any(id(each) in self.found for group in optimizer.param_groups for each in group["params"])


class OptimizerSteps:
    """Looks at the steps of every optimizer of this process, until `end`.

    Args:
        reducer: of the session.
        in_step: returns whether `with s.step()` is being executed.
        stale: the gradients of earlier steps.
    """

    def __init__(self, reducer: GradientReducer, in_step: Callable[[], bool], stale: StaleGradients) -> None:
        self._reducer = reducer
        self._in_step = in_step
        self._stale = stale
        self._covered: dict[int, tuple[int, int]] = {}
        own = weakref.ref(self)

        def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            live = own()
            if live is not None and not _has_closure(args, kwargs):
                live.check(optimizer)

        def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            live = own()
            if live is not None and _has_closure(args, kwargs):
                live.check(optimizer)

        self._handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
        for handle in self._handles:
            weakref.finalize(self, handle.remove)

    def end(self) -> None:
        """Training is over: optimizers may step as they like."""
        for handle in self._handles:
            handle.remove()

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Judge an optimizer's step that is about to change parameters; with a closure, which makes its gradients in
        the step, as it has done so.

        Raises:
            ElasticError: it has gradients that are not those of the whole batch.
        """
        many = sum([len(group["params"]) for group in optimizer.param_groups])
        key = self._reducer.layout_number, many
        others = []
        if self._covered.get(id(optimizer)) != key:  # looked through once for each layout
            groups = optimizer.param_groups
            others = [each for group in groups for each in group["params"] if not self._reducer.covers(each)]
            if not others:
                self._covered[id(optimizer)] = key
        covered, in_step = len(others) < many, self._in_step()
        if covered:
            refuse_searching(optimizer)
            self._refuse_early(in_step=in_step)
            if in_step and self._stale.found and self._stale.in_any(optimizer):
                raise ElasticError(
                    "optimizer.step() has gradients that were added to those of an earlier step, which are sums over "
                    "all workers already: call optimizer.zero_grad() in every step, before backward(). For a larger "
                    "batch make batch_size larger; for one in parts, `with step.accumulate():` inside a step"
                )
        strange = [each for each in others if getattr(each, "grad", None) is not None]
        if strange and not self._reducer.adapting and (in_step or covered):
            raise ElasticError(
                f"{type(optimizer).__name__}.step() trains a parameter of shape {tuple(strange[0].shape)} that the "
                "session does not have, so its gradients are not summed: give Session every model, "
                "Session([generator, discriminator], [optimizer_g, optimizer_d], ...). If it is a copy that adapts "
                "to one sample (MAML, Reptile), train it in `with step.inner_loop():`"
            )

    def _refuse_early(self, *, in_step: bool) -> None:
        if self._reducer.adapting:
            raise ElasticError(
                "optimizer.step() inside step.inner_loop() changes the session's model: train a copy, "
                "learner = copy.deepcopy(model)"
            )
        phase = self._reducer.phase
        if in_step and phase is GradientPhase.LOCAL:
            raise ElasticError(
                "optimizer.step() has gradients of this worker alone: step.accumulate() is only for parts of one "
                "loss. For several optimizers (a GAN), or several steps a batch (SAM), say s.step(backwards=N) with "
                "the number of backward() calls; for an inner loop (MAML, Reptile) train a copy of the model in "
                "`with step.inner_loop():`"
            )
        if in_step and phase is GradientPhase.NONE:
            raise ElasticError(
                "optimizer.step() comes before this step's backward(): call it after, so that a step that is "
                "repeated is made once"
            )


def _has_closure(args: Any, kwargs: Any) -> bool:
    """Whether a step, called with these arguments, makes its gradients by itself. The first is the optimizer."""
    return (args[1] if len(args) > 1 else kwargs.get("closure")) is not None


def refuse_searching(optimizer: torch.optim.Optimizer) -> None:
    """Raise `ElasticError` if an optimizer calls backward as often as it likes within a step: LBFGS, unless it makes
    one iteration a step. (That looks at gradients alone, and not at this worker's loss.)"""
    if not isinstance(optimizer, torch.optim.LBFGS):
        return
    group = optimizer.param_groups[0]
    if group["max_iter"] != 1 or group["line_search_fn"] is not None:
        raise ElasticError(
            "LBFGS calls backward as often as it likes within a step, and sums of gradients belong to one backward "
            "pass: say LBFGS(..., max_iter=1), without line_search_fn, which makes one iteration a step"
        )
