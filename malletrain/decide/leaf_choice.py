"""Nodes on few leaf switches, as Slurm's topology/tree places a job: the leaf that it fills most, else the widest.

Slurm chooses so among the nodes that are idle. Where pilots hold nodes, those that leave decide which nodes are idle,
so they are chosen by the same rule: a main job spreads over no more switches than it would without pilots, and whole
leaves stay for the next job that asks for one (`_eval_nodes_topo` in src/plugins/select/cons_tres/job_test.c).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence


def leaf_order(
    on: Mapping[str, int], wanted: int, near: Collection[str] = (), room: Mapping[str, int] | None = None
) -> list[str]:
    """Leaves to take `wanted` nodes from, in this order: those in `near`, then the leaf with least `room` that holds
    the rest, or else the one with most nodes.

    `on`: leaf -> nodes that can be taken there; `room`: leaf -> nodes there without a main job, `on` if not given.
    """
    free = on if room is None else room
    order = sorted(on.keys() & set(near))
    left = wanted - sum(on[leaf] for leaf in order)
    others = on.keys() - set(order)
    whole = [(free.get(leaf, 0), leaf) for leaf in others if 0 < left <= on[leaf]]
    if left > 0 and not whole:
        for leaf in sorted(others, key=lambda name: (on[name], name), reverse=True):
            if left <= on[leaf]:
                break
            left -= on[leaf]
            order.append(leaf)
        whole = [(free.get(leaf, 0), leaf) for leaf in others.difference(order) if 0 < left <= on[leaf]]
    return [*order, min(whole)[1]] if whole else order


def on_few_leaves(
    names: Sequence[str],
    wanted: int,
    leaves: Mapping[str, str],
    near: Collection[str] = (),
    room: Mapping[str, int] | None = None,
) -> list[str]:
    """`wanted` of `names` (all, if there are fewer) on as few leaves as `leaf_order` finds, of each the first.

    Those on no leaf come last. The first `wanted` of all, where these are on fewer leaves outside `near`.
    """
    first = list(names[:wanted])
    if not leaves or len(names) <= wanted:
        return first
    on = Counter(leaves[name] for name in names if name in leaves)
    place_of = {leaf: at for at, leaf in enumerate(leaf_order(on, wanted, near, room))}
    found = sorted(names, key=lambda name: place_of.get(leaves.get(name, ""), len(place_of)))[:wanted]
    more = leaves_of(found, leaves) - set(near), leaves_of(first, leaves) - set(near)
    return found if len(more[0]) <= len(more[1]) else first


def leaves_of(names: Collection[str], leaves: Mapping[str, str]) -> set[str]:
    """The leaves that these nodes are on; one that is on none counts as a leaf by itself."""
    return {leaves.get(name, name) for name in names}
