"""Who sends the training state to whom when a world begins. Pure: every member computes the same plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from malletrain.elastic.state.transfer import relay_tree


@dataclass(frozen=True, slots=True)
class MemberState:
    """What one process holds when a world begins.

    Attributes:
        has_state: whether it holds the training state.
        done: commit rounds it has committed.
        control_length: entries of the last round's control vector.
        ending: whether it was asked to end.
    """

    has_state: bool
    done: int
    control_length: int
    ending: bool = False


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """Ranks by what they need, each list in order.

    A node of which some process lacks the state counts as one without it.

    Attributes:
        donors: hold the newest state.
        behind: hold the state of the round before, and need the last round's sums.
        fresh: hold no state.
        newest: the round of the donors; -1 in a world that begins.
        local_size: processes a node.
        control_length: entries of the donors' last control vector.
        sharded: whether the processes of a node hold different parts of the state.
        all_end: whether every member was asked to end.
    """

    donors: list[int]
    behind: list[int]
    fresh: list[int]
    newest: int
    local_size: int
    control_length: int = 0
    sharded: bool = False
    all_end: bool = False

    def saves(self, rank: int) -> bool:
        """Whether this rank saves what is trained, if no step follows: one that holds the newest state, or all
        processes of a node if each holds a shard."""
        first = self.donors[0]
        return self.newest >= 0 and (
            rank // self.local_size == first // self.local_size if self.sharded else rank == first
        )

    def receivers(self) -> dict[int, list[int]]:
        """The state's way through the world: the ranks to which each rank sends. Every fresh rank receives once, from
        a rank at the same place of another node or in its own node, except those that none can reach (`stranded`)."""
        if self.local_size == 1:
            return relay_tree(self.donors, self.fresh)
        ways: dict[int, list[int]] = {}
        for place in range(self.local_size):
            donors = [rank for rank in self.donors if rank % self.local_size == place]
            fresh = [rank for rank in self.fresh if rank % self.local_size == place]
            if not donors and self.donors:
                lead = self.donors[0]
                first = lead - lead % self.local_size + place
                if first not in fresh or self.sharded:
                    continue
                ways.setdefault(lead, []).append(first)
                donors = [first]
                fresh.remove(first)
            for giver, takers in relay_tree(donors, fresh).items():
                ways.setdefault(giver, []).extend(takers)
        return ways

    def split_nodes(self) -> set[int]:
        """Nodes whose processes are in two steps of a sharded model: its collectives could not complete."""
        if not self.sharded:
            return set()
        return {rank // self.local_size for rank in self.behind} & {rank // self.local_size for rank in self.donors}

    def stranded(self) -> set[int]:
        """Nodes that cannot get the state: the processes with their part of it are a round behind."""
        reached = {taker for takers in self.receivers().values() for taker in takers}
        return {rank // self.local_size for rank in self.fresh if rank not in reached}


def plan_recovery(states: Sequence[MemberState], local_size: int, *, sharded: bool = False) -> RecoveryPlan:
    """The plan for a world.

    Args:
        states: of its processes, by rank.
        local_size: processes a node.
        sharded: whether the processes of a node hold different parts of the state.
    """
    # Where no process holds the state, training begins at the oldest member (all its processes, if sharded).
    first = range(local_size) if sharded else range(1)
    nodes = [range(n, n + local_size) for n in range(0, len(states), local_size)]
    holders = [rank for node in nodes if all(states[rank].has_state for rank in node) for rank in node]
    newest = max((states[rank].done for rank in holders), default=-1)
    donors = [rank for rank in holders if states[rank].done == newest] or list(first)
    behind = [rank for rank in holders if rank not in donors]
    fresh = [rank for rank in range(len(states)) if rank not in holders and rank not in donors]
    return RecoveryPlan(
        donors,
        behind,
        fresh,
        newest,
        local_size,
        states[donors[0]].control_length,
        sharded,
        all(state.ending for state in states),
    )
