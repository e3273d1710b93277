"""Policy `goodput`: throughput times statistical efficiency (Pollux: Qiao et al., OSDI 2021, eq. 6 to 8).

    goodput(k) = max_b  O(k, b) E(b)        E(b) = (phi + b0) / (phi + b)

with phi the gradient noise scale that the job reports, in samples, b0 its first (smallest) batch: beyond the noise
scale, a larger batch makes less progress a sample. Goodput then takes the place of throughput in the problem's own
values, and the plan is the best one. A job that reports no noise scale, or has one batch only, counts with its
throughput.

Pollux searches by a genetic algorithm over placements and a fairness exponent of its own; here the plan is exact over
counts, and fairness is the problem's alpha.
"""

from __future__ import annotations

from dataclasses import replace

from malletrain.domain.decision import SizingStatus
from malletrain.sizing import knapsack
from malletrain.sizing.batching import at_best_batches, best_batch, statistical_efficiency
from malletrain.sizing.constraints import plan_of
from malletrain.sizing.policy import Need, Policy
from malletrain.sizing.problem import Problem, Sizes
from malletrain.sizing.values import ValueRowCache, value_table


class Goodput(Policy):
    """The best plan where progress, not samples, is what counts."""

    name = "goodput"
    needs = frozenset({Need.BATCHES, Need.NOISE_SCALE})

    def size(self, problem: Problem, cache: ValueRowCache | None = None) -> Sizes:
        jobs = tuple(replace(j, batches=()) if j.noise_scale is None else j for j in problem.jobs)
        problem = replace(problem, jobs=jobs)
        table = value_table(at_best_batches(problem, statistical_efficiency), cache)
        best = knapsack.solve(table, problem.nodes)
        batches = {
            job.id: best_batch(job, size, statistical_efficiency)
            for job, size in zip(problem.in_order(), table.size[best.rows].tolist(), strict=True)
            if job.batches and size
        }
        reason, status = "most goodput, proven best", SizingStatus.OPTIMAL
        return plan_of(problem, table, best.rows, reason, status, best.bound, work=best.work, batches=batches)
