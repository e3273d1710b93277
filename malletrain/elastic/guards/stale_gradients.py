"""Notices gradients of an earlier step to which a step adds its own: accumulation across steps.

Gradients are sums over all workers once a step is committed. Where the next step adds to them, each worker adds its
part to the whole sum of before, which then counts once for each worker; and a worker that joins has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

#: Parameters whose gradients are looked at, evenly over the model.
MAX_PARAMETERS = 8


class StaleGradients:
    """See the module.

    Args:
        parameters: returns those that are trained now.
    """

    def __init__(self, parameters: Callable[[], Sequence[torch.Tensor]]) -> None:
        self._parameters = parameters
        self._left: dict[
            int, tuple[int, int]
        ] = {}  #: by parameter: place and version of the gradient a step has left
        self._stale: set[int] = set()
        self._keeps = False  #: whether gradients are there as a step begins; most scripts drop them before

    def begin_backward(self, *, thorough: bool) -> None:
        """The first backward pass of a step begins.

        Args:
            thorough: look also where earlier steps began without gradients, and at gradients that were changed since
                the last step.
        """
        if not (thorough or self._keeps):
            return
        found = list(self._gradients())
        self._keeps = bool(found)
        self._stale = {
            place
            for place, gradient in found
            if (thorough or self._left.get(place) == _mark(gradient)) and bool(torch.count_nonzero(gradient))
        }

    def end_step(self) -> None:
        """A step's block is over."""
        self._stale = set()
        if self._keeps:
            self._left = {place: _mark(gradient) for place, gradient in self._gradients()}

    def in_any(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether a gradient of these has more in it than this step's."""
        return bool(self._stale) and any(id(each) in self._stale for each in parameters)

    def _gradients(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Dense gradients, by parameter."""
        found = self._parameters()
        for each in found[:: max(1, -(-len(found) // MAX_PARAMETERS))]:
            gradient = each.grad
            if gradient is not None and gradient.layout is torch.strided:
                yield id(each), gradient


def _mark(gradient: torch.Tensor) -> tuple[int, int]:
    return gradient.data_ptr(), gradient._version
