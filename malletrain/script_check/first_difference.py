"""Where two runs begin to differ: the first step, and the parameter that differs most in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from malletrain.script_check.comparison import NUDGED_FACTOR, ROUNDING_UNITS


def first_difference(
    static: Mapping[str, Any], nudged: Mapping[str, Any], other: Mapping[str, Any]
) -> tuple[int, str]:
    """The step, and the name of the parameter; (0, "") where no step shows it.

    Args:
        static, nudged, other: results of runs, with two numbers for each parameter after each step (`trace`).
    """
    ours, rounded, theirs = (_by_step(each["trace"]) for each in (static, nudged, other))
    names = [name for name in static["names"] for _ in range(2)]
    steps = sorted(ours.keys() & theirs.keys())
    if not steps or len(names) != len(ours[steps[0]]) or len(names) != len(theirs[steps[0]]):
        return 0, ""
    moved = torch.stack([(ours[step] - ours[steps[0]]).abs() for step in steps]).amax(0)
    eps = torch.tensor([_eps(static["last"][name]) for name in names], dtype=torch.float64)
    for step in steps:
        explained = ROUNDING_UNITS * eps * (moved + 1e-3 * ours[step].abs())
        explained += NUDGED_FACTOR * (ours[step] - rounded.get(step, ours[step])).abs()
        beyond = (ours[step] - theirs[step]).abs() / (explained + 1e-300)
        if bool((beyond > 1.0).any()):
            return step, names[int(beyond.argmax())]
    return 0, ""


def _by_step(trace: torch.Tensor) -> dict[int, torch.Tensor]:
    return {int(row[0]): row[1:] for row in trace}


def _eps(tensor: torch.Tensor) -> float:
    return torch.finfo(tensor.dtype).eps if tensor.is_floating_point() or tensor.is_complex() else 0.0
