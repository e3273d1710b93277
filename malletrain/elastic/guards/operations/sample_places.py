"""Follows where a worker's samples lie in the tensors of a step, through each operation, and sees where they meet.

A batch's samples lie along the first dimension of its tensors. Transposing, cutting, permuting, merging and choosing
change where a tensor has which sample; most operations compute each sample alone. Samples meet where two are
combined (`out[1:] - out[:-1]`, `x + x.roll(1, 0)`, `emb[nearest]`, a sequence model that takes rows for time) or
where several are summed into something that is no single number (`h.T @ h`, `index_add`). What no rule is known for
is followed no further: nothing is said of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from malletrain.elastic.guards.operations.sample_rules import (
    JOINS,
    RULES_OF_GROUPS,
    Call,
    Known,
    Meet,
    Place,
    rule_of,
)


@dataclass(frozen=True, slots=True)
class SamplesMeet:
    """An operation in which samples meet.

    Attributes:
        sums: whether several are summed (else combined with each other).
        outs: the tensors that depend on it.
    """

    sums: bool
    outs: tuple[torch.Tensor, ...]


class SamplePlaces:
    """The places of samples in the tensors of one step. Tensors must be kept alive as long as it is used.

    Args:
        samples: of this worker in the step.
        batch: its tensors, each with a sample in every row.
    """

    def __init__(self, samples: int, batch: Sequence[torch.Tensor]) -> None:
        self._samples = samples
        everyone = Place(tuple(range(samples)))
        self._places = {id(each): everyone for each in batch if each.ndim and each.shape[0] == samples}

    def of(self, tensor: Any) -> Place | None:
        """Where a tensor has samples; None if that is not known, or nowhere."""
        return self._places.get(id(tensor))

    def put_like(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        """One has samples where the other has them."""
        place = self.of(other)
        if place is not None and tensor.shape == other.shape:
            self._places[id(tensor)] = place

    def forget(self, tensor: torch.Tensor) -> None:
        """It has other samples too."""
        self._places.pop(id(tensor), None)

    def follow(
        self, func: Any, args: Sequence[Any], inputs: Sequence[torch.Tensor], outs: list[torch.Tensor]
    ) -> SamplesMeet | None:
        """An operation was called."""
        known = [(each, place) for each in inputs if (place := self.of(each)) is not None]
        if not known or not outs:
            return None
        name = func._schema.name.rpartition("::")[2].rstrip("_")
        rule = rule_of(name, func)
        grouped = any(place.group for _, place in known)
        if name.endswith("_like") or name.startswith("new_") or (grouped and rule not in RULES_OF_GROUPS):
            return None
        found: Any
        try:
            lone = _of_one_sample(known) if name not in JOINS else None
            found = lone if lone is not None else rule(Call(args, outs, known, self._samples, self.of))
            meeting = None
        except Meet as met:
            found, meeting = None, SamplesMeet(met.sums, tuple(outs))
        except (IndexError, ValueError, AttributeError, TypeError, ZeroDivisionError):
            found, meeting = None, None  # called in a way that the rule does not know
        if name.startswith(("_unique", "unique_")):
            return SamplesMeet(sums=True, outs=(outs[-1],))  # how often a value is there
        places = found if isinstance(found, list) else [found] * len(outs)
        for out, place in zip(outs, places, strict=False):
            if place is None or not _fits(place, out):
                self.forget(out)
            else:
                self._places[id(out)] = place
        return meeting


def _fits(place: Place, tensor: torch.Tensor) -> bool:
    if place.dim is None:
        return True
    wide = place.outer * len(place.ids) * place.inner
    return place.dim < tensor.ndim and tensor.shape[place.dim] * max(1, place.group) == wide


def _of_one_sample(known: Known) -> Place | None:
    """The place of what is computed from one sample alone."""
    first = known[0][1]
    return first if first.dim is None and all(place == first for _, place in known) else None
