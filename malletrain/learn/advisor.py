"""The job profiling advisor: which size of which job to measure next, and when to stop. Pure.

MalleTrain's key idea (Ma et al., ICPE 2024): users do not know how their job scales, and the allocator need not ask
them. Probes are training: a job is given the size for a few windows, through the sizing problem itself.

1. A size's *gain* is the value of information for the allocation (`malletrain.learn.value_of_information`), for as
   long as the job will run, and for all jobs of its application that wait to learn from it. Its *cost* is what the
   job trains less while it is measured, and its resizes. It is worth probing where the gain is above the cost.
2. The dearest resize is a start of new nodes; sizes below the present one cost next to nothing. A job starts at its
   share of the nodes and is measured downwards, and upwards as holes allow.
3. No job is given more than twice the largest size that was measured, on it or on another job of its application;
   nor a size beyond one where throughput has begun to fall, or hardly grew any more.
   Probes are for jobs that are not measured on their way up (`malletrain.learn.scale_up_profiling`): those that are
   relaunched, that got a node after the other, or whose steps are long.
4. The best candidates enter the sizing problem as a bonus on that size: whoever has better use for the nodes still
   gets them. A job that takes its bonus is locked there until its windows are full, its nodes are lost, or patience
   ends. Nodes under probe are capped; of an application without measurements one job at a time is probed, for all
   of them: a wave of new jobs does not starve the others.

With `Profile.DOWNWARD` a job is profiled as MalleTrain has it, whatever it is worth: it begins as large as the sizing
has it, and each halving down to its smallest size is measured, since shrinking is the cheaper change.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from malletrain.domain.job import Curve, Probe, Profile, ResizeCosts
from malletrain.learn.curve import PRIOR_JOBS, CurveFit
from malletrain.learn.prior_jobs import PriorJobs
from malletrain.learn.value_of_information import InformationValue, information_values
from malletrain.sizing.values import alpha_fair, thinned

#: How a job is profiled for which sizes are tried.
TRYING = frozenset({Profile.ACTIVE, Profile.DOWNWARD})

#: Most jobs that are considered for a probe in one decision; each costs about a millisecond.
MAX_JOBS_CONSIDERED = 64
#: Most probes of one size of one job in `PROBE_PERIOD_S`, whether they measured it or not.
MAX_TRIES_PER_SIZE = 2
#: Over which probes are counted, unless the job has changed its phase since.
PROBE_PERIOD_S = 3600.0
#: Largest size to try over the largest measured one (Pollux, OSDI 2021: at most twice).
MAX_EXPLORATION_FACTOR = 2
#: The gain must be at least this part of what the job trains: less is noise.
MIN_RELATIVE_GAIN = 5e-3
#: Measured sizes near the present one, itself among them, after which a job is not probed: replayed, more probes cost
#: more than they brought. What is farther than the factor says nothing of where the best size lies beside it.
ENOUGH_NEAR_SIZES = 3
NEAR_FACTOR = 4
#: The gain must exceed the cost by this factor: some of it would come for free, from resizes that happen anyway.
MIN_GAIN_OVER_COST = 2.0


@dataclass(frozen=True, slots=True)
class ProbeRules:
    """What a site allows for measuring."""

    profile: Profile = Profile.ACTIVE  #: of live jobs that say nothing themselves
    restart_profile: Profile = Profile.PASSIVE  #: of those in restart mode, for which every size tried is a relaunch
    windows: int = 2  #: of training that make a size measured
    #: Most nodes that jobs are given beyond their present ones to be measured, as a part of all that may be used.
    #: Jobs under probe hold half of the nodes at most, but one always may.
    share: float = 0.25
    seconds: float = 45.0  #: a probe beyond the activation of nodes: its windows, and the ticks around them
    patience_s: float = 180.0  #: a probe that has not got its windows after so long is given up
    #: For how long a gain counts, at least and at most, where the job's rest is not known: it is taken to go on for
    #: as long as it has (Lindy's law), so that a short job is not spent on measuring.
    payoff_s: tuple[float, float] = (900.0, 14400.0)
    each: int = 6  #: most probes of one job an hour, and anew in each phase of it


@dataclass(frozen=True)
class JobKnowledge:
    """What has been learnt of one job."""

    fit: CurveFit | None = None
    prior_jobs: PriorJobs | None = None
    probe: Probe | None = None
    probes: tuple[tuple[float, int], ...] = ()  #: when they were begun (Unix seconds), and of which size
    application: tuple[str, str] = ("", "")
    ignored: Mapping[str, int] = field(default_factory=dict)  #: samples that were not believed, by reason
    since: float | None = None  #: when it was first seen to train
    phase_began: float | None = None  #: when its throughput last changed at one size
    by_class: Mapping[str, CurveFit] = field(default_factory=dict)  #: where it has trained on several
    worker_speeds: Mapping[str, float] = field(default_factory=dict)  #: by class, of a world on several (samples/s)

    def tries(self, now: float) -> Counter[int]:
        """Probes by size that count at `now` (Unix seconds)."""
        since = max(now - PROBE_PERIOD_S, self.phase_began if self.phase_began is not None else -math.inf)
        return Counter(nodes for at, nodes in self.probes if at > since)

    @property
    def windows(self) -> Mapping[int, int]:
        return {m.nodes: m.windows for m in self.fit.measured} if self.fit else {}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One job as the advisor sees it. `sizes`: what it may have, ascending; `curve`: speed-ups over one node as the
    sizing has them; `left_s`: how long it goes on, where known."""

    id: int
    current: int
    sizes: tuple[int, ...]
    curve: Curve
    weight: float
    costs: ResizeCosts
    known: JobKnowledge
    profile: Profile
    left_s: float | None = None


@dataclass(frozen=True, slots=True)
class Market:
    """What the jobs share at `now` (Unix seconds). `price`: what a node is worth a second in the objective's unit
    (with `alpha` above 0, utility); `nodes`: how many may be used in all; `horizon_s`: that of the sizing problem."""

    price: float
    nodes: int
    horizon_s: float
    now: float
    rules: ProbeRules
    alpha: float = 0.0

    def utility(self, speedup: float) -> float:
        """What a second at that speed-up is worth to the objective."""
        if self.alpha <= 0:
            return speedup
        return float(alpha_fair(np.array([speedup]), 1.0, np.ones(1), self.alpha)[0])


@dataclass(frozen=True, slots=True)
class ProbeProposal:
    """A size that is worth measuring: `worth` in the objective's unit times seconds, its cost taken off; with `bonus`
    the sizing sees just that."""

    job: int
    nodes: int
    worth: float
    bonus: float
    reason: str


@dataclass(frozen=True, slots=True)
class Advice:
    """What the advisor adds to the sizing problem, and why.

    `bonus` and `locked` by job; `ended`: open probes that are over; `reasons`: for every job that is profiled, what
    would be measured next, or why nothing.
    """

    bonus: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    locked: Mapping[int, int] = field(default_factory=dict)
    ended: Mapping[int, str] = field(default_factory=dict)
    reasons: Mapping[int, str] = field(default_factory=dict)


def max_explored_size(
    known: JobKnowledge, least: int, current: int, share: int, factor: int = MAX_EXPLORATION_FACTOR
) -> int:
    """The largest size that a job of unknown scalability may be given.

    `factor` times what was measured, on it or on those that it is like; before that its fair `share` of the nodes,
    and as many times that as `factor` is the usual one. Never less than it needs or has; nothing beyond a measured
    peak or knee.
    """
    fit = known.fit
    if fit is not None and (fit.falls or fit.flat) and fit.seen == fit.measured[-1].nodes:
        return max(fit.seen, least)
    measured = fit.seen if fit is not None else known.prior_jobs.largest if known.prior_jobs is not None else 0
    return max(factor * measured if measured else share * factor // MAX_EXPLORATION_FACTOR, least, current)


def probe_end_reason(probe: Probe, current: int, now: float, rules: ProbeRules) -> str:
    """Why an open probe is over; empty while it goes on."""
    if probe.windows >= rules.windows:
        return f"measured: {probe.windows} windows on {probe.nodes} nodes"
    if probe.reached and current < probe.nodes:
        return f"its nodes were lost: {current} of {probe.nodes} are left"
    if now - probe.since > rules.patience_s:
        return f"given up after {now - probe.since:.0f} s with {probe.windows} of {rules.windows} windows"
    return ""


def advise(jobs: Sequence[Candidate], market: Market) -> Advice:
    """Locks for probes that go on, bonuses for those worth beginning."""
    nodes, now, rules = market.nodes, market.now, market.rules
    locked: dict[int, int] = {}
    ended: dict[int, str] = {}
    reasons: dict[int, str] = {}
    wishes: list[ProbeProposal] = []
    extra, room = int(rules.share * nodes), nodes // 2
    siblings = Counter(job.known.application for job in jobs if len(job.known.windows) < 2)
    busy: Counter[tuple[str, str]] = Counter()
    # Sizes of locked jobs must fit together whatever becomes of the nodes.
    free = nodes
    for job in sorted(jobs, key=lambda j: j.id):
        probe = job.known.probe
        if probe is None or job.profile not in TRYING:
            continue
        over = probe_end_reason(probe, job.current, now, rules)
        if not over and (probe.nodes not in job.sizes or probe.nodes > free):
            over = f"{probe.nodes} nodes are not to be had any more"
        if over:
            ended[job.id] = over
            continue
        locked[job.id] = probe.nodes
        reasons[job.id] = f"is measured on {probe.nodes} nodes, {probe.windows} of {rules.windows} windows so far"
        busy[job.known.application] += 1
        free -= probe.nodes
        room -= probe.nodes
        extra -= max(0, probe.nodes - job.current)
    idle = [job for job in jobs if job.id not in locked and job.profile in TRYING]
    # Those with the fewest measured sizes first: they have the most to learn.
    idle.sort(key=lambda job: (len(job.known.windows), job.id))
    for job in idle[:MAX_JOBS_CONSIDERED]:
        found, why_none = _proposals(job, market, siblings[job.known.application], extra)
        wishes += found
        if why_none:
            reasons[job.id] = why_none
    bonus: dict[int, tuple[int, float]] = {}
    by_id = {job.id: job for job in jobs}
    while wishes:
        # Applications take turns; within a turn the best worth a node goes first. What one job of an application is
        # measured for, its siblings need not be.
        wishes.sort(key=lambda w: (busy[by_id[w.job].known.application], -w.worth / w.nodes, w.job, w.nodes))
        wish = wishes.pop(0)
        job = by_id[wish.job]
        more = max(0, wish.nodes - job.current)
        sibling_probed = busy[job.known.application] and siblings[job.known.application] > 1
        if sibling_probed or more > extra or (wish.nodes > room and (locked or bonus)):
            reasons.setdefault(wish.job, f"{wish.reason}; waits for other probes to end")
            continue
        room -= wish.nodes
        extra -= more
        busy[job.known.application] += 1
        bonus[wish.job] = (wish.nodes, wish.bonus)
        reasons[wish.job] = wish.reason
        wishes = [w for w in wishes if w.job != wish.job]
    return Advice(bonus, locked, ended, reasons)


def _proposals(job: Candidate, market: Market, siblings: int, extra: int) -> tuple[list[ProbeProposal], str]:
    """The sizes of a job that are worth measuring, with `extra` nodes at most; or none, and why."""
    known, fit, now, rules = job.known, job.known.fit, market.now, market.rules
    if fit is None:
        return [], "not measured yet: its first size will be"
    if job.current and known.windows.get(job.current, 0) < rules.windows:
        return [], f"its present size, {job.current} nodes, is measured first: that costs nothing"
    tries = known.tries(now)
    if tries.total() >= rules.each:
        return [], f"has had its {rules.each} probes of this hour"
    if job.profile is Profile.DOWNWARD:
        return _downward(job, market, tries)
    now_on = job.current  # 0 nodes: all sizes count
    near = [n for n in known.windows if not now_on or now_on / NEAR_FACTOR <= n <= now_on * NEAR_FACTOR]
    if len(near) >= ENOUGH_NEAR_SIZES:
        return [], f"known well enough: {len(near)} sizes are measured near {job.current or max(near)} nodes"
    # One size tells only the level, not that a job in another phase still scales as the others.
    if fit.probabilities[PRIOR_JOBS] > 0.5 and (known.phase_began is None or len(known.windows) > 1):
        return [], "known well enough: it is as the others of its application"
    sizes = [n for n in job.sizes if n <= market.nodes]
    candidates = _candidates(job, sizes, extra, tries, rules)
    if not candidates:
        return [], "every size within reach is measured"
    # Enough sizes to see where the best lies: all up to 16, then those an eighth apart, and the candidates.
    measured = {each.nodes for each in fit.measured} & set(sizes)
    grid = sorted({*candidates, *thinned(sizes, 16), *measured})
    a_node = market.price / job.weight
    best, found = information_values(fit, grid, candidates, a_node, rules.windows, market.alpha)
    payoff = _payoff_s(job, now, rules) * max(1, siblings)
    worth_of = {n: market.utility(job.curve.throughput(n)) for n in grid}
    scale = worth_of[best]
    net = {n: worth_of[n] - a_node * n for n in grid}
    most = max(0.0, *net.values())
    wishes = []
    for worth in found:
        resizes = _resize_cost(job, worth, scale, a_node)
        cost = worth.loss * rules.seconds + resizes
        gain = worth.gain * payoff - MIN_GAIN_OVER_COST * cost
        if worth.gain < MIN_RELATIVE_GAIN * scale or gain <= 0:
            continue
        # The sizing sees what is lost over its whole horizon, and the resizes: given back, what is left is the gain.
        bonus = (gain + (most - net[worth.nodes]) * market.horizon_s + resizes) * job.weight
        reason = (
            f"next {worth.nodes} nodes: knowing them is worth {worth.gain / scale:.1%} of what it trains on {best}, "
            f"measuring costs {cost / scale:.0f} s of that"
        )
        wishes.append(ProbeProposal(job.id, worth.nodes, gain * job.weight, bonus, reason))
    return wishes, "" if wishes else f"known well enough: no size is worth measuring (best {best})"


def _downward(job: Candidate, market: Market, tries: Mapping[int, int]) -> tuple[list[ProbeProposal], str]:
    """The next size on the way from large to small; or none, and why."""
    if job.known.prior_jobs is not None:
        return [], "known well enough: jobs of its application have been measured"
    size = next_size_down(job.sizes, job.known.windows, market.rules.windows, tries)
    if size is None:
        return [], "known well enough: it was measured down to its smallest size"
    worth_of = {n: market.utility(job.curve.throughput(n)) for n in job.sizes if n <= market.nodes}
    if size not in worth_of:
        return [], f"{size} nodes are not to be had"
    scale = max(worth_of.values())
    moved = abs(size - job.current) * market.price / job.weight * job.costs.activate_s
    resizes = (job.costs.grow_s + job.costs.shrink_s) * scale + 2 * moved
    # All that it trains less is given back, as if its nodes were worth nothing to others: it is measured in any case.
    worth = MIN_RELATIVE_GAIN * scale * market.horizon_s
    bonus = ((scale - worth_of[size]) * market.horizon_s + resizes + worth) * job.weight
    return [ProbeProposal(job.id, size, worth, bonus, f"next {size} nodes, on its way from large to small")], ""


def next_size_down(
    sizes: Sequence[int], measured: Mapping[int, int], windows: int, tries: Mapping[int, int]
) -> int | None:
    """The next size of `sizes` (ascending) to measure from large to small: at most half of the one before; None after
    the smallest. `measured`, `tries`: windows of training and probes so far by size; one in vain is passed over.
    """
    last = max((n for n, count in measured.items() if count >= windows), default=None)
    while last is not None:
        below = [n for n in sizes if n <= last // 2] or [n for n in sizes[:1] if n < last]
        if not below:
            return None
        last = below[-1]
        if measured.get(last, 0) < windows and tries.get(last, 0) < MAX_TRIES_PER_SIZE:
            return last
    return None


def _candidates(
    job: Candidate, sizes: Sequence[int], extra: int, tries: Mapping[int, int], rules: ProbeRules
) -> list[int]:
    """Sizes to measure: halves and doubles of what was measured, the ends; not those that are full or failed."""
    if not sizes:
        return []
    windows = job.known.windows
    most = max(min(max_explored_size(job.known, sizes[0], job.current, 1), job.current + extra), sizes[0])
    wanted = {sizes[0], most, job.current}
    wanted |= {k for m in windows for f in (1, 2, 4, 8, 16, 32) for k in (m // f, m * f) if k}
    near = {min(sizes, key=lambda s: (abs(s - k), s)) for k in wanted}
    return sorted(
        k for k in near if k <= most and windows.get(k, 0) < rules.windows and tries.get(k, 0) < MAX_TRIES_PER_SIZE
    )


def _payoff_s(job: Candidate, now: float, rules: ProbeRules) -> float:
    """For how long a job will make use of what is learnt."""
    least, most = rules.payoff_s
    age = now - job.known.since if job.known.since is not None else 0.0
    guess = min(max(least, age), most)
    return guess if job.left_s is None else min(job.left_s, most)


def _resize_cost(job: Candidate, worth: InformationValue, scale: float, a_node: float) -> float:
    """What going to the size and back costs, in speed-up: its nodes, or those that others take, start twice."""
    more = worth.nodes - job.current
    stalls = (job.costs.grow_s + job.costs.shrink_s) * scale if more else 0.0
    return stalls + 2 * abs(more) * a_node * job.costs.activate_s
