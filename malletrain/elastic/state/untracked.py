"""Finds objects with state that a script forgot to track; a newcomer would start with fresh ones."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import torch

from malletrain.elastic.state.training_state import TrainingState

log = logging.getLogger("malletrain.elastic")

_PACKAGE = "malletrain.elastic"
_KINDS = (torch.optim.lr_scheduler.LRScheduler, torch.optim.Optimizer, torch.amp.GradScaler)


def warn(model: torch.nn.Module, state: TrainingState) -> None:
    """Log a warning for each variable of the script that looks untracked."""
    for name, thing in forgotten(model, state, _variables()):
        log.warning(
            "%s (%s) has state that newcomers will not get: s.track(%s=%s) before the first epoch, if training "
            "changes it",
            *(name, type(thing).__name__, name, name),
        )


def forgotten(model: torch.nn.Module, state: TrainingState, variables: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Schedulers, gradient scalers, optimizers and trainable modules that are not part of the training state."""
    known = {id(thing) for thing in [state.optimizer, *state.tracked.values()]}
    parameters = {id(parameter) for parameter in model.parameters()}
    for thing in state.tracked.values():
        if isinstance(thing, torch.nn.Module):
            parameters |= {id(parameter) for parameter in thing.parameters()}
    for name, thing in variables.items():
        if id(thing) in known or name.startswith("_"):
            continue
        if isinstance(thing, torch.optim.Optimizer) and id(getattr(thing, "optimizer", None)) in known:
            continue  # some libraries wrap the optimizer
        if isinstance(thing, _KINDS) or (isinstance(thing, torch.nn.Module) and _trains(thing, parameters)):
            known.add(id(thing))
            yield name, thing


def _trains(module: torch.nn.Module, parameters: set[int]) -> bool:
    """Whether a module has trainable parameters of its own; a frozen one is built alike on every worker."""
    return any(each.requires_grad and id(each) not in parameters for each in module.parameters())


def _variables() -> dict[str, Any]:
    """Local and global variables of the innermost frame outside this package."""
    frame = sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE):
        frame = frame.f_back
    return {**frame.f_globals, **frame.f_locals}
