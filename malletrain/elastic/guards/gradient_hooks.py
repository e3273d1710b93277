"""Finds hooks of the script that may change gradients in backward, where they are of a worker's own samples."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from malletrain.elastic.guards.script_place import is_script

HOOK = "a hook on gradients, which sees those of a worker's own samples"


def gradient_hooks(model: torch.nn.Module) -> dict[str, str]:
    """What was found, with the script's line; empty if there is none.

    (A hook that only multiplies, such as by a mask, is right; whether it does is not found out.)
    """
    for hook in _hooks(model):
        code = getattr(inspect.unwrap(hook), "__code__", None) or getattr(type(hook).__call__, "__code__", None)
        if code is not None and is_script(code.co_filename):
            return {HOOK: f"{Path(code.co_filename).name}:{code.co_firstlineno}"}
    return {}


def _hooks(model: torch.nn.Module) -> Iterator[Any]:
    for parameter in model.parameters():
        yield from (parameter._backward_hooks or {}).values()
    for module in model.modules():
        yield from module._backward_hooks.values()
        yield from module._backward_pre_hooks.values()
