"""Figures on the pages are those that their commands give: each stands on its page, and is computed anew at night.

A claim is one sentence or table row of a page, and what it says in numbers. The quick test finds the words on the
page, so that a page cannot say something else than what is computed; the nightly one computes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from malletrain.replay import Window, cluster_trace, read_trace
from malletrain.replay.main_queue import MainSchedule
from malletrain.replay.traces import NodeChanges
from scripts.bench import advisor, extrapolation, extrapolation_held_out
from scripts.bench import replay as replay_bench

DOCS = Path(__file__).resolve().parents[1] / "docs"


@dataclass(frozen=True)
class Claim:
    """`words` stand on `page`, and `value` of the data folder is `figure` give or take `within`."""

    page: str
    words: str
    figure: float
    within: float
    value: Callable[[Path], float]


@cache
def mean_wait_h(data: Path, how: str) -> float:
    """Mean wait of Theta's main jobs in a simulated queue, in hours, as `malletrain replay --schedule` says it."""
    trace = cluster_trace(read_trace(data / "swf" / "ALCF-Theta-2023.swf.gz"), Window(schedule=MainSchedule(how)))
    (said,) = (warning for warning in trace.warnings if "The queue was simulated" in warning)
    found = re.search(r"jobs wait ([\d.]+) h", said)
    assert found is not None
    return float(found[1])


def wait(how: str) -> Callable[[Path], float]:
    return lambda data: mean_wait_h(data, how)


@cache
def extrapolated(data: Path) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    sets = extrapolation.tables(data)
    return {name: extrapolation.measured(curves, extrapolation.GIVEN) for name, curves in sets.items()}


def beyond(name: str, what: str, law: str = "curves") -> Callable[[Path], float]:
    def value(data: Path) -> float:
        found = extrapolated(data)[name][what]
        return 100 * found[law] if isinstance(found, Mapping) else 100 * float(found)

    return value


def held_out(table: str, *given: int) -> Callable[[Path], float]:
    def value(data: Path) -> float:
        row = advisor.held_out(getattr(advisor, table)(data), given)
        assert row is not None
        return 100 * float(row["error"])

    return value


@cache
def chosen_on_the_others(data: Path) -> Mapping[str, Any]:
    return extrapolation_held_out.rows(data, extrapolation.GIVEN)


def blind(name: str) -> Callable[[Path], float]:
    """Error of one set by what was chosen on the other families."""

    def value(data: Path) -> float:
        row = chosen_on_the_others(data)[name]
        return 100 * float(row["error"][row["chosen"]])

    return value


def engine_over_loop(name: str, day: int) -> Callable[[Path], float]:
    """How far the fast engine is off the daemon's loop in one window, in percent."""

    def value(data: Path) -> float:
        log = read_trace(data / "bftrainer" / "summit_node_events.csv.gz")
        assert isinstance(log, NodeChanges)
        return 100 * replay_bench.engine_over_loop(log, name, day)

    return value


QUEUE = "explanation/replay-method.md"
CURVES = "explanation/curves.md"
CLAIMS = (
    Claim(QUEUE, "EASY gives a mean wait of 4.13 h", 4.13, 0.05, wait("backfill")),
    Claim(QUEUE, "conservative backfill 5.07 h", 5.07, 0.05, wait("conservative")),
    Claim(QUEUE, "no backfill 97.73 h", 97.73, 0.5, wait("fcfs")),
    Claim(QUEUE, "6 pilots of up to 8 nodes | +0.00% | +0.01% | +0.00% |", 0.0, 0.1,
          engine_over_loop("6 pilots of up to 8 nodes", 7)),
    Claim(QUEUE, "12 pilots of 10 minutes | +0.00% | +0.00% | -0.00% | +0.00%", 0.0, 0.1,
          engine_over_loop("12 pilots of 10 minutes", 1)),
    Claim(CURVES, "total batch fixed (6-16 nodes) | 61 | 38.9 % / 33.7 % / 25.5 % / 57.0 % | 0.90", 38.9, 0.6,
          beyond("T4 strong", "error")),
    Claim(CURVES, "total batch fixed (6-16 nodes) | 61 | 38.9 % / 33.7 % / 25.5 % / 57.0 % | 0.90", 25.5, 0.6,
          beyond("T4 strong", "error", "USL")),
    Claim(CURVES, "total batch fixed (6-16 nodes) | 61 | 38.9 % / 33.7 % / 25.5 % / 57.0 % | 0.90", 90.0, 1.0,
          beyond("T4 strong", "coverage")),
    Claim(CURVES, "on V100 (8-64 nodes) | 7 | 5.3 % / 26.1 % / 39.9 % / 6.2 %", 5.3, 0.3,
          beyond("V100, ImageNet", "error")),
    Claim(CURVES, "on V100 (8-64 nodes) | 7 | 5.3 % / 26.1 % / 39.9 % / 6.2 %", 6.2, 0.1,
          beyond("V100, ImageNet", "error", "power")),
    Claim(CURVES, "on P100 | 38 | 12.3 % / 22.4 % / 23.5 % / 17.9 % | 0.95", 12.3, 0.3, beyond("P100", "error")),
    Claim(CURVES, "T4 strong | 78.9 % / 38.9 % / 35.8 % / 25.5 %", 78.9, 2.0, blind("T4 strong")),
    Claim(CURVES, "T4 | 11.9 % / 12.8 % / 11.1 % / 27.9 %", 11.9, 0.5, blind("T4")),
    Claim(CURVES, "1, 4, 16 | 7 | 2.5 %", 2.5, 0.1, held_out("imagenet", 1, 4, 16)),
    Claim(CURVES, "1, 2, 16 | 117 | 10.7 %", 10.7, 0.3, held_out("pollux", 1, 2, 16)),
    Claim(CURVES, "1, 4 | 140 | 22.2 %", 22.2, 0.6, held_out("pollux", 1, 4)),
    Claim(CURVES, "1, 2, 8 | 111 | 15.8 %", 15.8, 0.3, held_out("gavel", 1, 2, 8)),
)  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.page}: {claim.words}")
def test_the_page_says_what_is_computed(claim: Claim) -> None:
    text = re.sub(r"\s+", " ", (DOCS / claim.page).read_text(encoding="utf-8"))
    assert claim.words in text
    assert any(abs(float(number) - claim.figure) < 1e-9 or abs(100 * float(number) - claim.figure) < 1e-9
               for number in re.findall(r"\d+(?:\.\d+)?", claim.words))  # fmt: skip


@pytest.mark.nightly
@pytest.mark.data
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.page}: {claim.words}")
def test_the_figure_still_holds(claim: Claim, data_dir: Path) -> None:
    assert claim.value(data_dir) == pytest.approx(claim.figure, abs=claim.within)
