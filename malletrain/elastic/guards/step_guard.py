"""Checks each optimizer step: only gradients of the whole batch may change the model."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients.reducer import GradientPhase, GradientReducer
from malletrain.elastic.guards.script_place import current_line
from malletrain.elastic.guards.stale_gradients import StaleGradients


class StepGuard:
    """Looks at the steps of every optimizer of this process.

    Args:
        reducer: of the session.
        in_step: returns whether `with s.step()` is being executed.
        object_to: called with a message where something is wrong; may raise.
        stale_gradients: knows of gradients of earlier steps.

    Raises:
        ElasticError: an optimizer calls backward more than once a step.
    """

    def __init__(
        self,
        reducer: GradientReducer,
        in_step: Callable[[], bool],
        object_to: Callable[[str], None],
        stale_gradients: StaleGradients,
    ) -> None:
        self._reducer = reducer
        self._in_step = in_step
        self._object_to = object_to
        self._stale_gradients = stale_gradients
        self._whole: dict[int, tuple[int, int]] = {}
        guard = weakref.ref(self)

        def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            live = guard()
            if live is not None:
                live.before(optimizer, closure=bool(args) or kwargs.get("closure") is not None)

        def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            live = guard()
            if live is not None and (args or kwargs.get("closure") is not None):
                live.before(optimizer, closure=False)

        handles = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
        for handle in handles:
            weakref.finalize(self, handle.remove)

    def before(self, optimizer: torch.optim.Optimizer, *, closure: bool) -> None:
        """Judge an optimizer's step that is about to change parameters.

        Args:
            closure: whether it calls a function of the script first, which makes the gradients.
        """
        parameters = self._uncovered(optimizer)
        covered = parameters is None or len(parameters) < _count(optimizer)
        if covered:
            refuse_searching(optimizer)
        if closure:
            return
        if self._reducer.adapting:
            if covered:
                self._object_to(
                    f"optimizer.step(){_at()} inside s.inner_loop() changes the session's model: train a copy, "
                    "learner = copy.deepcopy(model)"
                )
            return
        in_step = self._in_step()
        if covered and in_step:
            phase = self._reducer.phase
            if phase is GradientPhase.LOCAL:
                self._object_to(
                    f"optimizer.step(){_at()} has gradients of this worker alone: s.accumulate() is only for parts "
                    "of one loss. For several optimizers (a GAN), or several steps a batch (SAM), say "
                    "s.step(backwards=N) with the number of backward() calls; for an inner loop (MAML, Reptile) "
                    "train a copy of the model in `with s.inner_loop():`"
                )
            elif phase is GradientPhase.NONE:
                self._object_to(
                    f"optimizer.step(){_at()} comes before this step's backward(): call it after, so that a step "
                    "that is repeated is made once"
                )
            elif self._stale_gradients.in_any(each for group in optimizer.param_groups for each in group["params"]):
                self._object_to(
                    f"optimizer.step(){_at()} has gradients that were added to those of an earlier step, which are "
                    "sums over all workers already: call optimizer.zero_grad() in every step, before backward(). For "
                    "a larger batch make batch_size larger; for one in parts, `with s.accumulate():` inside a step"
                )
        strange = next(
            (each for each in parameters or [] if isinstance(each, torch.nn.Parameter) and each.grad is not None),
            None,
        )
        if strange is not None and (in_step or covered):
            self._object_to(
                f"{type(optimizer).__name__}.step(){_at()} trains a parameter of shape {tuple(strange.shape)} that "
                "the session does not have, so its gradients are not summed: give Session every model, "
                "Session([generator, discriminator], [optimizer_g, optimizer_d], ...). If it is a copy that adapts "
                "to one sample (MAML, Reptile), train it in `with s.inner_loop():`"
            )

    def _uncovered(self, optimizer: torch.optim.Optimizer) -> list[Any] | None:
        """The parameters of an optimizer whose gradients are not summed; None if all are."""
        # Looked through once for each layout: this is called at every step.
        key = self._reducer.layout_number, _count(optimizer)
        if self._whole.get(id(optimizer)) == key:
            return None
        groups = optimizer.param_groups
        found = [each for group in groups for each in group["params"] if not self._reducer.covers(each)]
        if not found:
            self._whole[id(optimizer)] = key
            return None
        return found


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


def _count(optimizer: torch.optim.Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)


def _at() -> str:
    line = current_line()
    return f" ({line})" if line else ""
