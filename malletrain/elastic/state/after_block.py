"""What a script does to the model's parameters after the block of a step, such as to clip them.

That code runs after a step that is given up, too, and once more after its repetition. What it did to parameters is
taken back in between: they are copied where such a change was seen before, or could not have been seen yet. A change
that is seen for the first time after a step was given up is an error.
"""

from __future__ import annotations

import torch

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.state.sharded_model import local

#: Loop bodies that are looked at, beside the last one of each epoch, and that must have been before parameters are
#: not copied.
BODIES_SEEN, MIN_BODIES_SEEN = 8, 2


class AfterBlockChanges:
    """See the module.

    Args:
        model: whose parameters are looked at.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._seen = 0
        self._changes = False
        self._versions: list[int] | None = None
        self._copies: list[torch.Tensor] | None = None
        self._given_up = False

    def committed(self, *, ends_epoch: bool) -> None:
        """The block of a committed step has ended: see whether the rest of the loop's body changes parameters."""
        if self._seen < BODIES_SEEN or ends_epoch:
            self._versions = self._count_writes()

    def given_up(self) -> None:
        """The block of a step that is to be repeated has ended."""
        self._versions, self._given_up = self._count_writes(), True
        if self._changes or self._seen < MIN_BODIES_SEEN:
            self._copies = [local(each).detach().clone() for each in self._model.parameters()]

    def body_ended(self) -> None:
        """The loop's body has ended: take back what it changed, if the step is to be repeated.

        Raises:
            ElasticError: it changed parameters of which there is no copy.
        """
        if self._versions is None:
            return
        changed = self._versions != self._count_writes()
        copies, given_up = self._copies, self._given_up
        self._versions, self._copies, self._given_up = None, None, False
        self._seen += 1
        self._changes = self._changes or changed
        if not given_up:
            return
        if copies is not None:
            for parameter, copy in zip(self._model.parameters(), copies, strict=False):
                local(parameter).detach().copy_(copy)
        elif changed:
            raise ElasticError(
                "the loop's body changes parameters after the `with s.step():` block, which counts twice as the "
                "step before was given up: do it in the block, after backward()"
            )

    def _count_writes(self) -> list[int]:
        return [each._version for each in self._model.parameters()]
