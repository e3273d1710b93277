"""How long a hole really lasts: a survival model, learnt from the holes that this site has had.

Slurm's plan knows neither early ends nor new arrivals, so most holes close unplanned. What tells most about a hole's
rest is its age: the hazard (chance an hour that the main queue takes the node) falls as a hole grows old; next comes
its cohort, the nodes that became idle with it. So the hazard is constant within bins of age, for each class of
cohort (the piecewise-exponential model; its estimate, departures / time at risk, is the maximum-likelihood one under
censoring: Friedman, Annals of Statistics 10, 1982). Nodes that became idle together mostly leave together, so a
cohort is one piece of evidence, however many nodes it has.

A forecast only ranks nodes and says how far to look ahead; a plan stays the hard end of a hole.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

#: Where the bins of age begin (s). The last has no end.
AGES_S = (0.0, 90.0, 150.0, 240.0, 360.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0)

#: Cohorts of up to so many nodes share a class; larger ones are the last class.
COHORTS = (1, 4, 16, 64)

#: Departures per second at each age before anything is seen: those of 14,683 cohorts on Summit in February 2021 (the
#: log of arXiv 2106.12091; docs/explanation/forecast.md). It lacks holes under 70 s: the first bin is as the second.
PRIOR_HAZARD = (41e-4, 41e-4, 27e-4, 19.6e-4, 12.9e-4, 9.4e-4, 6.6e-4, 5.1e-4, 3.4e-4, 3.0e-4, 0.7e-4, 0.3e-4)

#: So many departures is the prior worth at each age, and the hazard of all cohorts to that of one class.
PRIOR_DEPARTURES = 4.0
SHRINK_DEPARTURES = 20.0

#: After so long what was seen counts half: loads differ by project, season and day.
HALF_LIFE_S = 14 * 86400.0
FADE_INTERVAL_S = 600.0


def cohort_class(size: int) -> int:
    """Which class of COHORTS a cohort of `size` nodes is in."""
    return sum(size > limit for limit in COHORTS)


@dataclass(frozen=True)
class RemainingLife:
    """How long a hole of some age still lasts. `steps` are (seconds from now, hazard from then on), rising from 0."""

    steps: tuple[tuple[float, float], ...]

    def survival(self, seconds: float) -> float:
        """The chance that the hole lasts so long from now."""
        exposure = 0.0
        for i, (begin, hazard) in enumerate(self.steps):
            end = self.steps[i + 1][0] if i + 1 < len(self.steps) else math.inf
            exposure += hazard * max(0.0, min(seconds, end) - begin)
            if seconds <= end:
                break
        return math.exp(-exposure)

    def quantile(self, share: float) -> float:
        """Seconds from now by which the hole has closed with the chance `share` (0 <= share < 1)."""
        left = -math.log1p(-share)
        for i, (begin, hazard) in enumerate(self.steps):
            end = self.steps[i + 1][0] if i + 1 < len(self.steps) else math.inf
            if hazard * (end - begin) >= left:
                return begin + left / hazard
            left -= hazard * (end - begin)
        return math.inf


@dataclass(frozen=True)
class Forecast:
    """What to expect of holes. `hazards[c][b]`: departures per second of cohorts of class c at ages of bin b.

    `departures`: how much was seen, in cohorts, less what is forgotten.
    """

    hazards: tuple[tuple[float, ...], ...] = tuple(PRIOR_HAZARD for _ in range(len(COHORTS) + 1))
    departures: float = 0.0

    def remaining(self, age_s: float, cohort: int = 1) -> RemainingLife:
        """The rest of a hole of age `age_s` whose cohort had `cohort` nodes."""
        age_s = max(0.0, age_s)
        hazards = self.hazards[cohort_class(cohort)]
        now = bisect_right(AGES_S, age_s) - 1
        later = ((AGES_S[b] - age_s, hazards[b]) for b in range(now + 1, len(AGES_S)))
        return RemainingLife(((0.0, hazards[now]), *later))

    def survival(self, age_s: float, horizon_s: float, cohort: int = 1) -> float:
        """The chance that a hole of age `age_s` lasts `horizon_s` more."""
        return self.remaining(age_s, cohort).survival(horizon_s)

    def expected_remaining_s(self, age_s: float, cohort: int = 1, longest_s: float = math.inf) -> float:
        """Seconds that a hole of age `age_s` still lasts on average, if it ends after `longest_s` at the latest."""
        age_s = max(0.0, age_s)
        hazards = self.hazards[cohort_class(cohort)]
        bin_, begin, total, alive = bisect_right(AGES_S, age_s) - 1, 0.0, 0.0, 1.0
        while begin < longest_s:
            end = min(longest_s, AGES_S[bin_ + 1] - age_s if bin_ + 1 < len(AGES_S) else math.inf)
            lost = -math.expm1(-hazards[bin_] * (end - begin))
            total += alive * lost / hazards[bin_]
            alive *= 1.0 - lost
            begin, bin_ = end, bin_ + 1
        return total

    def horizon_s(self, ages: Sequence[tuple[float, int]], least_s: float = 120.0, most_s: float = 600.0) -> float:
        """How far sizing should look ahead: the median rest of the holes there are, given as (age, size of cohort).

        Replay of the Summit log finds little difference between 120 and 600 s, and loss beyond either; so it is kept
        within them. Without a hole: `most_s`.
        """
        medians = sorted(self.remaining(age, cohort).quantile(0.5) for age, cohort in ages)
        return min(most_s, max(least_s, medians[len(medians) // 2])) if medians else most_s


def _expose(row: list[float], lasted_s: float, weight: float) -> int:
    """Add `lasted_s` seconds at risk, from age 0, to a row of bins; returns the bin in which they end."""
    last = max(0, bisect_left(AGES_S, lasted_s) - 1)
    for b in range(last):
        row[b] += weight * (AGES_S[b + 1] - AGES_S[b])
    row[last] += weight * (lasted_s - AGES_S[last])
    return last


def _zeros() -> list[list[float]]:
    return [[0.0] * len(AGES_S) for _ in range(len(COHORTS) + 1)]


@dataclass
class HoleHistory:
    """What is kept of the holes seen: time at risk and departures by class of cohort and age, old ones fading.

    The same holes in the same order give the same numbers. Times are Unix seconds.
    """

    half_life_s: float = HALF_LIFE_S
    prior: tuple[float, ...] = PRIOR_HAZARD
    at: float = 0.0
    at_risk_s: list[list[float]] = field(default_factory=_zeros)
    left: list[list[float]] = field(default_factory=_zeros)

    def add(self, at: float, lasted_s: float, cohort: int, *, taken: bool, nodes: int = 1) -> None:
        """`nodes` holes of a cohort ended at `at` after `lasted_s`. `taken`: the main queue took them; otherwise they
        were only lost sight of (staff took the node, the daemon was away), and lasted at least so long."""
        if not 0 <= lasted_s < math.inf or cohort < 1:
            return
        self._fade(at)
        kind, weight = cohort_class(cohort), nodes / cohort
        last = _expose(self.at_risk_s[kind], lasted_s, weight)
        if taken:
            self.left[kind][last] += weight

    def forecast(self, still_open: Iterable[tuple[float, int, int]] = ()) -> Forecast:
        """The hazards as they look by now. `still_open`: (age in s, size of the cohort, nodes) of holes that have not
        ended: without their time at risk the long ones would be missing, and every forecast too short.

        Each hazard is shrunk (the mean of a Gamma posterior): a class of cohort towards all cohorts, all towards the
        prior.
        """
        bins = range(len(AGES_S))
        at_risk_s = [list(row) for row in self.at_risk_s]
        for age_s, cohort, nodes in still_open:
            _expose(at_risk_s[cohort_class(cohort)], max(0.0, age_s), nodes / cohort)
        by_age = [
            (sum(row[b] for row in self.left) + PRIOR_DEPARTURES)
            / (sum(row[b] for row in at_risk_s) + PRIOR_DEPARTURES / self.prior[b])
            for b in bins
        ]
        hazards = tuple(
            tuple((left[b] + SHRINK_DEPARTURES) / (risk[b] + SHRINK_DEPARTURES / by_age[b]) for b in bins)
            for left, risk in zip(self.left, at_risk_s, strict=True)
        )
        return Forecast(hazards, sum(map(sum, self.left)))

    def _fade(self, at: float) -> None:
        """What was seen before `at` counts less by now. A clock that was set back fades nothing."""
        if self.at and at - self.at < FADE_INTERVAL_S:
            return
        if self.at:
            keep = 0.5 ** ((at - self.at) / self.half_life_s)
            self.at_risk_s = [[keep * x for x in row] for row in self.at_risk_s]
            self.left = [[keep * x for x in row] for row in self.left]
        self.at = at
