"""Notices losses that are means over something else than samples.

`cross_entropy` and `nll_loss` with class weights, or with targets that are ignored, divide by the weights of the
targets that count. Parts of a batch then have other divisors than the whole, and the session must be told which. The
graph of the loss tells: its `NllLossBackward` node keeps the divisor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import torch

#: Nodes of a loss's graph that are looked at, nearest first: a loss is a few terms, and its model lies behind them.
MAX_NODES = 32

#: `reduction="mean"` as the node keeps it (torch.nn._reduction).
_MEAN = 1


class LossMeanWatch:
    """While active, looks at each loss that `backward` is called on.

    Args:
        found: called with what a loss is a mean over, and the expression of the weight that the session needs.
        may_wait: whether to look at values that a GPU has yet to compute.
    """

    def __init__(self, found: Callable[[str, str], None], *, may_wait: bool) -> None:
        self._found = found
        self._may_wait = may_wait
        self._backward: Any = None

    def __enter__(self) -> None:
        self._backward = backward = torch.autograd.backward

        def watched(tensors: Any, *args: Any, **more: Any) -> None:
            for tensor in [tensors] if isinstance(tensors, torch.Tensor) else tensors:
                self._look(tensor)
            backward(tensors, *args, **more)

        torch.autograd.backward = watched

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.autograd.backward = self._backward

    def _look(self, loss: torch.Tensor) -> None:
        for node in _nll_nodes(loss.grad_fn):
            if node._saved_reduction != _MEAN:
                continue
            if node._saved_weight is not None:
                self._found("the class weights of its targets", "class_weights[y].sum()")
                continue
            target = node._saved_target
            seen = self._may_wait or not target.is_cuda
            if seen and float(node._saved_total_weight) != target.numel():
                ignored = _signed(node._saved_ignore_index)
                self._found("the targets that it does not ignore", f"(y != {ignored}).sum()")


def _nll_nodes(root: Any) -> Iterator[Any]:
    queue: deque[Any] = deque([root])
    seen: set[Any] = set()
    while queue and len(seen) < MAX_NODES:
        node = queue.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name().startswith("NllLoss"):
            yield node
        else:
            queue.extend(following for following, _ in node.next_functions)


def _signed(number: int) -> int:
    """A number that PyTorch keeps as an unsigned one."""
    return number - 2**64 if number >= 2**63 else number
