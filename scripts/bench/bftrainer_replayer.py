"""BFTrainer's own replayer, as published: its accounting and its programme, for comparisons with what it reports.

Liu et al., "BFTrainer", arXiv 2106.12091; github.com/BFTrainer/Replayer. What it does unlike
`malletrain.replay.engine`:

- Costs are charged in samples at the event, whatever time passes until the next one: a job that grows pays T_up
  times, one that shrinks T_down times its rate of before; one that loses nodes pays T_down times its rate of before,
  once. A short spell may so cost more than it trains.
- Growing from nothing costs nothing, and nothing has to be activated.
- At most so many jobs are there at once; others wait in the order of their file.
- Its constant M = N + 1 is too small for the rows that keep jobs from moving, |k - c| <= k - c + M d: no job can
  change by more than (N + 1) / 2 nodes at one event (`big_m_fault`).
- Values are raw samples: T O(k) - [k > c] T_up O(c) - [k < c] T_down O(c).

Its solver leaves open which nodes a job takes. Here a job takes free nodes by number and gives up its lowest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.traces.trace import IDLE
from malletrain.replay.workload import TrainingJob
from malletrain.sizing.knapsack import solve
from malletrain.sizing.problem import JobDemand, Problem, Value
from malletrain.sizing.values import ValueTable, value_table

#: The published defaults of its command line: `-Tfwd`, `-maxJ`.
HORIZON_S = 10.0
MOST_JOBS = 10


@dataclass(frozen=True, slots=True)
class Step:
    """One event: samples that its interval is credited with, the sizes decided, what they train a second and the
    samples that changing to them costs (credited with the next interval)."""

    at: float
    credited: float
    sizes: dict[int, int]
    rate: float
    cost: float


@dataclass
class Running:
    """A job that is there: nodes that it holds, samples/s, samples that its last change costs, samples trained."""

    each: TrainingJob
    held: list[int]
    rate: float = 0.0
    charge: float = 0.0
    done: float = 0.0


#: The nodes that each job in turn has next.
Plan = list[list[int]]
#: Told the jobs and the idle nodes (those that jobs hold among them), in numbers of the trace; None: leave all as is.
Decide = Callable[[Sequence[Running], frozenset[int]], Plan | None]


def replay_as_published(
    trace: ClusterTrace, jobs: Sequence[TrainingJob], decide: Decide | None = None, most_jobs: int = MOST_JOBS
) -> list[Step]:
    """BFTrainer's trajectory; by default each programme is solved to its optimum. `jobs` are on the trace's clock, in
    the order in which they are admitted; nodes idle at the begin are dealt to the first ones, as far as they may."""
    decide = decide or Exact()
    waiting = list(jobs)
    state = np.zeros(len(trace.nodes), bool)
    idle: set[int] = set()
    running: list[Running] = []
    steps: list[Step] = []
    before = trace.start
    for i, at in enumerate(trace.time.tolist()):
        part = slice(trace.first[i], trace.first[i + 1])
        nodes, now_idle = trace.node[part], trace.state[part] == IDLE
        left = set(nodes[state[nodes] & ~now_idle].tolist())
        come = nodes[~state[nodes] & now_idle].tolist()
        state[nodes] = now_idle
        if not left and not come and i > 0:
            continue
        credited = _credit(running, at - before, left)
        before = at
        running = [job for job in running if job.each.job.total_samples is None or _unfinished(job)]
        idle = (idle - left) | set(come)
        _admit(running, waiting, at, most_jobs)
        if i == 0:
            _begin(running, sorted(idle))
        elif idle and running:
            _resize(running, idle, decide)
        for job in running:
            job.rate = _rate(job.each, len(job.held))
        steps.append(
            Step(at, credited, {job.each.job.id: len(job.held) for job in running},
                 sum(job.rate for job in running), sum(job.charge for job in running))
        )  # fmt: skip
    return steps


def _unfinished(job: Running) -> bool:
    return job.done < (job.each.job.total_samples or 0.0)


def _credit(running: list[Running], seconds: float, left: set[int]) -> float:
    """Credits the interval that ends now, less what its begin was charged, and takes the nodes that left."""
    credited = 0.0
    for job in running:
        progress = seconds * job.rate - job.charge
        job.charge = 0.0
        if left and not left.isdisjoint(job.held):
            progress -= job.each.costs.shrink_s * job.rate
            job.held = [node for node in job.held if node not in left]
        job.done += progress
        total = job.each.job.total_samples
        if total is not None and job.done >= total:
            progress -= job.done - total
            job.done = total
        credited += progress
    return credited


def _admit(running: list[Running], waiting: list[TrainingJob], at: float, most: int) -> None:
    while waiting and len(running) < most and waiting[0].job.submitted_at <= at:
        running.append(Running(waiting.pop(0), []))


def _begin(running: list[Running], idle: list[int]) -> None:
    """The first event decides nothing: nodes are dealt out, and each job pays as if it had grown."""
    for i, node in enumerate(idle):
        if running and len(running[i % len(running)].held) < running[i % len(running)].each.job.max_nodes:
            running[i % len(running)].held.append(node)
    for job in running:
        job.charge = job.each.costs.grow_s * _rate(job.each, len(job.held))


def _rate(each: TrainingJob, nodes: int) -> float:
    return each.curve.throughput(nodes) if nodes >= each.job.min_nodes else 0.0


def _resize(running: list[Running], idle: set[int], decide: Decide) -> None:
    plan = decide(running, frozenset(idle))
    if plan is None:
        return
    for job, nodes in zip(running, plan, strict=True):
        rate = _rate(job.each, len(job.held))
        if len(nodes) < len(job.held):
            job.charge = job.each.costs.shrink_s * rate
        elif len(nodes) > len(job.held):
            job.charge = job.each.costs.grow_s * rate
        job.held = list(nodes)


@dataclass(frozen=True)
class Exact:
    """The published programme at its optimum."""

    horizon_s: float = HORIZON_S
    big_m_fault: bool = True

    def __call__(self, running: Sequence[Running], idle: frozenset[int]) -> Plan:
        table = self.table(running, len(idle))
        sizes = table.size[solve(table, len(idle)).rows].tolist()
        kept = [
            job.held[len(job.held) - size :] if size < len(job.held) else list(job.held)
            for job, size in zip(running, sizes, strict=True)
        ]
        free = sorted(idle.difference(*kept), reverse=True)
        for nodes, size in zip(kept, sizes, strict=True):
            while len(nodes) < size:
                nodes.append(free.pop())
        return kept

    def table(self, running: Sequence[Running], nodes: int) -> ValueTable:
        """What each size is worth to each job, numbered as they stand in `running`."""
        demands = tuple(
            JobDemand(number, len(job.held), job.each.job.min_nodes, job.each.job.max_nodes, job.each.curve,
                      grow_s=job.each.costs.grow_s, shrink_s=job.each.costs.shrink_s)
            for number, job in enumerate(running)
        )  # fmt: skip
        table = value_table(Problem(self.horizon_s, nodes, demands, Value.BFTRAINER))
        return _within(table, (nodes + 1) // 2) if self.big_m_fault else table

    def shortfall(self, running: Sequence[Running], idle: frozenset[int], sizes: Sequence[int]) -> float:
        """By which part of the optimum such sizes are worth less; 0 where they are as good."""
        table = self.table(running, len(idle))
        best = solve(table, len(idle)).objective
        worth = table.worth(table.rows_of(dict(enumerate(sizes))))
        return (best - worth) / abs(best) if best else best - worth


def _within(table: ValueTable, most_change: int) -> ValueTable:
    """Sizes further than so many nodes from the present one lose more than all jobs together can gain."""
    far = np.abs(table.size - table.current[table.row_job]) > most_change
    spread = np.maximum.reduceat(table.value, table.start[:-1]) - np.minimum.reduceat(table.value, table.start[:-1])
    return replace(table, value=table.value - far * (float(spread.sum()) + 1.0))
