"""Gradients of an earlier step to which a step adds its own: accumulation across steps.

Gradients are sums over all workers once a step is committed. Where the next step adds to them, each worker adds its
part to the whole sum of before, which then counts once for each worker; and a worker that joins has none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

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
