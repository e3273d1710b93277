"""What choosing nodes by forecast gains in training: the same log, jobs and sizes, only the choice of nodes differs.

    python -m scripts.bench.forecast_replay TRACE [--nodes 1024] [--days 1,5,9] [--hours 24] [--mix imagenet:10]
                                  [--costs GROW/SHRINK/ACTIVATE,..] [--choices name,forecast,..] [--json FILE]

Choices: `name` (what the daemon does without forecast), `age` (the longest idle first, the newest given up),
`forecast` (`malletrain.decide.placement`; the forecast has seen the log's past, and learns on in
the window). `clairvoyant` is `forecast` told each hole's true end: the most that this rule could gain.
`swaps` and `swaps_known` are the two with nodes exchanged between
jobs at every decision for nothing: no activation, no stall, so that each job has nodes that opened, or end, one
after the other. What they gain is what swaps could gain at most if they cost nothing.
Given are points of share of ideal (1 point = .01) more than `age`, paired by window.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np

from malletrain.decide.holes import Foresight
from malletrain.decide.placement import place
from malletrain.domain.decision import Hole, OpenHole
from malletrain.domain.job import JobPhase, JobView, Pilot, PilotPhase, ResizeCosts
from malletrain.learn.hole_forecast import HoleHistory
from malletrain.replay.cluster_trace import ClusterTrace, Window, cluster_trace
from malletrain.replay.engine import Engine
from malletrain.replay.options import NodeOrder, Options
from malletrain.replay.result import Cause
from malletrain.replay.scoring.figures import score
from malletrain.replay.sizer import PolicyChoice, PolicySizer
from malletrain.replay.traces import read_trace
from malletrain.replay.traces.trace import IDLE
from malletrain.replay.workload import TrainingJob, mix, shifted

FAR_S = 1e7
KNOWING = ("clairvoyant", "swaps_known")


class Foreseeing(Engine):
    """The replay's engine with the daemon's own placement by forecast."""

    def __init__(
        self,
        trace: ClusterTrace,
        jobs: list[TrainingJob],
        sizer: PolicySizer,
        past: HoleHistory,
        ends: dict[tuple[int, float], float] | None = None,
    ) -> None:
        super().__init__(trace, jobs, sizer, Options())
        self.history, self.ends = past, ends
        self.size_of: dict[float, int] = {}
        self.views = [JobView(e.job, JobPhase.RUNNING, curve=e.curve, costs=e.costs) for e in jobs]

    def _change(self, step: int) -> None:
        part = slice(self.trace.first[step], self.trace.first[step + 1])
        nodes, new = self.trace.node[part], self.trace.state[part]
        gone = nodes[(self.state[nodes] == IDLE) & (new != IDLE)]
        for began in np.unique(self.idle_since[gone]).tolist():
            if began > self.trace.start:
                left = int((self.idle_since[gone] == began).sum())
                self.history.add(self.now, self.now - began, self.size_of[began], taken=True, nodes=left)
        super()._change(step)
        self.size_of[self.now] = int((self.idle_since[nodes] == self.now).sum())

    def _decide(self) -> None:
        self._due = False
        live = self._live
        if not len(live):
            return
        sizes = self.sizer(self.live, self.held[live].tolist(), self.n_idle)
        if (np.array(sizes) == self.held[live]).all():
            return
        holes = self._foreseen()
        stays: dict[int, list[Pilot]] = {j: [] for j in self.live}
        for node in np.flatnonzero(self.owner >= 0).tolist():
            j, warm = int(self.owner[node]), self.now if self.warm[node] else None
            stays[j].append(Pilot(f"{node:06d}", j, PilotPhase.RUNNING, 0.0, f"{node:06d}", warm))
        wanted = {int(j): int(size) for j, size in zip(live, sizes, strict=True)}
        views = {j: self.views[j] for j in self.live}
        # As the replay has it: what some give up, others take at the same moment.
        gone = place(wanted, views, stays, [], {}, holes, self.now)
        for j, pilots in gone.drop.items():
            self._release(np.array([int(p.node) for p in pilots], np.int64), j, Cause.SHRINK, stall=True)
        free = [holes[f"{node:06d}"] for node in np.flatnonzero((self.state == IDLE) & (self.owner < 0)).tolist()]
        found = place(wanted, views, gone.keep, free, {}, holes, self.now)
        for j, taken in found.take.items():
            if taken:
                new = np.array([int(h.node) for h in taken], np.int64)
                self._begin(new, np.array([j]), np.array([len(new)]))

    def _foreseen(self) -> dict[str, Hole]:
        since = {f"{n:06d}": float(self.idle_since[n]) for n in np.flatnonzero(self.state == IDLE).tolist()}
        if self.ends is not None:
            lasts = {name: self.ends[int(name), began] - self.now for name, began in since.items()}
            return {name: Hole(name, math.inf, "", lasts[name], began) for name, began in since.items()}
        end = (self.now + FAR_S, "")
        opened = {name: OpenHole(began, self.size_of.get(began, 1)) for name, began in since.items()}
        foresight = Foresight(opened, self.history.forecast(), self.now)
        return {name: Hole(name, *end, *foresight.of(name, end[0])) for name in since}


class Swapping(Foreseeing):
    """After every decision the nodes that train are dealt out anew, at no cost, as many to each job as it has."""

    def _decide(self) -> None:
        super()._decide()
        nodes = np.flatnonzero(self.warm)
        if self.ends is None:
            by = self.idle_since[nodes]
        else:
            by = -np.array(
                [self.ends[n, b] for n, b in zip(nodes.tolist(), self.idle_since[nodes].tolist(), strict=True)]
            )
        largest_first = sorted(self.live, key=lambda j: (-self.world[j], j))
        self.owner[nodes[np.lexsort((nodes, by))]] = np.repeat(largest_first, self.world[largest_first])


def past_of(trace: ClusterTrace) -> HoleHistory:
    """What was seen before the window: the same nodes, from the log's begin."""
    history = HoleHistory()
    idle = trace.intervals()
    _, which, sizes = np.unique(idle.begin, return_inverse=True, return_counts=True)
    for i in np.argsort(idle.end, kind="stable").tolist():
        if not idle.cut[i]:
            history.add(float(idle.end[i]), float(idle.end[i] - idle.begin[i]), int(sizes[which[i]]), taken=True)
    return history


def jobs_of(text: str, costs: str, start: float) -> list[TrainingJob]:
    grow, shrink, activate = map(float, costs.split("/"))
    return list(shifted(mix(text, ResizeCosts(activate, grow, shrink)), start))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--nodes", type=int, default=1024)
    parser.add_argument("--days", default="1,5,9")
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--mix", default="imagenet:10")
    parser.add_argument("--costs", default="18/12/0,18/12/20")
    parser.add_argument("--choices", default="name,forecast,clairvoyant,swaps,swaps_known")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    log = read_trace(given.trace)
    choices = ("age", *given.choices.split(","))
    found = []
    for day in map(float, given.days.split(",")):
        begin = day * 86400.0
        window = Window(start_after=begin, end_after=begin + given.hours * 3600, node_count=given.nodes)
        trace = cluster_trace(log, window)
        past = cluster_trace(log, Window(end_after=begin, node_count=given.nodes)) if begin else None
        idle = trace.intervals()
        ends = {(int(n), float(b)): float(e) for n, b, e in zip(idle.node, idle.begin, idle.end, strict=True)}
        for costs in given.costs.split(","):
            jobs = jobs_of(given.mix, costs, trace.start)
            shares: dict[str, float] = {}
            for choice in choices:
                sizer = PolicySizer(PolicyChoice("exact", "exact", 300.0), jobs)
                engine: Engine
                if choice in ("name", "age"):
                    engine = Engine(trace, jobs, sizer, Options(order=NodeOrder(choice)))
                else:
                    before = past_of(past) if past is not None else HoleHistory()
                    kind = Swapping if choice.startswith("swaps") else Foreseeing
                    engine = kind(trace, jobs, sizer, before, ends if choice in KNOWING else None)
                share = score(engine.run(), trace.seconds).share_of_ideal
                assert share is not None
                shares[choice] = share
            found.append({"day": day, "costs": costs, "shares": shares})
            more = {c: 100 * (shares[c] - shares["age"]) for c in choices if c != "age"}
            gains = "  ".join(f"{choice} {points:+.2f}" for choice, points in more.items())
            print(f"day {day:g}  costs {costs:>8}  age {shares['age']:.4f}  {gains}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
