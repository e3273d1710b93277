"""Which days of a long window are replayed, drawn before anything is, and what the whole window gives by them.

The window is cut into days. Those with idle nodes are divided into strata of neighbours in time, since a season, or a
change of the machine or of its queue, touches days that follow one another. In each stratum as many days are drawn as
in the others, without replacement, each as likely as any other of its stratum (Cochran, Sampling Techniques, 3rd ed.,
1977, ch. 5). Which are drawn follows from the log and the seed alone.

The estimate is the combined ratio estimator of strata. For each day a figure x is known without replaying it (the
node-seconds that are idle, or the best that they could train), and what is asked for, y, follows it closely. With N_h
days in stratum h, n_h of them replayed:

    R = sum_h N_h mean_h(y) / sum_h N_h mean_h(x)        Y = R X        X: the sum of x over all days
    v(Y) = (X / X_hat)^2 sum_h N_h (N_h - n_h) / n_h * s_h^2(y - R x)        X_hat = sum_h N_h mean_h(x)

(Cochran, Sampling Techniques, 3rd ed., 1977, section 6.11; the first factor: Saerndal, Swensson and Wretman, Model
Assisted Survey Sampling, 1992, section 6.6.) The interval is Y plus or minus t(.975) sqrt(v), with the degrees of
freedom of Cochran's section 5.4. It says how far a replay of all days may be, not how unlike others the window is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.parts import RUN_IN_S
from malletrain.replay.result import Columns, Result, Totals, integral, joined
from malletrain.replay.scoring.ideal import Ideal
from malletrain.replay.workload import TrainingJob

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DAY_S = 86_400.0
#: Days that are drawn of a stratum. Two would follow the seasons most closely; of four the variance within a stratum
#: is known well enough for its interval.
DAYS_PER_STRATUM = 4
_COUNTS = ("rescales", "activations", "preemptions", "completed", "main_starts", "main_starts_on_pilots")


@dataclass(frozen=True, slots=True)
class Sample:
    """Span i of the window lasts from `begin[i]` to `end[i]` (Unix seconds), about a day, and is of stratum
    `stratum[i]`; it is replayed where `drawn[i]`. Spans are in order of time; between them no node is idle."""

    begin: Floats
    end: Floats
    stratum: Ints
    drawn: NDArray[np.bool_]
    seed: int

    @property
    def spans(self) -> list[tuple[float, float]]:
        """Begin and end of those that are replayed."""
        return list(zip(self.begin[self.drawn].tolist(), self.end[self.drawn].tolist(), strict=True))

    def sentence(self) -> str:
        """What is replayed, for people who wait for it."""
        days = ", ".join(datetime.fromtimestamp(begin, UTC).strftime("%Y-%m-%d") for begin, _ in self.spans)
        return (
            f"{self.size:,} of {len(self):,} days are replayed, drawn at random (seed {self.seed}), each after "
            f"{RUN_IN_S / 3600:g} hours that do not count; what is idle is counted of all days. --sample all replays "
            f"all. Days from {days} (UTC)"
        )

    @property
    def size(self) -> int:
        """How many are replayed."""
        return int(self.drawn.sum())

    def __len__(self) -> int:
        """How many there are."""
        return len(self.begin)


def drawn_days(trace: ClusterTrace, days: int, seed: int, tick_s: float) -> Sample:
    """`days` of the window's days with idle nodes, or all of them where there are no more. Days begin at a multiple
    of `tick_s` from the window's begin; what is left at its end belongs to the last."""
    count = max(1, round(trace.seconds / DAY_S))
    unit = tick_s or 1.0
    edges = trace.start + np.floor(np.arange(count) * DAY_S / unit) * unit
    begin, end = edges, np.append(edges[1:], trace.end)
    idle, _ = trace.counts()
    some_idle = np.diff(integral(trace.time, idle, trace.end, np.append(edges, trace.end))) > 0
    begin, end = begin[some_idle], end[some_idle]
    wanted = min(days, len(begin))
    strata = max(1, wanted // DAYS_PER_STRATUM)
    stratum = np.arange(len(begin)) * strata // max(1, len(begin))
    random, drawn = np.random.default_rng(seed), np.zeros(len(begin), bool)
    for of in range(strata):
        mine = np.flatnonzero(stratum == of)
        some = (of + 1) * wanted // strata - of * wanted // strata
        drawn[random.choice(mine, min(some, len(mine)), replace=False)] = True
    return Sample(begin, end, stratum, drawn, seed)


@dataclass(frozen=True, slots=True)
class KnownOfDays:
    """What is known of each day of a sample without replaying it, in node-seconds: `idle`, and `ideal`, the best that
    the jobs could train there at no cost."""

    idle: Floats
    ideal: Floats


def known_of(trace: ClusterTrace, jobs: Sequence[TrainingJob], sample: Sample) -> KnownOfDays:
    """Of a trace and jobs that are there all the time."""
    idle, _ = trace.counts()
    best = Ideal.of_all(jobs, idle, len(trace.nodes))
    edges = np.stack([sample.begin, sample.end])
    known = (np.diff(integral(trace.time, value, trace.end, edges), axis=0)[0] for value in (idle, best))
    return KnownOfDays(*known)


#: What replaying a policy gave for each day that was replayed, in order, by figure: node-seconds, samples and counts.
FoundInDays = Mapping[str, Floats]
_NODE_SECONDS = ("speedup", "occupied", "productive")


@dataclass(frozen=True, slots=True)
class SampledReplay:
    """Which days were replayed, what is known of all days, and what was found, by policy."""

    sample: Sample
    known: KnownOfDays
    found: Mapping[str, FoundInDays]

    def figure(self, policy: str, name: str) -> WindowEstimate:
        """A sum over the window, by its name in `found`."""
        return estimate(self.sample, self._beside(name), self.found[policy][name])

    def more_trained(self, policy: str, than: str) -> WindowEstimate:
        """How much more speed-up, in node-seconds, one policy has than another on the same days."""
        more = self.found[policy]["speedup"] - self.found[than]["speedup"]
        return estimate(self.sample, self.known.ideal, more)

    def ratio(self, policy: str, name: str, begin: float, end: float) -> float:
        """The figure over what is known beside it (idle node-seconds; of speed-up and samples the best possible), of
        the days replayed whose middle lies between `begin` and `end` (Unix seconds); where none does, of all."""
        known, found = self._beside(name), self.found[policy][name]
        middle = (self.sample.begin + self.sample.end)[self.sample.drawn] / 2
        mine = (begin <= middle) & (middle < end)
        beside = known[self.sample.drawn]
        if not mine.any() or beside[mine].sum() <= 0:
            return self.figure(policy, name).value / (float(known.sum()) or 1.0)
        return float(found[mine].sum() / beside[mine].sum())

    def _beside(self, name: str) -> Floats:
        return self.known.ideal if name in ("speedup", "samples") else self.known.idle

    def sentence(self) -> str:
        """What was replayed, for people."""
        sample = self.sample
        return (
            f"Sampled: {sample.size:,} of the {len(sample):,} days with idle nodes were replayed, drawn at random "
            f"(seed {sample.seed}), each after {RUN_IN_S / 3600:g} hours that do not count. What was idle is of all "
            "days; what would have been held and trained is estimated. A replay of all days (--sample all) lies "
            "within the intervals in about 95 of 100 such samples."
        )

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
        ideal = float(self.known.ideal.sum())
        return found | ({"share_of_ideal": trained.over(ideal)} if ideal > 0 else {})


def found_in(parts: Sequence[Result]) -> FoundInDays:
    """The figures of each replayed day."""
    names = *_NODE_SECONDS, "activations", "preemptions", "rescales"
    found = {name: np.array([float(getattr(each.totals, name)) for each in parts]) for name in names}
    return found | {"samples": np.array([each.samples.sum() for each in parts])}


def estimated(parts: list[Result], sample: Sample, known: KnownOfDays) -> Result:
    """The whole window by the replays of its drawn days, in order, which are used up.

    Totals and samples are of the window. Columns and pilots are of the days that were replayed: each ends with a row
    without pilots, and the integrals leave out what was not replayed. When jobs first had a pilot is not known (nan).
    """
    by_idle, by_ideal = weights(sample, known.idle), weights(sample, known.ideal)
    totals = Totals(len(parts[0].samples))
    for each, weight in zip(parts, by_idle.tolist(), strict=True):
        totals.add(each.totals, weight)
    for name in _COUNTS:
        setattr(totals, name, round(getattr(totals, name)))
    totals.idle, totals.ideal = float(known.idle.sum()), float(known.ideal.sum())
    totals.speedup = float(by_ideal @ np.array([each.totals.speedup for each in parts]))
    samples = np.sum([weight * each.samples for weight, each in zip(by_ideal, parts, strict=True)], axis=0)
    spans = sample.spans
    ended = [replace(each, log=_ended(each, end)) for each, (_, end) in zip(parts, spans, strict=True)]
    parts.clear()
    whole = joined(ended)
    unknown = np.full(len(samples), np.nan)
    return replace(whole, totals=totals, samples=samples, first_start=unknown)


def _ended(part: Result, end: float) -> Columns:
    """The columns with a last row, at the end of the day, that has no idle node and no pilot."""
    log, totals = part.log, part.totals
    none = np.zeros(1, np.int32)
    return replace(
        log,
        time=np.append(log.time, end), idle=np.append(log.idle, none), held=np.append(log.held, none),
        speed=np.append(log.speed, 0.0), jobs=np.append(log.jobs, log.jobs[-1:] if len(log.jobs) else none),
        trained=np.append(log.trained, totals.speedup), best=np.append(log.best, totals.ideal),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class WindowEstimate:
    """A figure of the whole window, and its 95 % interval."""

    value: float
    low: float
    high: float

    def over(self, known: float) -> WindowEstimate:
        """The same divided by what is known exactly."""
        return WindowEstimate(self.value / known, self.low / known, self.high / known)


def weights(sample: Sample, known: Floats) -> Floats:
    """What each replayed day counts for, in order: the sum of weight times y is the estimate. `known`: x of all."""
    all_days, replayed = _counts(sample)
    each = (all_days / np.maximum(replayed, 1))[sample.stratum[sample.drawn]]
    reached = float(each @ known[sample.drawn])
    return each * (float(known.sum()) / reached) if reached > 0 else each


def estimate(sample: Sample, known: Floats, found: Floats) -> WindowEstimate:
    """The figure for all days. `known`: x of all days; `found`: y of those that were replayed, in order."""
    from scipy.stats import t  # takes a second to import

    total, x = float(known.sum()), known[sample.drawn]
    value = float(weights(sample, known) @ found)
    if total <= 0:
        return WindowEstimate(value, value, value)
    apart = found - value / total * x
    all_days, replayed = _counts(sample)
    stratum = sample.stratum[sample.drawn]
    freedom = np.maximum(replayed - 1, 1)
    mean = np.bincount(stratum, apart, len(all_days)) / np.maximum(replayed, 1)
    spread = np.bincount(stratum, (apart - mean[stratum]) ** 2, len(all_days)) / freedom
    parts = all_days * (all_days - replayed) / np.maximum(replayed, 1) * spread
    variance = float(parts.sum())
    if variance <= 0:
        return WindowEstimate(value, value, value)
    reached = float((all_days / np.maximum(replayed, 1))[stratum] @ x)
    half = float(t.ppf(0.975, variance**2 / float((parts**2 / freedom).sum())) * np.sqrt(variance)) * total / reached
    return WindowEstimate(value, value - half, value + half)


def _counts(sample: Sample) -> tuple[Floats, Floats]:
    """Days of each stratum, and those that were replayed."""
    strata = int(sample.stratum.max(initial=0)) + 1
    return (
        np.bincount(sample.stratum, minlength=strata).astype(np.float64),
        np.bincount(sample.stratum[sample.drawn], minlength=strata).astype(np.float64),
    )
