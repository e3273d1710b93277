"""What the benches inside other authors' simulators share: loading one, and the table of completion times."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from scripts.bench.advisor import bootstrap
from scripts.bench.goodput_fit import put_into


def load(folder: Path, module: str, tolerance: float | None = None, *, warm: bool = False) -> ModuleType:
    """A module of the simulator in `folder`, with what it uses of numpy before 1.24 and pandas before 2.

    Simulators name their modules alike (`goodput`, `utils`), so a process loads only one of them. `tolerance`: of its
    fit of step times, which gets its gradient in closed form; `warm`: and begins at the fit before.
    """
    import pandas  # type: ignore[import-untyped]

    np.int = int  # type: ignore[attr-defined]
    pandas.DataFrame.append = lambda frame, other, ignore_index: pandas.concat(
        [frame, other], ignore_index=ignore_index
    )
    sys.path.insert(0, str(folder))
    loaded = importlib.import_module(module)
    put_into(importlib.import_module("job" if (folder / "job.py").is_file() else module),
             importlib.import_module("goodput"), tolerance, warm=warm)  # fmt: skip
    return loaded


def workload(path: Path) -> Any:
    """A workload as the simulators read it: a pandas frame."""
    import pandas

    return pandas.read_csv(path)


def row(name: str, seconds: Sequence[Sequence[float]], look_s: float | None = None) -> dict[str, object]:
    """Mean, median, 95th and 99th percentile of the completion times of some workloads, printed as a row."""
    values = np.array([*chain.from_iterable(seconds)])
    found = {
        "mean": float(values.mean()), "median": float(np.median(values)),
        "p95": float(np.quantile(values, 0.95)), "p99": float(np.quantile(values, 0.99)), "jobs": len(values),
    }  # fmt: skip
    look = "" if look_s is None else f" {look_s:.3f} s a look"
    figures = " | ".join(f"{found[key]:,.0f}" for key in ("mean", "median", "p95", "p99"))
    print(f"| {name} | {figures} |{look}", flush=True)
    return {"name": name, **found, "look_s": look_s}


def by_workload(name: str, ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> None:
    """The ratio of mean completion times, ours over theirs, of each workload and of all, with a bootstrap over the
    workloads."""
    ratios = [float(np.mean(a)) / float(np.mean(b)) for a, b in zip(ours, theirs, strict=True)]
    together = sum(map(sum, ours)) / sum(map(sum, theirs))
    low, high = bootstrap(ratios, np.random.default_rng(1))
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"mean completion over {name}'s: {each}; together {together:.2f} [{low:.2f}, {high:.2f}]", flush=True)
