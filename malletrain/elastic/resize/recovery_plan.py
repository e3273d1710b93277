"""What the roll call of a new world says: who holds the training state, who is a round behind, who has nothing, and
so who gives what to whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from malletrain.elastic.state.transfer import relay_tree


@dataclass(frozen=True, slots=True)
class Entry:
    """What a process says: whether it holds the state, how many rounds it has committed, how long the words of the
    last one were; whether it can give the state away while it trains on."""

    has_state: bool
    done: int
    control_length: int
    lends: bool = False


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """Ranks, in order. `newest`: the round that donors hold; -1 in a world that begins.

    `places`: processes a node. A node of which not all processes hold the state counts as one that has nothing.
    `sharded`: each place holds another part of the state. `lends`: newcomers can be given it while the donors make
    their next step.
    """

    donors: list[int]
    behind: list[int]
    fresh: list[int]
    newest: int
    local_size: int
    control_length: int = 0
    sharded: bool = False
    lends: bool = False

    def givers(self) -> dict[int, list[int]]:
        """The state's way: to each fresh process from one giver, which is at the same place of another node, or in
        the same node. Processes that nobody can reach are left out (see `stranded`)."""
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

    def apart(self) -> set[int]:
        """Nodes whose processes are in two steps of a sharded model: its collectives would never meet."""
        if not self.sharded:
            return set()
        return {rank // self.local_size for rank in self.behind} & {rank // self.local_size for rank in self.donors}

    def stranded(self) -> set[int]:
        """Nodes that nobody can give the state to: who held their part of it has committed no round more."""
        reached = {taker for takers in self.givers().values() for taker in takers}
        return {rank // self.local_size for rank in self.fresh if rank not in reached}


def read(entries: Sequence[Entry], local_size: int, *, sharded: bool = False) -> RecoveryPlan:
    """The roll of a world.

    Args:
        entries: by rank.
        places: processes a node.
        sharded: whether each place holds another part of the state.
    """
    # Who knows where to begin when nobody holds the state: the oldest member, with all its parts.
    first = range(local_size) if sharded else range(1)
    nodes = [range(n, n + local_size) for n in range(0, len(entries), local_size)]
    holders = [rank for node in nodes if all(entries[rank].has_state for rank in node) for rank in node]
    newest = max((entries[rank].done for rank in holders), default=-1)
    donors = [rank for rank in holders if entries[rank].done == newest] or list(first)
    behind = [rank for rank in holders if rank not in donors]
    fresh = [rank for rank in range(len(entries)) if rank not in holders and rank not in donors]
    # In a world that begins, and where someone makes the last round good, there is nothing to train on with.
    lends = newest > 0 and local_size == 1 and not sharded and not behind and bool(fresh)
    return RecoveryPlan(
        donors,
        behind,
        fresh,
        newest,
        local_size,
        entries[donors[0]].control_length,
        sharded,
        lends and all(entries[rank].lends for rank in donors),
    )
