"""The reserve: idle nodes that no pilot takes, and that are made free again when a main job has taken them: what
`srun -I`, a hetjob, and the first jobs of a burst start on. Slurm fills nodes of the lowest Weight first, so the
reserve is of those."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from malletrain.decide.nodes_left import HarvestedNode
from malletrain.decide.rules import Rules
from malletrain.domain.decision import Hole
from malletrain.domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Reserve:
    """`kept`: node that is free, or soon will be -> why it stays so; `leave`: pilot -> why it makes room."""

    kept: Mapping[str, str]
    leave: Mapping[str, str]


def split_reserve(keep_idle: int, free: int, coming: int) -> tuple[int, int, int]:
    """How many of `keep_idle` nodes are free ones (the worst), how many are `coming` free, and how many pilots are to
    leave because these do not do."""
    of_free = min(keep_idle, free)
    of_coming = min(keep_idle - of_free, coming)
    return of_free, of_coming, keep_idle - of_free - of_coming


def plan_reserve(
    free: Sequence[Hole], harvested: Sequence[HarvestedNode], coming: Collection[str], snapshot: Snapshot,
    rules: Rules,
) -> Reserve:  # fmt: skip
    """Which of the `free` holes (best first) and of nodes that are `coming` free stay empty, and which pilots leave,
    of those of the `harvested` nodes, because too few do.

    First `keep_leaves` whole leaf switches on which no main job runs, those with the fewest pilots; then single nodes
    up to `keep_idle` in all, next to those that are kept already and of the least worth to training.
    """
    leaves, leave = snapshot.leaves, dict[str, str]()
    kept: dict[str, str] = {}
    empty, pilots = {hole.node for hole in free}.union(coming), {node.node: node for node in harvested}
    emptiest = _emptiest(empty, pilots, leaves) if rules.keep_leaves else []
    for leaf, nodes in emptiest[: rules.keep_leaves]:
        why = f"on leaf {leaf}, which stays idle (pool.keep_leaves = {rules.keep_leaves})"
        kept |= {name: why for name in nodes if name in empty}
        leave |= {pilots[name].pilot: why for name in nodes if name in pilots}
    missing = max(0, rules.keep_idle - len(kept) - len(leave))
    why = f"one of {rules.keep_idle} nodes that stay idle ({rules.keep_why or 'pool.keep_idle'})"
    beside = {leaves[name] for name in kept}
    singles = [name for name in [*(hole.node for hole in reversed(free)), *sorted(coming)] if name not in kept]
    singles.sort(key=lambda name: leaves.get(name) not in beside)
    kept |= dict.fromkeys(singles[:missing], why)

    def price(node: HarvestedNode) -> tuple[int, float, str]:
        slurm_node = snapshot.node.get(node.node)
        return slurm_node.weight if slurm_node else 1, node.cost, node.node

    others = sorted((node for node in harvested if node.pilot not in leave), key=price)
    leave |= {node.pilot: why for node in others[: split_reserve(missing, len(singles), 0)[2]]}
    return Reserve(kept, leave)


def _emptiest(
    empty: set[str], pilots: Mapping[str, HarvestedNode], leaves: Mapping[str, str]
) -> list[tuple[str, list[str]]]:
    """The leaves with nothing but empty nodes and pilots, those whose making free costs least first."""
    of_leaf: dict[str, list[str]] = {}
    for name, leaf in sorted(leaves.items()):
        of_leaf.setdefault(leaf, []).append(name)

    def price(item: tuple[str, list[str]]) -> tuple[int, float, str]:
        held = [pilots[name] for name in item[1] if name in pilots]
        return len(held), sum(node.cost for node in held), item[0]

    without = empty.union(pilots)
    return sorted((item for item in of_leaf.items() if without.issuperset(item[1])), key=price)
