"""What benches share: their options, intervals, what a process has taken, and a slurmctld alone."""

from __future__ import annotations

import argparse
import os
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

#: Public logs and measurements (see its README.md), beside the checkout.
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def options_of(about: str | None) -> argparse.ArgumentParser:
    """A bench's options; `about`: the docstring of its module."""
    return argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)


def data_options_of(about: str | None) -> argparse.ArgumentParser:
    """As `options_of`, of a bench that reads public data: ends it where they are not there."""
    parser = options_of(about)
    parser.add_argument("--data", type=_folder, default=str(DATA), help="folder of public logs and measurements")
    return parser


def _folder(name: str) -> Path:
    if not Path(name).is_dir():
        raise argparse.ArgumentTypeError(f"{name} holds no measurements: give --data")
    return Path(name)


def bootstrap(values: Sequence[float], figure: Callable[..., Any] = np.mean) -> tuple[float, float]:
    """The 95 % interval of a figure, of numpy's, of these values (Efron's percentile method)."""
    of = np.asarray(values)
    drawn = figure(of[np.random.default_rng(1).integers(0, len(of), (2000, len(of)))], axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975)).tolist()
    return low, high


# -- what a process has taken ----------------------------------------------------------------------------------------


def peak_mib() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def spent(pid: int) -> tuple[float, float]:
    """Processor seconds of a process with all its threads, and of its children that have ended (proc(5), stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    tick = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / tick, (int(fields[13]) + int(fields[14])) / tick


def memory_mib(pid: int, key: str) -> float:
    """Memory of a process by a key of proc(5) status: VmRSS now, VmHWM at most."""
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith(f"{key}:"))
    return int(line.split()[1]) / 1024
