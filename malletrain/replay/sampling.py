"""Which days of a long window are replayed, drawn before anything is, and what the whole window gives by them.

The window is cut into days. Those with idle nodes are divided into runs of neighbours, since a season, or a change of
the machine or of its queue, touches days that follow one another; of each run as many days are drawn as of the others
(Cochran, Sampling Techniques, 3rd ed., 1977, ch. 5). Which are drawn follows from the log and the seed alone.

The estimate is a ratio. For each day a figure x is known without replaying it (the node-seconds that are idle, or the
best that they could train), and what is asked for, y, follows it closely: Y = X sum y / sum x over the days replayed,
X the sum of x over all days. The interval is of 10,000 draws of the replayed days anew (Efron and Tibshirani, "An
Introduction to the Bootstrap", 1993). It says how far a replay of all days may be, not how unlike others these are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.parts import RUN_IN_S
from malletrain.replay.result import Columns, Result, Totals, integral, joined
from malletrain.replay.scoring.ideal import Ideal
from malletrain.replay.workload import TrainingJob
from malletrain.sizing.values import Bools, Floats

DAY_S = 86_400.0
BOOTSTRAP_DRAWS = 10_000
#: Of the draws, between which their interval lies.
BOUNDS = (0.025, 0.975)
_NODE_SECONDS = ("speedup", "occupied", "productive")


@dataclass(frozen=True, slots=True)
class Sample:
    """Span i of the window lasts from `begin[i]` to `end[i]` (Unix seconds), about a day, and is replayed where
    `drawn[i]`. Spans are in order of time; between them no node is idle."""

    begin: Floats
    end: Floats
    drawn: Bools
    seed: int

    @property
    def spans(self) -> list[tuple[float, float]]:
        """Begin and end of those that are replayed."""
        return list(zip(self.begin[self.drawn].tolist(), self.end[self.drawn].tolist(), strict=True))

    @property
    def size(self) -> int:
        """How many are replayed."""
        return int(self.drawn.sum())

    def __len__(self) -> int:
        """How many there are."""
        return len(self.begin)

    def sentence(self) -> str:
        """What is replayed, for people."""
        days = ", ".join(datetime.fromtimestamp(begin, UTC).strftime("%Y-%m-%d") for begin, _ in self.spans)
        return (
            f"{self.size:,} of {len(self):,} days with idle nodes are replayed, drawn at random (seed {self.seed}), "
            f"each after {RUN_IN_S / 3600:g} hours that do not count; what is idle is counted of all days. "
            f"--sample all replays all. Days from {days} (UTC)"
        )


def drawn_days(trace: ClusterTrace, days: int, seed: int, tick_s: float) -> Sample:
    """`days` of the window's days with idle nodes, or all of them where there are no more. Days begin at a multiple
    of `tick_s` from the window's begin; what is left at its end belongs to the last."""
    count = max(1, round(trace.seconds / DAY_S))
    unit = tick_s or 1.0
    edges = np.append(trace.start + np.floor(np.arange(count) * DAY_S / unit) * unit, trace.end)
    idle, _ = trace.counts
    some_idle = np.diff(integral(trace.time, idle, trace.end, edges)) > 0
    begin, end = edges[:-1][some_idle], edges[1:][some_idle]
    wanted = min(days, len(begin))
    runs = max(1, wanted // 4)  # days of neighbours
    run = np.arange(len(begin)) * runs // max(1, len(begin))
    random, drawn = np.random.default_rng(seed), np.zeros(len(begin), bool)
    for of in range(runs):
        mine = np.flatnonzero(run == of)
        some = (of + 1) * wanted // runs - of * wanted // runs
        drawn[random.choice(mine, min(some, len(mine)), replace=False)] = True
    return Sample(begin, end, drawn, seed)


@dataclass(frozen=True, slots=True)
class WindowEstimate:
    """A figure of the whole window, and its 95 % interval."""

    value: float
    low: float
    high: float

    def over(self, known: float) -> WindowEstimate:
        """The same divided by what is known exactly."""
        return WindowEstimate(self.value / known, self.low / known, self.high / known)


def estimate(sample: Sample, known: Floats, found: Floats) -> WindowEstimate:
    """The figure for all days. `known`: x of all days; `found`: y of those that were replayed, in order."""
    total, x = float(known.sum()), known[sample.drawn]
    value = total / (float(x.sum()) or 1.0) * float(found.sum())
    if sample.drawn.all() or total <= 0:
        return WindowEstimate(value, value, value)
    low, high = np.quantile(total * drawn_ratios(found, x), BOUNDS).tolist()
    return WindowEstimate(value, min(low, value), max(value, high))


def drawn_ratios(of: Floats, to: Floats) -> Floats:
    """Sum `of` over sum `to` of days drawn anew, the same days whatever is asked of them."""
    draws = np.random.default_rng(1).integers(0, len(of), (BOOTSTRAP_DRAWS, len(of)))
    sums = to[draws].sum(axis=1)
    ratios: Floats = np.divide(of[draws].sum(axis=1), sums, out=np.ones(BOOTSTRAP_DRAWS), where=sums > 0)
    return ratios


@dataclass(frozen=True, slots=True)
class SampledReplay:
    """Which days were replayed; node-seconds known of all days, `idle` and `ideal` (the best that the jobs could
    train at no cost); and by policy and figure what replaying gave on each day that was replayed."""

    sample: Sample
    idle: Floats
    ideal: Floats
    found: Mapping[str, Mapping[str, Floats]]

    def figure(self, policy: str, name: str) -> WindowEstimate:
        """A sum over the window, by its name in `found`."""
        return estimate(self.sample, self._covariate(name), self.found[policy][name])

    def ratio(self, policy: str, name: str, begin: float, end: float) -> float:
        """The figure over what is known beside it, of the days replayed whose middle lies between `begin` and `end`
        (Unix seconds); where none does, of all."""
        known, found = self._covariate(name)[self.sample.drawn], self.found[policy][name]
        middle = (self.sample.begin + self.sample.end)[self.sample.drawn] / 2
        mine = (begin <= middle) & (middle < end)
        if known[mine].sum() <= 0:
            mine[:] = True
        return float(found[mine].sum() / (known[mine].sum() or 1.0))

    def _covariate(self, name: str) -> Floats:
        return self.ideal if name in ("speedup", "samples") else self.idle

    def as_json(self, seconds: float) -> dict[str, object]:
        """As in the JSON answer; `seconds`: the window's length."""
        return {
            "days": len(self.sample),
            "replayed": self.sample.size,
            "seed": self.sample.seed,
            "run_in_s": RUN_IN_S,
            "spans": [list(span) for span in self.sample.spans],
            "intervals": {
                policy: {name: [each.low, each.high] for name, each in self.headline(policy, seconds).items()}
                for policy in self.found
            },
        }

    def headline(self, policy: str, seconds: float) -> dict[str, WindowEstimate]:
        """The policy's main figures, by their names in `Score`."""
        trained = self.figure(policy, "speedup")
        found = {f"{name}_node_seconds": self.figure(policy, name) for name in _NODE_SECONDS}
        found |= {name: self.figure(policy, name) for name in ("samples", "activations", "preemptions", "rescales")}
        found["equivalent_nodes"] = trained.over(seconds)
        ideal = float(self.ideal.sum())
        return found | ({"share_of_ideal": trained.over(ideal)} if ideal > 0 else {})


def sampled_replay(
    trace: ClusterTrace, jobs: Sequence[TrainingJob], sample: Sample, parts: Mapping[str, Sequence[Result]]
) -> SampledReplay:
    """Of a trace, jobs that are there all the time, and each policy's replays of the days, in order."""
    idle, _ = trace.counts
    best = Ideal.of_all(jobs, idle, len(trace.nodes))
    edges = np.stack([sample.begin, sample.end])
    of_idle, of_best = (np.diff(integral(trace.time, value, trace.end, edges), axis=0)[0] for value in (idle, best))
    names = *_NODE_SECONDS, "activations", "preemptions", "rescales"
    found = {
        policy: {name: np.array([float(getattr(each.totals, name)) for each in days]) for name in names}
        | {"samples": np.array([each.samples.sum() for each in days])}
        for policy, days in parts.items()
    }
    return SampledReplay(sample, of_idle, of_best, found)


def estimated(parts: list[Result], sampled: SampledReplay) -> Result:
    """The whole window by one policy's replays of the drawn days, in order, which are used up.

    Totals and samples are of the window. Columns and pilots are of the days that were replayed: each ends with a row
    without pilots, and the integrals leave out what was not replayed. When jobs first had a pilot is not known (nan).
    """
    sample = sampled.sample
    by_idle, by_ideal = (
        float(known.sum()) / (float(known[sample.drawn].sum()) or 1.0) for known in (sampled.idle, sampled.ideal)
    )
    totals = Totals(len(parts[0].samples))
    for each in parts:
        totals.add(each.totals, by_idle)
    for name in ("rescales", "activations", "preemptions", "completed", "main_starts", "main_starts_on_pilots"):
        setattr(totals, name, round(getattr(totals, name)))
    totals.idle, totals.ideal = float(sampled.idle.sum()), float(sampled.ideal.sum())
    totals.speedup = by_ideal * sum(each.totals.speedup for each in parts)
    ended = [replace(each, log=_ended(each, end)) for each, (_, end) in zip(parts, sample.spans, strict=True)]
    parts.clear()
    whole = joined(ended)
    unknown = np.full(len(whole.samples), np.nan)
    return replace(whole, totals=totals, samples=by_ideal * whole.samples, first_start=unknown)


def _ended(part: Result, end: float) -> Columns:
    """The columns with a last row, at the end of the day, that has no idle node and no pilot."""
    log, totals = part.log, part.totals
    none = np.zeros(1, np.int32)
    return replace(
        log,
        time=np.append(log.time, end),
        idle=np.append(log.idle, none),
        held=np.append(log.held, none),
        speed=np.append(log.speed, 0.0),
        jobs=np.append(log.jobs, log.jobs[-1:] if len(log.jobs) else none),
        trained=np.append(log.trained, totals.speedup),
        best=np.append(log.best, totals.ideal),
    )
