"""At every state that the engine reaches, the daemon's decision has the same sizes and the same nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given

from malletrain.decide.decision import decide
from malletrain.decide.draft import Situation
from malletrain.domain.decision import LeavePilot, StartPilot
from malletrain.domain.job import JobPhase, JobView, Pilot, PilotPhase
from malletrain.domain.snapshot import Node, NodeState, SlurmJob, SlurmState, Snapshot
from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.engine import Engine
from malletrain.replay.loop_engine import NO_LIMIT_S, REPLAY_RULES
from malletrain.replay.options import Options
from malletrain.replay.sizer import PolicySizer, SizeBounds, parse_policy
from malletrain.replay.traces.trace import IDLE
from malletrain.replay.workload import TrainingJob
from malletrain.sizing.registry import policy
from tests.replay.small import traces, workloads


class Doubled(PolicySizer):
    """Asks the daemon's decision too, from a snapshot and views of the engine's state."""

    engine: Engine

    def __call__(
        self, live: Sequence[int], counts: Sequence[int], nodes: int, bounds: SizeBounds | None = None
    ) -> list[int]:
        sizes = super().__call__(live, counts, nodes, bounds)
        decision = decide(situation(self.engine), policy("exact"), REPLAY_RULES).decision
        assert [decision.sizes[self.engine.jobs[j].job.id] for j in live] == sizes
        self.leaves = {a.node for a in decision.actions if isinstance(a, LeavePilot)}
        self.starts = {(a.job_id, a.node) for a in decision.actions if isinstance(a, StartPilot)}
        return sizes


class Checked(Engine):
    """Compares the nodes once the sizes are applied."""

    def _decide(self) -> None:
        sizer = self.sizer
        assert isinstance(sizer, Doubled)
        before = self.owner.copy()
        sizer.leaves, sizer.starts = set(), set()
        super()._decide()
        name = self.trace.nodes
        left = {name[i] for i in np.flatnonzero((before >= 0) & (self.owner != before))}
        took = {
            (self.jobs[self.owner[i]].job.id, name[i])
            for i in np.flatnonzero((self.owner >= 0) & (self.owner != before))
        }
        assert sizer.leaves == left
        if not left:  # else the daemon waits until the nodes are seen free
            assert sizer.starts == took


def situation(engine: Engine) -> Situation:
    names, now = engine.trace.nodes, engine.now
    views: dict[int, JobView] = {}
    rows = []
    for j in engine.live:
        each = engine.jobs[j]
        pilots = {}
        for i in np.flatnonzero(engine.owner == j):
            started = float(engine.started[i])
            # Ids sort as the engine breaks ties: by start, then by node.
            name = f"{each.job.id}_{started - engine.trace.start:012.3f}_{i:04d}"
            ends = started + NO_LIMIT_S
            pilots[name] = Pilot(name, each.job.id, PilotPhase.RUNNING, started, names[i], started, ends)
            rows.append(
                SlurmJob(
                    name,
                    1,
                    "u",
                    "a",
                    "harvest",
                    "q",
                    SlurmState.RUNNING,
                    start_time=started,
                    end_time=ends,
                    nodes=(names[i],),
                )
            )
        for k in range(each.job.max_nodes):
            name = f"{each.job.id}_held_{k:04d}"
            pilots[name] = Pilot(name, each.job.id, PilotPhase.HELD, now)
        weighed = replace(each.job, total_samples=None)
        phase = JobPhase.RUNNING if engine.world[j] else JobPhase.QUEUED
        views[each.job.id] = JobView(weighed, phase, pilots, curve=each.curve, costs=each.costs)
    busy = tuple(names[i] for i in np.flatnonzero(engine.state != IDLE))
    rows.append(SlurmJob("1", 1, "m", "m", "main", "m", SlurmState.RUNNING, nodes=busy))
    nodes = tuple(Node(name, NodeState.IDLE, ("harvest",)) for name in names)
    return Situation(Snapshot(now, nodes, tuple(rows)), views, now)


@given(machine=traces(), jobs=workloads())
def test_sizes_and_nodes(machine: ClusterTrace, jobs: list[TrainingJob]) -> None:
    sizer = Doubled(parse_policy("exact", None), jobs)
    sizer.engine = Checked(machine, jobs, sizer, Options())
    sizer.engine.run()
