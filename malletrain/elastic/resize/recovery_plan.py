"""What the roll call of a new world says: who holds the training state, who is a round behind, who has nothing, and
so who gives what to whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from malletrain.elastic.state.transfer import tree


@dataclass(frozen=True, slots=True)
class Entry:
    """What a process says: whether it holds the state, how many rounds it has committed, how long the words of the
    last one were; whether it can give the state away while it trains on."""

    whole: bool
    done: int
    words: int
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
    places: int
    words: int = 0
    sharded: bool = False
    lends: bool = False

    def givers(self) -> dict[int, list[int]]:
        """The state's way: to each fresh process from one giver, which is at the same place of another node, or in
        the same node. Processes that nobody can reach are left out (see `stranded`)."""
        if self.places == 1:
            return tree(self.donors, self.fresh)
        ways: dict[int, list[int]] = {}
        for place in range(self.places):
            donors = [rank for rank in self.donors if rank % self.places == place]
            fresh = [rank for rank in self.fresh if rank % self.places == place]
            if not donors and self.donors:
                lead = self.donors[0]
                first = lead - lead % self.places + place
                if first not in fresh or self.sharded:
                    continue
                ways.setdefault(lead, []).append(first)
                donors = [first]
                fresh.remove(first)
            for giver, takers in tree(donors, fresh).items():
                ways.setdefault(giver, []).extend(takers)
        return ways

    def apart(self) -> set[int]:
        """Nodes whose processes are in two steps of a sharded model: its collectives would never meet."""
        if not self.sharded:
            return set()
        return {rank // self.places for rank in self.behind} & {rank // self.places for rank in self.donors}

    def stranded(self) -> set[int]:
        """Nodes that nobody can give the state to: who held their part of it has committed no round more."""
        reached = {taker for takers in self.givers().values() for taker in takers}
        return {rank // self.places for rank in self.fresh if rank not in reached}


def read(entries: Sequence[Entry], places: int, *, sharded: bool = False) -> RecoveryPlan:
    """The roll of a world.

    Args:
        entries: by rank.
        places: processes a node.
        sharded: whether each place holds another part of the state.
    """
    # Who knows where to begin when nobody holds the state: the oldest member, with all its parts.
    first = range(places) if sharded else range(1)
    nodes = [range(n, n + places) for n in range(0, len(entries), places)]
    holders = [rank for node in nodes if all(entries[rank].whole for rank in node) for rank in node]
    newest = max((entries[rank].done for rank in holders), default=-1)
    donors = [rank for rank in holders if entries[rank].done == newest] or list(first)
    behind = [rank for rank in holders if rank not in donors]
    fresh = [rank for rank in range(len(entries)) if rank not in holders and rank not in donors]
    # In a world that begins, and where someone makes the last round good, there is nothing to train on with.
    lends = newest > 0 and places == 1 and not sharded and not behind and bool(fresh)
    return RecoveryPlan(
        donors,
        behind,
        fresh,
        newest,
        places,
        entries[donors[0]].words,
        sharded,
        lends and all(entries[rank].lends for rank in donors),
    )
