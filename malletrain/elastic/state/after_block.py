"""What a script does to the model's parameters after the block of a step, such as to clip them.

That code runs after a step that is given up, too, and once more after its repetition. What it did to parameters is
taken back in between: they are copied where such a change was seen before, or could not have been seen yet. A change
that is seen for the first time after a step was given up is an error.
"""

from __future__ import annotations

import torch

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.state.overlapped_recovery import sampled_elements
from malletrain.elastic.state.sharded_model import local

#: Loop bodies that must have been seen before parameters are not copied.
MIN_BODIES_SEEN = 2

_Mark = tuple[int, torch.Tensor]


class AfterBlockChanges:
    """See the module.

    Args:
        model: whose parameters are looked at.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._seen = 0
        self._changes = False
        self._marks: list[_Mark] | None = None
        self._last: tuple[int, list[_Mark]] = -1, []  #: the step whose block left them, and its marks
        self._copies: list[torch.Tensor] | None = None
        self._given_up = False

    def committed(self, steps: int) -> None:
        """The block of a committed step has ended: see what the rest of the loop's body changes.

        Args:
            steps: committed so far.
        """
        self._marks = self._take_marks()
        self._last = steps, self._marks

    def unchanged(self, tensor: torch.Tensor, steps: int) -> bool:
        """Whether a parameter is certainly as the block of the last step left it. False where that was not seen.

        Args:
            tensor: the parameter, or a detached alias of it.
            steps: committed so far.
        """
        since, marks = self._last
        now = self._tensors()
        if since != steps or len(marks) != len(now):
            return False
        return any(
            each.data_ptr() == tensor.data_ptr() and not _differs(each, mark)
            for each, mark in zip(now, marks, strict=True)
        )

    def given_up(self) -> None:
        """The block of a step that is to be repeated has ended."""
        self._marks, self._given_up = self._take_marks(), True
        if self._changes or self._seen < MIN_BODIES_SEEN:
            self._copies = [each.detach().clone() for each in self._tensors()]

    def body_ended(self) -> None:
        """The loop's body has ended: take back what it changed, if the step is to be repeated.

        Raises:
            ElasticError: it changed parameters of which there is no copy.
        """
        marks, self._marks = self._marks, None
        copies, self._copies = self._copies, None
        given_up, self._given_up = self._given_up, False
        if marks is None:
            return
        changed = len(marks) != len(self._tensors()) or any(
            _differs(tensor, mark) for tensor, mark in zip(self._tensors(), marks, strict=True)
        )
        self._seen += 1
        self._changes = self._changes or changed
        if given_up and changed:
            if copies is None:
                raise ElasticError(
                    "the loop's body changes parameters after the `with s.step():` block, which counts twice as "
                    "the step before was given up: do it in the block, after backward()"
                )
            with torch.no_grad():
                for tensor, copy in zip(self._tensors(), copies, strict=True):
                    tensor.detach().copy_(copy)

    def _tensors(self) -> list[torch.Tensor]:
        return [local(parameter) for parameter in self._model.parameters()]

    def _take_marks(self) -> list[_Mark]:
        return [(tensor._version, sampled_elements(tensor)) for tensor in self._tensors()]


def _differs(tensor: torch.Tensor, mark: _Mark) -> bool:
    version, sample = mark
    return tensor._version != version or not torch.equal(sampled_elements(tensor), sample)
