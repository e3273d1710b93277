"""A script that no check could decide about, as it is too large to be run beside its training: before the first
growth, one step is made in the old world and again in the new one, and the gradients of the whole batch are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

#: Gradients differ beyond this share of their norm: bfloat16 has 8 bits, and rounding is a fraction of its last one.
TOLERANCE = 0.01

#: A difference below this share of the norm of all gradients is rounding alone, as for a bias before BatchNorm.
NEGLIGIBLE = 1e-3


class SizeTrial:
    """Gradients of one step in two worlds. `found`: called on each member that made it in both, with how they differ
    ("": they do not)."""

    def __init__(self) -> None:
        self.world: int | None = None  #: the generation whose next step is to be held and repeated
        self._tried_for = 0
        self.found: Callable[[str], None] = lambda _: None
        #: The step, its batch, and its gradients by name, until they are compared.
        self.held: tuple[int, int, dict[str, torch.Tensor]] | None = None

    def begins(self, world: int, following: int) -> bool:
        """Whether the next step of a world is to be tried before the `following` one is entered: once for each."""
        if following <= self._tried_for:
            return False
        self.world, self._tried_for = world, following
        return True

    def hold(self, step: int, batch: int, gradients: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Keep the gradients of a step, by name, in the memory of the host."""
        self.held = step, batch, {name: gradient.detach().to("cpu", copy=True) for name, gradient in gradients}

    def compare(self, step: int, batch: int, gradients: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Compare the gradients held with those of a step that is about to be committed, if it is the same one with
        the same batch, and tell `found`. Nothing is held after it."""
        if self.held is None:
            return
        (at, of_batch, before), self.held = self.held, None
        if (at, of_batch) == (step, batch):
            self.found(_difference(before, {name: gradient.detach().cpu() for name, gradient in gradients}))


def _difference(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> str:
    """How the gradients differ, by their norms, with the first tensor; "" where it is by rounding."""
    if (alone := before.keys() ^ after.keys()) != set():
        return f"{min(alone)} has a gradient at one size only"
    norms = {name: float(gradient.double().norm()) for name, gradient in before.items()}
    whole = sum(norm * norm for norm in norms.values()) ** 0.5
    for name, gradient in before.items():
        apart = float((after[name].double() - gradient.double()).norm())
        if not apart <= max(TOLERANCE * norms[name], NEGLIGIBLE * whole):
            return f"the gradient of {name} differs by {apart / (norms[name] or whole or 1.0):.2g} of its norm"
    return ""
