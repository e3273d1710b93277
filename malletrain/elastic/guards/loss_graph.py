"""The graph that autograd keeps behind a loss."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any


def nodes_behind(roots: Iterable[Any], most: int) -> Iterator[Any]:
    """Nodes and what lies behind them, each once, nearest first; `most` of them."""
    queue: deque[Any] = deque(roots)
    seen: set[Any] = set()
    while queue and len(seen) < most:
        node = queue.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        queue.extend(following for following, _ in node.next_functions)
