"""Integrals over time of what changes in steps: node-seconds from numbers of nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def integral(time: Floats, value: NDArray[Any], end: float, at: Floats) -> Floats:
    """The integral up to each moment of `at`, of any shape, of what is `value[i]` from `time[i]` on, up to `end`."""
    if not len(time):
        return np.zeros(at.shape)
    moments = np.append(time, max(end, float(time[-1])))
    total = np.concatenate([[0.0], np.cumsum(value * np.diff(moments))])
    found: Floats = np.interp(at, moments, total)
    return found


def integral_between(time: Floats, value: NDArray[Any], last: float, begin: Floats, end: Floats) -> Floats:
    """The same from each `begin` to the `end` of the same place; `last`: until when values hold."""
    up_to = integral(time, value, last, np.stack([begin, end]))
    found: Floats = up_to[1] - up_to[0]
    return found
