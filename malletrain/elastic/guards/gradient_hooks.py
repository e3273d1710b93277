"""Finds hooks of the script that may change gradients in backward, where they are of a worker's own samples."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from malletrain.elastic.guards.script_place import is_script

HOOK = "a hook on gradients, which sees those of a worker's own samples"


def gradient_hooks(hooks: Iterable[Any]) -> dict[str, str]:
    """Which of these hooks is the script's, with its line; empty if there is none.

    (A hook that only multiplies, such as by a mask, is right; whether it does is not found out.)
    """
    for hook in hooks:
        code = getattr(inspect.unwrap(hook), "__code__", None) or getattr(type(hook).__call__, "__code__", None)
        if code is not None and is_script(code.co_filename):
            return {HOOK: f"{Path(code.co_filename).name}:{code.co_firstlineno}"}
    return {}


def hooks_of(model: torch.nn.Module) -> Iterator[Any]:
    """The hooks on gradients of a model's parameters and modules."""
    for parameter in model.parameters():
        yield from (parameter._backward_hooks or {}).values()
    for module in model.modules():
        yield from module._backward_hooks.values()
        yield from module._backward_pre_hooks.values()
