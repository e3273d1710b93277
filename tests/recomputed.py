"""A daemon's decisions made anew from its journal: what was known then is folded, and the same rules size again.

The journal does not keep what Slurm showed, so each decision tells how many nodes there were to share out, what each
job held of them and how far sizing looked ahead (DECIDED). Jobs, curves, costs and tasks follow from earlier events.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from malletrain.decide.decision import decide
from malletrain.decide.draft import Situation
from malletrain.decide.rules import Rules
from malletrain.domain.event import Event, SizesDecided
from malletrain.domain.job import JobView, PilotPhase
from malletrain.domain.snapshot import Node, NodeState, SlurmJob, SlurmState, Snapshot
from malletrain.loop.ledger import Ledger
from malletrain.sizing.objective import Objective
from malletrain.sizing.policy import Policy

#: What a pilot that does not count stands on: its node is to be given back.
_GIVEN_UP = "given-up"


@dataclass(frozen=True, slots=True)
class Recomputed:
    """One decision, by its number in the journal: the sizes that were decided, and those that come out now."""

    seq: int
    at: float
    decided: Mapping[int, int]
    recomputed: Mapping[int, int]

    @property
    def same(self) -> bool:
        """Whether both have the same size for every job."""
        return self.decided == self.recomputed


def recomputed(events: Iterable[Event], policy: Policy, rules: Rules) -> Iterator[Recomputed]:
    """Every decision of a journal, made anew by `policy` and `rules`, which are to be those of the daemon."""
    ledger = Ledger()
    for event in events:
        if isinstance(event.payload, SizesDecided) and event.payload.nodes is not None:
            yield _again(event, event.payload, event.payload.nodes, ledger, policy, rules)
        ledger.apply([event])


def _again(
    event: Event, decided: SizesDecided, nodes_shared: int, ledger: Ledger, policy: Policy, rules: Rules
) -> Recomputed:
    now, held = event.at, decided.held
    views: dict[int, JobView] = {}
    on: dict[str, str] = {}
    for job_id, view in ledger.views().items():
        views[job_id] = _holding(view, held.get(job_id, 0), now, on)
    free = [f"free{i}" for i in range(nodes_shared - len(on))]
    nodes = tuple(Node(name, NodeState.IDLE, (rules.harvest_partition,)) for name in [*on.values(), *free])
    situation = Situation(
        snapshot=Snapshot(now, nodes, tuple(_row(pilot, node, now, rules) for pilot, node in on.items())),
        views=views,
        now=now,
        over_since=ledger.over_since(),
        drained=frozenset({_GIVEN_UP}),
        used=ledger.used(now) if rules.objective is Objective.FAIR else {},
        spent=ledger.spent(rules.budgets, now),
        known=ledger.known(),
    )
    # The reserve and the limit on pilots are in the number of nodes already.
    plain = replace(
        rules, keep_idle=0, keep_leaves=0, max_pilots=len(nodes), max_pilot_s=1e7, horizon_s=decided.horizon_s,
        include_nodes=frozenset(), exclude_nodes=frozenset(),
    )  # fmt: skip
    sizes = decide(situation, policy, plain).decision.sizes
    return Recomputed(event.seq, now, decided.sizes, dict(sizes))


def _holding(view: JobView, count: int, now: float, on: dict[str, str]) -> JobView:
    """The view with `count` of its pilots on nodes that they keep, told in `on`, and all others on their way out."""
    pilots = dict(view.pilots)
    pilots |= {p.id: replace(p, phase=PilotPhase.LEAVING, node="", since=now) for p in view.leaving}
    for place, pilot in enumerate(view.staying):
        node = f"held{len(on)}" if place < count else _GIVEN_UP
        pilots[pilot.id] = replace(
            pilot, phase=PilotPhase.RUNNING, node=node, since=now, started_at=now, ends_at=math.inf
        )
        if place < count:
            on[pilot.id] = node
    return replace(view, pilots=pilots)


def _row(pilot: str, node: str, now: float, rules: Rules) -> SlurmJob:
    """A pilot as the queue shows it."""
    return SlurmJob(
        id=pilot, raw_id=0, user="", account="", partition=rules.harvest_partition, qos="",
        state=SlurmState.RUNNING, start_time=now, nodes=(node,),
    )  # fmt: skip
