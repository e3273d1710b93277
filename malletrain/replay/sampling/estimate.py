"""What a whole window gives, by the days of it that were replayed: the combined ratio estimator of strata.

For each day a figure x is known without replaying it (the node-seconds that are idle, or the best that they could
train), and what is asked for, y, follows it closely. With N_h days in stratum h, n_h of them replayed:

    R = sum_h N_h mean_h(y) / sum_h N_h mean_h(x)        Y = R X        X: the sum of x over all days
    v(Y) = (X / X_hat)^2 sum_h N_h (N_h - n_h) / n_h * s_h^2(y - R x)        X_hat = sum_h N_h mean_h(x)

(Cochran, Sampling Techniques, 3rd ed., 1977, section 6.11; the first factor: Saerndal, Swensson and Wretman, Model
Assisted Survey Sampling, 1992, section 6.6.) The interval is Y plus or minus t(.975) sqrt(v), with the degrees of
freedom of Cochran's section 5.4. It says how far a replay of all days may be, not how unlike others the window is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.replay.sampling.days import Sample

Floats = NDArray[np.float64]


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
