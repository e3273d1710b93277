"""Compares what a resized run arrives at with what a static run does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

#: Units of rounding that the two runs may differ by, relative to how far training has moved a tensor. Rounding grows
#: from step to step; a wrong weight or a forgotten state gives a difference of the order of the movement itself.
ROUNDING_UNITS = 3e4

#: The same for a session that claims to be like a static run only: what differs may be less than `ROUNDING_UNITS` of
#: single precision, as statistics of large parts are. What the further static run shows is rounding all the same.
FEW_ROUNDING_UNITS = 300.0

#: A run that began with a few units of rounding elsewhere may be so many times closer to the static one. What
#: training changes by rounding alone, such as a bias before BatchNorm under Adam, is anywhere in either.
NUDGED_FACTOR = 10.0

#: A tensor in which two static runs differ by more than so many times what rounding explains is decided by something
#: else than training: by chance, by a clock, or, if one began a few units of rounding elsewhere, by rounding alone.
UNSETTLED = 3.0

#: By more than that, relatively, two runs begin with other parameters.
OTHER_BEGINNING = 1e-3


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """One parameter of two runs.

    Attributes:
        name: of the parameter.
        difference: the norm of the difference over the norm of the movement; 0 where nothing moved and nothing
            differs.
        limit: what rounding explains.
    """

    name: str
    difference: float
    limit: float

    @property
    def equal(self) -> bool:
        return self.difference <= self.limit


def compare(
    first: Mapping[str, torch.Tensor],
    static: Mapping[str, torch.Tensor],
    resized: Mapping[str, torch.Tensor],
    nudged: Mapping[str, torch.Tensor] | None = None,
    *,
    units: float = ROUNDING_UNITS,
) -> list[TensorDifference]:
    """Compare parameters, the most different first.

    Args:
        first: as training began.
        nudged: as a static run has them that began a few units of rounding elsewhere: what rounding alone does.
        units: of rounding that the runs may differ by.
        resized: as the resized run has them; one that lacks a parameter differs from the static run without limit.
    """
    found = []
    for name, tensor in static.items():
        begun, other = first.get(name), resized.get(name)
        if other is None or begun is None or other.shape != tensor.shape:
            found.append(TensorDifference(name, float("inf"), 0.0))
            continue
        wide = _wide(tensor)
        moved, apart = _apart(wide, _finite(_wide(begun))), _apart(wide, _wide(other))
        # What rounding of the parameters themselves explains, however little they have moved.
        eps = torch.finfo(tensor.dtype).eps if tensor.is_floating_point() or tensor.is_complex() else 0.0
        limit = units * eps + (64 * eps * float(_finite(wide).norm()) / moved if moved else 0.0)
        limit = min(limit, 0.1)
        if nudged is not None and moved:
            limit = max(limit, NUDGED_FACTOR * _apart(wide, _wide(nudged.get(name, tensor))) / moved)
        share = apart / moved if moved else float("inf")
        found.append(TensorDifference(name, share if apart else 0.0, limit))
    return sorted(found, key=lambda each: (-each.difference, each.name))


def unlike_static_runs(static: Mapping[str, Any], other_run: Mapping[str, Any]) -> str:
    """What two static runs of a script differ in; "" if runs can be compared."""
    for name, tensor in static["first"].items():
        other = other_run["first"].get(name)
        wide = _wide(tensor)
        size = max(1e-12, float(_finite(wide).norm()))
        if other is None or _apart(wide, _wide(other)) > OTHER_BEGINNING * size:
            return f"{name} begins with other values"
    apart = unsettled(static["first"], static["last"], other_run["last"])
    if not mostly(apart, static["last"]):
        return ""
    return f"{apart[0].name} differs by {apart[0].difference:.2g} of what training has changed it by"


def unsettled(
    first: Mapping[str, torch.Tensor], static: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]
) -> list[TensorDifference]:
    """The parameters that something else than training decides, as another static run shows."""
    return [each for each in compare(first, static, other) if each.difference > UNSETTLED * each.limit]


def own_apart(
    static: Mapping[str, Any],
    nudged: Mapping[str, Any],
    pair: Sequence[Mapping[str, Any]],
    resized: Mapping[str, Any],
    peer: Mapping[str, Any],
    *,
    claims: bool,
) -> list[TensorDifference]:
    """The script's own values that are other ones where workers join, and would be alike without.

    What differs between the workers of a static run, or between static runs, is a worker's own: a loss of its
    samples, a clock, what the main worker keeps. So is a counter, which does not follow from what is trained, and a
    record, whose entries are right where they are made. (Where equality is not claimed, workers are still alike.)

    Args:
        static, nudged: results of runs of one worker.
        pair: of two workers from the start.
        resized: of the worker that was there all the time; `peer`: of one that joined.
    """
    alike = [pair[1], *([static] if claims else [])]
    found = []
    for name, value in pair[0]["own"].items():
        if name not in nudged["own"] or not all(_one(name, pair[0], other).equal for other in alike):
            continue
        integral = value.numel() == 1 and bool(value == value.round())
        if integral and not (claims and _one(name, static, nudged).difference):
            continue
        joined = _one(name, resized, peer)
        if joined.difference < float("inf") and not joined.equal and not _is_record(name, resized, peer):
            found.append(joined)
        elif claims and name in resized["own"] and resized["own"][name].shape == value.shape:
            grown, rounding = _one(name, static, resized), _one(name, static, nudged)
            if grown.difference > max(grown.limit, NUDGED_FACTOR * rounding.difference):
                found.append(grown)
    return sorted(found, key=lambda each: (-each.difference, each.name))


def _one(name: str, run: Mapping[str, Any], other: Mapping[str, Any]) -> TensorDifference:
    """How one of the script's own values differs between two runs."""
    value, begun = run["own"].get(name), run["first_own"].get(name)
    if value is None:
        return TensorDifference(name, float("inf"), 0.0)
    if begun is None or begun.shape != value.shape:  # a best score, made later
        begun = torch.zeros_like(value)
    return compare({name: begun}, {name: value}, other["own"])[0]


def _is_record(name: str, run: Mapping[str, Any], joined: Mapping[str, Any]) -> bool:
    """Whether each entry of a vector is right, or as it was when the worker joined."""
    ours, theirs, begun = run["own"][name], joined["own"][name], joined["first_own"].get(name)
    if begun is None or begun.shape != theirs.shape or theirs.numel() < 2:
        return False
    return bool((torch.isclose(ours, theirs, rtol=1e-3) | (theirs == begun)).all())


def mostly(some: Sequence[TensorDifference], static: Mapping[str, torch.Tensor]) -> bool:
    """Whether these are most of the parameters."""
    return 2 * len(some) > len(static)


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """The norm of a difference, in which infinities of one sign, and two nans, are alike."""
    alike = (one == other) | (one.isnan() & other.isnan())
    apart = float(torch.where(alike, 0.0, one - other).norm())
    return float("inf") if math.isnan(apart) else apart


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    return torch.where(tensor.isfinite(), tensor, 0.0)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
