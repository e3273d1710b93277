"""How curves extrapolate where every choice was made on other families of measurements.

    python -m scripts.bench.extrapolation_held_out [--data ../shared/data] [--given 1,2,4] [--json FILE]

Priors and rules of `malletrain.learn.curve` were set with the sets of `scripts.bench.extrapolation` in view, so that
its figures are not blind. Here each family of sets is held out in turn (strong scaling, Pollux's, ImageNet's,
Gavel's), and three choices are made on the others alone:

prior   as shipped, or learnt: the share of each family of shapes and of each misfit by expectation maximisation over
        the other families' whole curves, each application of a set counting once (half a curve more for each share);
knee    whether a curve grows no faster beyond a measured knee than at it;
centre  the mean of log throughput, or the median of the mixture.

Of the eight combinations the one with the least error (as a part of the best law's, mean over the other sets) is
taken and judged on the held-out family. Beside it: what is shipped, the best of the eight in hindsight, the best law.

A second table does the same for the width of the band beyond the measured sizes (split conformal prediction: Vovk,
Gammerman and Shafer, 2005; a score is the distance of the truth from the estimate as a part of the mixture's own band
on that side): which factors on that width would make it hold .85 to .95 of a set; and how much of the set is held by
the mixture's own band, with the one factor that holds nine tenths of the other families (each set counting once),
with one that grows with what is lost (`malletrain.learn.band_width`), whose slope holds nine tenths of the other
families that fix the batch a node, and as shipped, with its 95 % interval (curves drawn anew).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from malletrain.learn.band_width import MIN_LOSS
from malletrain.learn.curve import BAND_TAIL, CurveFit
from malletrain.learn.curve_families import grid
from malletrain.learn.gaussian_process import Points, log_likelihoods, normal_quantile
from malletrain.learn.prior_jobs import MISFIT_PROBABILITIES, MISFITS
from scripts.bench.advisor import Truth
from scripts.bench.extrapolation import GIVEN, LAWS, STRONG, fitted, law_rates, tables

Floats = NDArray[np.float64]

#: What `estimates` gives for each curve of a set.
Bands = Callable[[str, "Choice"], list[list[tuple[float, float, float]]]]
#: The family of each set: what is held out together.
FAMILIES = {
    "T4 strong": "strong scaling", "T4": "Pollux's", "V100, ImageNet": "ImageNet's", "K80": "Gavel's",
    "P100": "Gavel's", "V100": "Gavel's",
}  # fmt: skip
#: Relative noise of a measured size, as `fitted` has it with one window.
NOISE = 0.02
#: Curves that each share of the learnt prior has beforehand.
PSEUDO_CURVES = 0.5
ROUNDS = 40
BOOTSTRAP_DRAWS = 2000


@dataclass(frozen=True)
class Choice:
    """One combination of what is chosen."""

    prior: str
    knee: bool
    centre: str

    def __str__(self) -> str:
        return f"{self.prior} prior, {'knee kept' if self.knee else 'no knee'}, {self.centre}"


CHOICES = [
    Choice(*each) for each in itertools.product(("shipped", "learnt"), (True, False), ("mean", "median"))
]  # fmt: skip
SHIPPED = Choice("shipped", True, "median")


@dataclass(frozen=True)
class Case:
    """One curve: the fit of its given sizes, the larger ones, and how likely each shape (column) with each misfit
    (row) makes the whole curve."""

    set: str
    application: str
    found: CurveFit
    sizes: list[int]
    truth: list[float]
    laws: dict[str, list[float]]
    likelihood: Floats


def cases(name: str, curves: Mapping[str, Truth], given: Sequence[int]) -> Iterator[Case]:
    """The curves of one set."""
    for key, truth in sorted(curves.items()):
        measured = {n: truth[n] for n in given}
        sizes = [n for n in sorted(truth) if n > max(given)]
        points = Points.of([(0, [(n, rate, 1, NOISE) for n, rate in sorted(truth.items())])])
        shape = grid().log_shape(points.nodes)
        likely = log_likelihoods(points, shape, MISFITS)
        laws = {law: law_rates(law, measured, sizes) for law in LAWS}
        yield Case(
            name, key.split(":")[0], fitted(measured, strong=name == STRONG), sizes, [truth[n] for n in sizes], laws,
            np.exp(likely - likely.max()),
        )  # fmt: skip


def learnt(training: Sequence[Case]) -> Floats:
    """Prior of each misfit (row) and shape (column), as a part of the shipped one."""
    of_family, count = grid().family, len(grid().names)
    shipped = np.bincount(of_family, grid().prior, count)
    share, misfit = shipped.copy(), np.array(MISFIT_PROBABILITIES)
    alike: dict[tuple[str, str], int] = defaultdict(int)
    for case in training:
        alike[case.set, case.application] += 1
    for _ in range(ROUNDS):
        prior = np.outer(misfit, grid().prior * (share / shipped)[of_family])
        families, misfits = np.full(count, PSEUDO_CURVES), np.full(len(MISFITS), PSEUDO_CURVES)
        for case in training:
            likely = prior * case.likelihood
            likely /= likely.sum() * alike[case.set, case.application]
            families += np.bincount(of_family, likely.sum(axis=0), count)
            misfits += likely.sum(axis=1)
        share, misfit = families / families.sum(), misfits / misfits.sum()
    return np.outer(misfit / np.array(MISFIT_PROBABILITIES), (share / shipped)[of_family])


def estimates(case: Case, choice: Choice, ratio: Floats | None) -> list[tuple[float, float, float]]:
    """Samples/s and the band on the larger sizes. `ratio`: the prior as a part of the shipped one."""
    weight, mean, sigma = case.found._mixture(case.sizes, keeps_knee=choice.knee)
    free = case.found._mixture(case.sizes, keeps_knee=False)[1] if choice.knee else mean
    if ratio is not None:
        parts = [ratio[MISFITS.index(part.misfit)][part.shape] for part in case.found._parts]
        weight = weight * np.concatenate(parts)
        weight = weight / weight.sum()
    centre = weight @ mean if choice.centre == "mean" else normal_quantile(weight, mean, sigma, 0.5)
    low = normal_quantile(weight, mean, sigma, BAND_TAIL)
    high = normal_quantile(weight, free, sigma, 1 - BAND_TAIL)
    level = np.exp(np.array([centre, low, high]) + case.found._level)
    return [(float(a), float(b), float(c)) for a, b, c in level.T]


def judged(found: Sequence[Case], rates: Sequence[Sequence[float]]) -> float:
    """Mean absolute error, mean over applications."""
    error: dict[str, list[float]] = defaultdict(list)
    for case, mine in zip(found, rates, strict=True):
        error[case.application].append(fmean(abs(a / b - 1) for a, b in zip(mine, case.truth, strict=True)))
    return fmean(fmean(each) for each in error.values())


def coverage(found: Sequence[Case], bands: Sequence[Sequence[tuple[float, float, float]]]) -> float:
    """How often the band held the truth."""
    return fmean(
        low <= truth <= high
        for case, band in zip(found, bands, strict=True)
        for (_, low, high), truth in zip(band, case.truth, strict=True)
    )


@dataclass(frozen=True)
class Scores:
    """Of each larger size of a set: how far the truth is from the estimate, as a part of the mixture's own band on
    that side, over log throughput; the part of throughput that is lost by the estimate; the factor that is shipped;
    and which curve it is of."""

    score: Floats
    lost: Floats
    shipped: Floats
    curve: NDArray[np.int64]


def scores(found: Sequence[Case]) -> Scores:
    """Of all larger sizes of a set."""
    rows = []
    for number, case in enumerate(found):
        one = case.found.measured[0].rate / case.found.measured[0].nodes
        for each, truth in zip(case.found.at(case.sizes), case.truth, strict=True):
            edge = each.high if truth > each.rate else each.low
            shipped = case.found.band_width(each.nodes, each.rate)
            score = shipped * math.log(truth / each.rate) / math.log(edge / each.rate)
            rows.append((score, max(1 - each.rate / (each.nodes * one), 0.0), shipped, number))
    table = np.array(rows, dtype=np.float64).T
    return Scores(table[0], table[1], table[2], table[3].astype(np.int64))


def _nine_tenths(score: Floats, weight: Floats) -> float:
    """The score that nine tenths of the weight do not exceed."""
    order = np.argsort(score)
    reached = np.cumsum(weight[order]) / weight.sum()
    return float(score[order][np.searchsorted(reached, 1 - 2 * BAND_TAIL)])


def _least(parts: Sequence[Floats]) -> float:
    """The least factor that holds nine tenths, each set counting once; nan without any."""
    if not parts:
        return math.nan
    return _nine_tenths(np.concatenate(parts), np.concatenate([np.full(len(each), 1 / len(each)) for each in parts]))


def _sure(held: NDArray[np.bool_], curve: NDArray[np.int64]) -> list[float]:
    """95 % interval of how often the band holds, by drawing curves anew."""
    sizes = np.bincount(curve).astype(np.float64)
    inside = np.bincount(curve, weights=held)
    drawn = np.random.default_rng(0).integers(0, len(sizes), (BOOTSTRAP_DRAWS, len(sizes)))
    found: list[float] = np.quantile(inside[drawn].sum(axis=1) / sizes[drawn].sum(axis=1), [0.025, 0.975]).tolist()
    return found


def band_rows(sets: Mapping[str, Sequence[Case]]) -> dict[str, dict[str, Any]]:
    """By set: the `needed` factors on the mixture's band, least and most; the `factor`s that are chosen on the other
    families (one for all, and the slope over what is lost); the `coverage` of the mixture's band, with each of these,
    and as shipped; and the interval of the last (`sure`). nan: no other family fixes the same."""
    of = {name: scores(mine) for name, mine in sets.items()}
    found: dict[str, dict[str, Any]] = {}
    for name, mine in of.items():
        others = [other for other in sets if FAMILIES[other] != FAMILIES[name]]
        one = _least([of[other].score for other in others])
        alike = [of[other] for other in others if STRONG not in (name, other)]
        slope = _least([each.score / (each.lost + MIN_LOSS) for each in alike])
        held = mine.score <= mine.shipped
        by_loss = float(np.mean(mine.score <= slope * (mine.lost + MIN_LOSS))) if alike else math.nan
        found[name] = {
            "needed": [float(np.quantile(mine.score, share)) for share in (0.85, 0.95)],
            "factor": [one, slope],
            "coverage": [float(np.mean(mine.score <= 1)), float(np.mean(mine.score <= one)), by_loss, held.mean()],
            "sure": _sure(held, mine.curve),
        }
    return found


def all_cases(data: Path, given: Sequence[int]) -> dict[str, list[Case]]:
    """The curves of each set that has some."""
    return {name: list(cases(name, curves, given)) for name, curves in tables(data, given).items() if curves}


def rows(sets: Mapping[str, Sequence[Case]]) -> dict[str, dict[str, Any]]:
    """By set: `error` of each choice, that of the best `law`, what was `chosen` on the other families, and how often
    the band held the truth (`coverage`: as chosen, as shipped)."""
    law = {
        name: min(judged(mine, [case.laws[each] for case in mine]) for each in LAWS) for name, mine in sets.items()
    }
    found: dict[str, dict[str, Any]] = {}
    for family in dict.fromkeys(FAMILIES[name] for name in sets):
        others = [name for name in sets if FAMILIES[name] != family]
        ratio = learnt([case for name in others for case in sets[name]])

        def bands(name: str, choice: Choice, ratio: Floats = ratio) -> list[list[tuple[float, float, float]]]:
            prior = ratio if choice.prior == "learnt" else None
            return [estimates(case, choice, prior) for case in sets[name]]

        def error(name: str, choice: Choice, bands: Bands = bands) -> float:
            return judged(sets[name], [[rate for rate, _, _ in band] for band in bands(name, choice)])

        parts = {each: fmean(error(name, each) / law[name] for name in others) for each in CHOICES}
        chosen = min(CHOICES, key=parts.__getitem__)
        for name in sets:
            if FAMILIES[name] == family:
                found[name] = {
                    "error": {str(each): error(name, each) for each in CHOICES}, "law": law[name],
                    "chosen": str(chosen),
                    "coverage": [coverage(sets[name], bands(name, each)) for each in (chosen, SHIPPED)],
                }  # fmt: skip
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "data")
    parser.add_argument("--given", default=",".join(map(str, GIVEN)), help="sizes that are measured [1,2,4]")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not options.data.is_dir():
        print(f"extrapolation_held_out: {options.data} holds no measurements: give --data", file=sys.stderr)
        return 2
    given = tuple(int(n) for n in options.given.split(","))
    sets = all_cases(options.data, given)
    found = rows(sets)
    print("| held out | error: chosen on the others / shipped / in hindsight / best law "
          "| in the mixture's own band: chosen, shipped | chosen on the others |\n|---|---|---|---|")  # fmt: skip
    for name, row in found.items():
        error, held = row["error"], row["coverage"]
        said = error[row["chosen"]], error[str(SHIPPED)], min(error.values()), row["law"]
        print(f"| {name} | {' / '.join(f'{each:.1%}' for each in said)} | {held[0]:.2f}, {held[1]:.2f} "
              f"| {row['chosen']} |")  # fmt: skip
    bands = band_rows(sets)
    print("\n| held out | factors that hold .85 to .95 | chosen on the others: factor, slope "
          "| in the band: the mixture's, factor, slope | shipped |\n|---|---|---|---|---|")  # fmt: skip
    for name, row in bands.items():
        needed, factor, held, sure = row["needed"], row["factor"], row["coverage"], row["sure"]
        print(
            f"| {name} | {needed[0]:.2f} to {needed[1]:.2f} | {factor[0]:.2f}, {factor[1]:.2f} "
            f"| {held[0]:.2f}, {held[1]:.2f}, {held[2]:.2f} | {held[3]:.2f} [{sure[0]:.2f}, {sure[1]:.2f}] |"
        )
        found[name]["bands"] = row
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
