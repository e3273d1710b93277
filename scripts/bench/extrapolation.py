"""How near curves come beyond the sizes that were measured: on 1, 2 and 4 nodes, asked about all larger ones.

    python -m scripts.bench.extrapolation [--data ../shared/data] [--given 1,2,4]

A row for each set of published measurements:

- mean absolute error, mean over models, of the estimator (`malletrain.learn.curve`), of Amdahl's law, of Gunther's
  universal scalability law (USL) and of a power of the nodes, each law fitted to the same sizes by least squares over
  log throughput;
- the part of the held-out sizes that lay in the estimator's band of nine tenths, below and above it;
- what a job loses on the size that the estimator, or a law, takes for the best of the published ones, as a part of
  what it trains on the truly best, mean over curves.

Windows have the steps that they would have, so that the estimator sees which batch is fixed. `T4 strong` are Pollux's
tables at one total batch, whatever the nodes (the batch a GPU between the measured ones by interpolation over the
logarithms of batch and time); all other sets keep the batch a GPU.
"""

from __future__ import annotations

import argparse
import csv
import gzip
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
from scripts.bench.advisor import Truth, gavel, imagenet, pollux

Floats = NDArray[np.float64]

#: Nodes that are measured, by default.
GIVEN = (1, 2, 4)
#: The set whose total batch is fixed. All others fix the batch a node: Pollux's and ImageNet's say so; Gavel's
#: profiler adds up the steps/s of all workers, each of which loads batches of the given size (its
#: scripts/profiling/measure_throughput.py and workloads).
STRONG = "T4 strong"
#: Samples and steps of a window; a thousand steps of any batch tell the same.
BATCH, STEPS = 1024, 1000


def pollux_strong(data: Path, given: Sequence[int] = GIVEN) -> dict[str, Truth]:
    """Samples/s over nodes at a fixed total batch: one curve for each application, GPUs a node (1, 2, 4) and batch.

    The batches are those that one node was measured with; a size whose batch a GPU was not between two measured ones
    is left out, and so is a curve without the given sizes or without a larger one.
    """
    times: dict[tuple[str, int, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name in ("placements", "scalability"):
        with gzip.open(data / "pollux" / f"{name}.csv.gz", "rt") as file:
            for row in csv.DictReader(file):
                nodes, gpus = int(row["nodes"]), int(row["gpus"])
                if gpus in (nodes, 2 * nodes, 4 * nodes):
                    times[row["app"], gpus // nodes, nodes][int(row["local_bsz"])].append(float(row["step_time_s"]))
    found: dict[str, Truth] = {}
    for app, each in sorted({(app, each) for app, each, _ in times}):
        for batch in sorted(times.get((app, each, 1), {})):
            truth: dict[int, float] = {}
            for nodes in sorted(n for a, e, n in times if (a, e) == (app, each)):
                by_batch = times[app, each, nodes]
                measured, local = sorted(by_batch), batch / nodes
                if measured[0] <= local <= measured[-1]:
                    log_time = np.interp(
                        math.log(local), np.log(measured), [math.log(median(by_batch[b])) for b in measured]
                    )
                    truth[nodes] = batch * each / math.exp(float(log_time))
            if set(given) <= set(truth) and max(truth) > max(given):
                found[f"{app}:{batch * each}:{each}"] = truth
    return found


def tables(data: Path, given: Sequence[int] = GIVEN) -> dict[str, dict[str, Truth]]:
    """All sets: by name, the curves (`model:...`) that have the given sizes and larger ones."""
    found: dict[str, dict[str, Truth]] = {
        "T4 strong": pollux_strong(data, given), "T4": pollux(data), "V100, ImageNet": imagenet(data)
    }  # fmt: skip
    for key, truth in gavel(data).items():
        found.setdefault(key.split(":")[2].upper(), {})[key] = truth
    return {
        name: {k: t for k, t in curves.items() if set(given) <= set(t) and max(t) > max(given)}
        for name, curves in found.items()
    }


# -- the laws


def _laws() -> dict[str, tuple[Floats, Floats]]:
    """Serial part and crosstalk of each law's grid, of which a power has none."""
    serial = np.concatenate((np.zeros(1), np.geomspace(1e-4, 20, 160)))
    crosstalk = np.concatenate((np.zeros(1), np.geomspace(1e-5, 2, 80)))
    both = np.meshgrid(serial, crosstalk, indexing="ij")
    return {
        "Amdahl": (serial, np.zeros_like(serial)), "USL": (both[0].ravel(), both[1].ravel()),
        "power": (np.arange(-1.0, 1.2001, 0.002), np.zeros(0)),
    }  # fmt: skip


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


def measured(curves: Mapping[str, Truth], given: Sequence[int], *, strong: bool = False) -> dict[str, Any]:
    """The row of one set of curves; `strong`: their total batch is fixed."""
    error: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    lost: dict[str, list[float]] = defaultdict(list)
    inside, below, above, widths = [], [], [], []
    for key, truth in sorted(curves.items()):
        points = {n: truth[n] for n in given}
        sizes = [n for n in sorted(truth) if n > max(given)]
        estimates = fitted(points, strong=strong).at(sizes)
        rates = {"curves": [e.rate for e in estimates]} | {law: law_rates(law, points, sizes) for law in LAWS}
        for name, found in rates.items():
            error[name][key.split(":")[0]].append(
                fmean(abs(rate / truth[n] - 1) for rate, n in zip(found, sizes, strict=True))
            )
            all_rates = points | dict(zip(sizes, found, strict=True))
            chosen = max(sorted(all_rates), key=lambda n: all_rates[n])
            lost[name].append(1 - truth[chosen] / max(truth.values()))
        for e in estimates:
            inside.append(e.low <= truth[e.nodes] <= e.high)
            below.append(truth[e.nodes] < e.low)
            above.append(truth[e.nodes] > e.high)
            widths.append(e.high / e.low)
    return {
        "curves": len(curves), "sizes": len(inside),
        "error": {name: fmean(fmean(e) for e in by_model.values()) for name, by_model in error.items()},
        "coverage": fmean(inside), "below": fmean(below), "above": fmean(above), "width": median(widths),
        "lost": {name: fmean(values) for name, values in lost.items()},
    }  # fmt: skip


def rows_of(sets: Mapping[str, Mapping[str, Truth]], given: Sequence[int]) -> dict[str, dict[str, Any]]:
    """The row of each set that has curves."""
    return {name: measured(curves, given, strong=name == STRONG) for name, curves in sets.items() if curves}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "data")
    parser.add_argument("--given", default="1,2,4", help="sizes that are measured [1,2,4]")
    options = parser.parse_args()
    if not options.data.is_dir():
        print(f"extrapolation: {options.data} holds no measurements: give --data", file=sys.stderr)
        return 2
    given = tuple(int(n) for n in options.given.split(","))
    rows = rows_of(tables(options.data, given), given)
    laws = ("curves", *LAWS)
    print("| set | curves | error: " + " / ".join(laws) + " | in the band | truth below, above it | lost by the best "
          "size: " + " / ".join(laws) + " |\n|---|---|---|---|---|---|")  # fmt: skip
    for name, row in rows.items():
        errors = " / ".join(f"{row['error'][law]:.1%}" for law in laws)
        lost = " / ".join(f"{row['lost'][law]:.1%}" for law in laws)
        outside = f"{row['below']:.2f}, {row['above']:.2f}"
        print(f"| {name} | {row['curves']} | {errors} | {row['coverage']:.2f} | {outside} | {lost} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
