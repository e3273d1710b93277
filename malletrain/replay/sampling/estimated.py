"""The result of a whole window from replays of some of its days, and how sure its figures are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.result import Columns, Result, Totals, joined
from malletrain.replay.sampling.days import RUN_IN_S, Sample
from malletrain.replay.sampling.estimate import WindowEstimate, estimate, weights
from malletrain.replay.scoring.ideal import Ideal
from malletrain.replay.scoring.integral import integral_between
from malletrain.replay.workload import TrainingJob

Floats = NDArray[np.float64]
_COUNTS = ("rescales", "activations", "preemptions", "completed", "main_starts", "main_starts_on_pilots")


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
    spans = trace.end, sample.begin, sample.end
    return KnownOfDays(integral_between(trace.time, idle, *spans), integral_between(trace.time, best, *spans))


@dataclass(frozen=True, slots=True)
class FoundInDays:
    """What replaying a policy gave for each day that was replayed, in order: node-seconds, samples and counts."""

    speedup: Floats
    occupied: Floats
    productive: Floats
    samples: Floats
    activations: Floats
    preemptions: Floats
    rescales: Floats


@dataclass(frozen=True, slots=True)
class SampledReplay:
    """Which days were replayed, what is known of all days, and what was found, by policy."""

    sample: Sample
    known: KnownOfDays
    found: Mapping[str, FoundInDays]

    def figure(self, policy: str, name: str) -> WindowEstimate:
        """A sum over the window, by its name in `FoundInDays`."""
        return estimate(self.sample, self._beside(name), getattr(self.found[policy], name))

    def more_trained(self, policy: str, than: str) -> WindowEstimate:
        """How much more speed-up, in node-seconds, one policy has than another on the same days."""
        more = self.found[policy].speedup - self.found[than].speedup
        return estimate(self.sample, self.known.ideal, more)

    def ratio(self, policy: str, name: str, begin: float, end: float) -> float:
        """The figure over what is known beside it (idle node-seconds; of speed-up and samples the best possible), of
        the days replayed whose middle lies between `begin` and `end` (Unix seconds); where none does, of all."""
        known, found = self._beside(name), getattr(self.found[policy], name)
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
        found = {
            "occupied_node_seconds": self.figure(policy, "occupied"),
            "productive_node_seconds": self.figure(policy, "productive"),
            "speedup_node_seconds": trained,
            "equivalent_nodes": trained.over(seconds),
            "samples": self.figure(policy, "samples"),
            "activations": self.figure(policy, "activations"),
            "preemptions": self.figure(policy, "preemptions"),
            "rescales": self.figure(policy, "rescales"),
        }
        ideal = float(self.known.ideal.sum())
        return found | ({"share_of_ideal": trained.over(ideal)} if ideal > 0 else {})


def found_in(parts: Sequence[Result]) -> FoundInDays:
    """The figures of each replayed day."""
    totals = [each.totals for each in parts]
    return FoundInDays(
        speedup=np.array([each.speedup for each in totals]),
        occupied=np.array([each.occupied for each in totals]),
        productive=np.array([each.productive for each in totals]),
        samples=np.array([each.samples.sum() for each in parts]),
        activations=np.array([float(each.activations) for each in totals]),
        preemptions=np.array([float(each.preemptions) for each in totals]),
        rescales=np.array([float(each.rescales) for each in totals]),
    )


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
