"""Figures on the pages are those that their commands give: each stands on its page, and is computed anew at night.

A claim is one sentence or table row of a page, and what it says in numbers. The quick test finds the words on the
page, so that a page cannot say something else than what is computed; the nightly one computes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from malletrain.cli import replayed_site
from malletrain.domain.job import ResizeCosts
from malletrain.replay import Options, Window, cluster_trace, mix, parse_policy, read_trace, replay
from malletrain.replay.likely_outages import likely_outages, without_outages
from scripts.bench import curves, published
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
def extrapolated(data: Path) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    return curves.rows_beyond(data)


def beyond(name: str, what: str, law: str = "curves") -> Callable[[Path], float]:
    def value(data: Path) -> float:
        found = extrapolated(data)[name][what]
        return 100 * found[law] if isinstance(found, Mapping) else 100 * float(found)

    return value


def held_out(table: str, *given: int) -> Callable[[Path], float]:
    def value(data: Path) -> float:
        return 100 * float(curves.held_out(getattr(published, table)(data), given)["error"]["curves"])

    return value


def share_of_ideal(costs: ResizeCosts, rule: replay_bench.Rule = replay_bench.BASE) -> Callable[[Path], float]:
    """Share of the ideal, in ten-thousandths, of ten jobs on node set 2 of Summit, days 1, 4, 7 and 10."""
    return lambda data: 1e4 * replay_bench.share_of_ideal(data, costs, rule)


def cause(words: str, costs: ResizeCosts, rule: replay_bench.Rule) -> Claim:
    """A row of what is lost by cause: `what | share of the ideal`."""
    return Claim(QUEUE, words, float(words.split(" | ")[1].replace(".", "")), 1.0, share_of_ideal(costs, rule))


def engine_over_loop(name: str, day: int) -> Callable[[Path], float]:
    """How far the fast engine is off the daemon's loop in one window, in percent."""

    def value(data: Path) -> float:
        return 100 * replay_bench.engine_over_loop(replay_bench.summit(data), name, day)

    return value


def held_as_shipped(log: str, day: int) -> Callable[[Path], float]:
    """How much of the idle node-time of two days the shipped daemon's pilots would hold, in percent."""

    def value(data: Path) -> float:
        window = Window(start_after=day * replay_bench.DAY, end_after=(day + 2) * replay_bench.DAY)
        counted = cluster_trace(read_trace(data / "swf" / log), window)
        machine = without_outages(counted, likely_outages(counted))
        settings = replayed_site.site_of(None).config
        options = Options.of_daemon(replayed_site.replayed_rules(settings, "", None), settings.loop.tick_s)
        choice = parse_policy("auto", None)
        found = replay(machine, mix("imagenet:100", ResizeCosts()), [choice], options, processes=1).scores["auto"]
        return 100 * found.occupied_node_seconds / found.idle_node_seconds

    return value


def extrapolation_row(
    start: str, name: str, errors: tuple[float, float, float, float], coverage: str
) -> Iterator[Claim]:
    """The claims of one row of the table: errors of the curves and of each law, and the part in the band."""
    words = f"{start} | {', '.join(f'{error:.1f}' for error in errors)} | {coverage}"
    for law, error in zip(("curves", *curves.LAWS), errors, strict=True):
        yield Claim(CURVES, words, error, 0.6 if law == "curves" else 0.1, beyond(name, "error", law))
    yield Claim(CURVES, words, 100 * float(coverage), 1.0, beyond(name, "coverage"))


QUEUE = "explanation/replay-method.md"
CURVES = "figures.md"
REPLAY = "figures.md"
CLAIMS = (
    Claim(QUEUE, "6 pilots of up to 8 nodes | +0.00% | +0.01% | +0.00% |", 0.0, 0.1,
          engine_over_loop("6 pilots of up to 8 nodes", 7)),
    Claim(QUEUE, "12 pilots of 10 minutes | +0.00% | +0.00% | -0.00% | +0.00%", 0.0, 0.1,
          engine_over_loop("12 pilots of 10 minutes", 1)),
    *extrapolation_row("total batch fixed (6-16 nodes) | 61", "T4 strong", (24.4, 33.7, 25.5, 57.0), "0.95"),
    *extrapolation_row("batch a GPU fixed | 140", "T4", (13.1, 38.1, 38.7, 27.9), "0.91"),
    *extrapolation_row("on V100 (8-64 nodes) | 7", "V100, ImageNet", (5.1, 26.1, 39.9, 6.2), "0.93"),
    *extrapolation_row("on K80 (8 GPUs) | 35", "K80", (4.2, 19.4, 21.5, 12.4), "0.91"),
    *extrapolation_row("on P100 | 38", "P100", (17.3, 22.4, 23.5, 17.9), "0.87"),
    *extrapolation_row("on V100 | 38", "V100", (25.2, 41.4, 47.7, 35.4), "0.87"),
    Claim(CURVES, "1, 4, 16 | 7 | 2.5", 2.5, 0.1, held_out("imagenet", 1, 4, 16)),
    Claim(CURVES, "1, 16 | 7 | 2.4", 2.4, 0.1, held_out("imagenet", 1, 16)),
    Claim(CURVES, "1, 2, 16 | 117 | 10.7", 10.7, 0.3, held_out("pollux", 1, 2, 16)),
    Claim(CURVES, "1, 4 | 140 | 14.0", 14.0, 0.6, held_out("pollux", 1, 4)),
    Claim(CURVES, "1, 2, 4, 16 | 117 | 8.2", 8.2, 0.3, held_out("pollux", 1, 2, 4, 16)),
    Claim(CURVES, "1, 4 | 111 | 14.7", 14.7, 0.6, held_out("gavel", 1, 4)),
    Claim(CURVES, "1, 2, 8 | 111 | 15.6", 15.6, 0.3, held_out("gavel", 1, 2, 8)),
    cause("all of it | .9816", replay_bench.MEASURED, replay_bench.AS_DAEMON),
    cause("no activation | .9949", replace(replay_bench.MEASURED, activate_s=0.0), replay_bench.AS_DAEMON),
    cause("activation 3 s | .9910", replace(replay_bench.MEASURED, activate_s=3.0), replay_bench.AS_DAEMON),
    cause("pilots without a limit | .9856", replay_bench.MEASURED, replay_bench.Rule(tick_s=10.0)),
    cause("every event decided at once | .9854", replay_bench.MEASURED, replay_bench.Rule(pilot_limit_s=1800.0)),
    cause("activation and stalls only | .9893", replay_bench.MEASURED, replay_bench.BASE),
    Claim(REPLAY, "Mira 2018, +100 d | .9601 | 52.9 %", 52.9, 0.3,
          held_as_shipped("ALCF-Mira-2018.asis.swf.gz", 100)),
    Claim(REPLAY, "Theta 2023, +10 d | .9547 | 98.2 %", 98.2, 0.3,
          held_as_shipped("ALCF-Theta-2023.asis.swf.gz", 10)),
)  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.page}: {claim.words}")
def test_the_page_says_what_is_computed(claim: Claim) -> None:
    text = re.sub(r"\s+", " ", (DOCS / claim.page).read_text(encoding="utf-8").replace("|", " | "))
    assert claim.words in text
    assert any(abs(float(number) - claim.figure) < 1e-9 or abs(100 * float(number) - claim.figure) < 1e-9
               for number in re.findall(r"\d+(?:\.\d+)?", claim.words))  # fmt: skip


@pytest.mark.nightly
@pytest.mark.data
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.page}: {claim.words}")
def test_the_figure_still_holds(claim: Claim, data_dir: Path) -> None:
    assert claim.value(data_dir) == pytest.approx(claim.figure, abs=claim.within)
