"""How near curves come to published measurements, on sizes that were not measured.

    python -m scripts.bench.curves [--data ../shared/data]

Two tables. The first asks for all sizes that were not given, of curves that keep the batch a node: mean absolute
error, mean over models, and how often the band of nine tenths held the truth. The second is about what lies beyond
1, 2 and 4 nodes, with a row for each set of published measurements:

- the error of the estimator (`malletrain.learn.curve`), of Amdahl's law, of Gunther's universal scalability law (USL)
  and of a power of the nodes, each law fitted to the same sizes by least squares over log throughput;
- the part of the held-out sizes that lay in the estimator's band, below and above it;
- what a job loses on the size that the estimator, or a law, takes for the best of the published ones, as a part of
  what it trains on the truly best, mean over curves.

Windows have the steps that they would have, so that the estimator sees which batch is fixed. `T4 strong` are Pollux's
tables at one total batch, whatever the nodes (the batch a GPU between the measured ones by interpolation over the
logarithms of batch and time); all other sets keep the batch a GPU.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from malletrain.domain.job import ThroughputSample
from malletrain.learn.curve import CurveFit, fit_curve
from scripts.bench.published import Truth, gavel, imagenet, pollux, pollux_rows
from scripts.bench.shared import data_options_of

Floats = NDArray[np.float64]

#: Nodes that are measured where larger ones are asked for.
GIVEN = (1, 2, 4)
#: Sets of the first table, and which sizes are given.
WITHIN = (
    ("imagenet", imagenet, ((1, 4, 16), (1, 16))),
    ("pollux", pollux, ((1, 2, 16), (1, 4), (1, 2, 4, 16))),
    ("gavel", gavel, ((1, 4), (1, 2, 8))),
)
#: The set whose total batch is fixed. All others fix the batch a node: Pollux's and ImageNet's say so; Gavel's
#: profiler adds up the steps/s of all workers, each of which loads batches of the given size (its
#: scripts/profiling/measure_throughput.py and workloads).
STRONG = "T4 strong"
#: Samples and steps of a window; a thousand steps of any batch tell the same.
BATCH, STEPS = 1024, 1000


def pollux_strong(data: Path) -> dict[str, Truth]:
    """Samples/s over nodes at a fixed total batch: one curve for each application, GPUs a node (1, 2, 4) and batch.

    The batches are those that one node was measured with; a size whose batch a GPU was not between two measured ones
    is left out.
    """
    times: dict[tuple[str, int], dict[int, dict[int, list[float]]]] = defaultdict(lambda: defaultdict(dict))
    for row in pollux_rows(data):
        if each := row.gpus_a_node:
            times[row.app, each][row.nodes].setdefault(row.batch, []).append(row.step_s)
    found: dict[str, Truth] = {}
    for (app, each), by_nodes in sorted(times.items()):
        for batch in sorted(by_nodes.get(1, {})):
            truth: dict[int, float] = {}
            for nodes, by_batch in sorted(by_nodes.items()):
                measured, local = sorted(by_batch), batch / nodes
                if measured[0] <= local <= measured[-1]:
                    log_time = np.interp(
                        math.log(local), np.log(measured), [math.log(median(by_batch[b])) for b in measured]
                    )
                    truth[nodes] = batch * each / math.exp(float(log_time))
            found[f"{app}:{batch * each}:{each}"] = truth
    return found


def tables(data: Path) -> dict[str, dict[str, Truth]]:
    """All sets of the second table by name: the curves (`model:...`) that have the given sizes and larger ones."""
    found = {STRONG: pollux_strong(data), "T4": pollux(data), "V100, ImageNet": imagenet(data)}
    for key, truth in gavel(data).items():
        found.setdefault(key.split(":")[2].upper(), {})[key] = truth
    return {name: {k: t for k, t in curves.items() if _is_beyond(t)} for name, curves in found.items()}


def _is_beyond(truth: Truth) -> bool:
    return set(GIVEN) <= set(truth) and max(truth) > max(GIVEN)


# -- the laws


def _laws() -> dict[str, tuple[Floats, Floats]]:
    """Serial part and crosstalk of each law's grid, of which a power has none."""
    serial = np.concatenate((np.zeros(1), np.geomspace(1e-4, 20, 160)))
    crosstalk = np.concatenate((np.zeros(1), np.geomspace(1e-5, 2, 80)))
    both = np.meshgrid(serial, crosstalk, indexing="ij")
    return {
        "Amdahl": (serial, np.zeros_like(serial)),
        "USL": (both[0].ravel(), both[1].ravel()),
        "power": (np.arange(-1.0, 1.2001, 0.002), np.zeros(0)),
    }


LAWS = _laws()


def law_rates(law: str, points: Truth, sizes: Sequence[int]) -> list[float]:
    """Samples/s on the sizes by the shape of the law nearest to the points: least squares over log throughput."""
    first, second = LAWS[law]

    def shapes(nodes: Sequence[int]) -> Floats:
        n = np.array(nodes, dtype=np.float64)
        if law == "power":
            return np.asarray(first[:, None] * np.log(n))
        return np.asarray(np.log(n) - np.log1p(first[:, None] * (n - 1) + second[:, None] * n * (n - 1)))

    given = sorted(points)
    off = np.log([points[n] for n in given]) - shapes(given)
    level = off.mean(axis=1)
    best = int(np.argmin(((off - level[:, None]) ** 2).sum(axis=1)))
    return [float(math.exp(x)) for x in (shapes(sizes)[best] + level[best])]


# -- the bench


def fitted(points: Truth, *, strong: bool = False) -> CurveFit:
    """The fit of a window of a thousand steps at each point; the total batch is fixed (`strong`), or that a node."""
    samples = {n: BATCH * STEPS * (1 if strong else n) for n in points}
    windows = [ThroughputSample(0.0, n, samples[n], samples[n] / rate, STEPS) for n, rate in sorted(points.items())]
    found = fit_curve(windows)
    assert found is not None
    return found


def held_out(
    curves: Mapping[str, Truth], given: Sequence[int], *, strong: bool = False, beyond: bool = False
) -> dict[str, Any]:
    """The row of one set of curves, of those that have the given sizes.

    Args:
        strong: their total batch is fixed.
        beyond: asked about larger sizes alone, and of laws, too.
    """
    error: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    lost: dict[str, list[float]] = defaultdict(list)
    inside, below, above = [], [], []
    count = 0
    for key, truth in sorted(curves.items()):
        if not set(given) <= set(truth):
            continue
        count += 1
        points = {n: truth[n] for n in given}
        sizes = [n for n in sorted(truth) if n not in given and (n > max(given) or not beyond)]
        estimates = fitted(points, strong=strong).at(sizes)
        rates = {"curves": [e.rate for e in estimates]}
        rates |= {law: law_rates(law, points, sizes) for law in LAWS if beyond}
        for name, found in rates.items():
            error[name][key.split(":")[0]].append(
                fmean(abs(rate / truth[n] - 1) for rate, n in zip(found, sizes, strict=True))
            )
            all_rates = points | dict(zip(sizes, found, strict=True))
            chosen = max(sorted(all_rates), key=lambda n: all_rates[n])
            lost[name].append(1 - truth[chosen] / max(truth.values()))
        inside += [e.low <= truth[e.nodes] <= e.high for e in estimates]
        below += [truth[e.nodes] < e.low for e in estimates]
        above += [truth[e.nodes] > e.high for e in estimates]
    return {
        "curves": count,
        "error": {name: fmean(fmean(e) for e in by_model.values()) for name, by_model in error.items()},
        "coverage": fmean(inside),
        "below": fmean(below),
        "above": fmean(above),
        "lost": {name: fmean(values) for name, values in lost.items()},
    }


def rows_beyond(data: Path) -> dict[str, dict[str, Any]]:
    """The rows of the second table."""
    return {name: held_out(of, GIVEN, strong=name == STRONG, beyond=True) for name, of in tables(data).items()}


def main() -> int:
    data: Path = data_options_of(__doc__).parse_args().data
    print("| measured | given | curves | error | in the band |\n|---|---|---|---|---|")
    for name, read, sizes in WITHIN:
        for given in sizes:
            row = held_out(read(data), given)
            print(
                f"| {name} | {', '.join(map(str, given))} | {row['curves']} | {row['error']['curves']:.1%} "
                f"| {row['coverage']:.2f} |"
            )
    laws = " / ".join(("curves", *LAWS))
    print(f"\n| set | curves | error: {laws} | in the band | truth below, above it | lost by the best size: {laws} |")
    print("|---|---|---|---|---|---|")
    for name, row in rows_beyond(data).items():
        errors, lost = (" / ".join(f"{each:.1%}" for each in row[key].values()) for key in ("error", "lost"))
        outside = f"{row['below']:.2f}, {row['above']:.2f}"
        print(f"| {name} | {row['curves']} | {errors} | {row['coverage']:.2f} | {outside} | {lost} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
