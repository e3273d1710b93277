"""A network of nodes for a test, where the machine permits one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scripts.lab.node_network import NodeNetwork, why_not_permitted


def network_of(nodes: int) -> Iterator[NodeNetwork]:
    """What a fixture yields: a network of so many nodes, closed afterwards. Skips where none can be made."""
    if why := why_not_permitted():
        pytest.skip(why)
    with NodeNetwork(nodes) as made:
        yield made
