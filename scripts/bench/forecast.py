"""How good the forecast of holes is, and what it gains: learnt on some days of a log, scored on the days after.

    python -m scripts.bench.forecast TRACE [--learn DAYS,DAYS,..] [--score DAYS] [--json FILE]

Every ten minutes of the days scored, each idle node's chance to stay idle for 1, 5, 15 and 60 minutes is forecast and
compared with what happened. Every moment counts alike, however many nodes were idle. The forecast starts without its
built-in prior, which may come from the very log. Beside it in the same run:

    constant     the share of idle nodes that stayed so long on the days learnt from
    exponential  one hazard for all ages

A ratio is a score over that of `constant`: below 1 is better; its 95 % interval is over the days scored (bootstrap).
Interval: of the 80 % interval of the rest of a hole, its score (its width plus ten times what lies outside, of
the logarithm of the rest) and how often it held the truth.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from malletrain.learn.hole_forecast import AGES_S, Forecast, HoleHistory, RemainingLife
from malletrain.replay.cluster_trace import IdleIntervals, Window, cluster_trace
from malletrain.replay.traces import read_trace

DAY_S = 86400.0
EVERY_S = 600.0
HORIZONS_S = (60.0, 300.0, 900.0, 3600.0)


@dataclass
class Holes:
    """Holes whose begin was seen: begin, end (s after the trace's start), whether the end was seen, cohort size."""

    begin: np.ndarray
    end: np.ndarray
    ended: np.ndarray
    cohort: np.ndarray


def holes_of(idle: IdleIntervals, start: float, stop: float) -> Holes:
    begin, end = idle.begin - start, idle.end - start
    seen = begin > 0
    begin, end = begin[seen], end[seen]
    _, which, sizes = np.unique(begin, return_inverse=True, return_counts=True)
    return Holes(begin, end, end < stop - start, sizes[which])


def learn(holes: Holes, since: float, until: float) -> tuple[Forecast, float]:
    """The forecast and the one hazard, of what could be known at `until`."""
    known = (holes.begin >= since) & (holes.begin < until)
    begin, cohort = holes.begin[known], holes.cohort[known]
    end, ended = np.minimum(holes.end[known], until), holes.ended[known] & (holes.end[known] <= until)
    weight = 1.0 / cohort
    hazard = float((ended * weight).sum() / ((end - begin) * weight).sum())
    history = HoleHistory(prior=(hazard,) * len(AGES_S))
    groups: dict[tuple[float, float], list[int]] = defaultdict(list)
    for i in range(len(begin)):
        groups[float(end[i]), float(begin[i])].append(i)
    still_open = []
    for (at, began), members in sorted(groups.items()):
        size, nodes = int(cohort[members[0]]), len(members)
        if ended[members[0]]:
            history.add(at, at - began, size, taken=True, nodes=nodes)
        else:
            still_open.append((at - began, size, nodes))
    return history.forecast(still_open), hazard


@dataclass
class Seen:
    """Idle nodes at the moments scored: their age, cohort, rest (s; a lower bound where `ended` is False), weight."""

    age: np.ndarray
    cohort: np.ndarray
    rest: np.ndarray
    ended: np.ndarray
    weight: np.ndarray
    day: np.ndarray


def look(holes: Holes, since: float, until: float) -> Seen:
    parts = []
    for moment in np.arange(since, until, EVERY_S):
        at = np.flatnonzero((holes.begin <= moment) & (holes.end > moment))
        if len(at):
            one = np.ones(len(at))
            columns = (
                moment - holes.begin[at], holes.cohort[at], holes.end[at] - moment, holes.ended[at], one / len(at),
                one * (moment // DAY_S),
            )  # fmt: skip
            parts.append(np.column_stack(columns))
    age, cohort, rest, ended, weight, day = np.concatenate(parts).T
    return Seen(age, cohort.astype(int), rest, ended > 0, weight, day.astype(int))


def chances(remaining: list[RemainingLife], which: np.ndarray, horizon: float) -> np.ndarray:
    found: np.ndarray = np.array([each.survival(horizon) for each in remaining])[which]
    return found


def mean(values: np.ndarray, weight: np.ndarray) -> float:
    return float(np.average(values, weights=weight))


def ratio(top: np.ndarray, bottom: np.ndarray, seen: Seen, random: np.random.Generator) -> list[float]:
    """Mean of `top` over mean of `bottom`, with a 95 % interval over days."""
    days = np.unique(seen.day)
    sums = np.array([
        ((seen.weight * top)[seen.day == d].sum(), (seen.weight * bottom)[seen.day == d].sum()) for d in days
    ])  # fmt: skip
    drawn = sums[random.integers(0, len(days), (2000, len(days)))].sum(axis=1)
    spread = np.quantile(drawn[:, 0] / drawn[:, 1], (0.025, 0.975))
    return [float(sums[:, 0].sum() / sums[:, 1].sum()), *spread.tolist()]


def interval_score(low: np.ndarray, high: np.ndarray, rest: np.ndarray, share: float = 0.2) -> np.ndarray:
    """Of the logarithm of the rest (Gneiting and Raftery, JASA 102, 2007, equation 43)."""
    low, high, truth = np.log(np.maximum(low, 1)), np.log(np.maximum(high, 1)), np.log(np.maximum(rest, 1))
    score: np.ndarray = high - low + 2 / share * (np.maximum(low - truth, 0) + np.maximum(truth - high, 0))
    return score


def compare(holes: Holes, learnt: float, scored: float) -> dict[str, Any]:
    random = np.random.default_rng(0)
    forecast, hazard = learn(holes, 0.0, learnt * DAY_S)
    past = look(holes, 0.0, (learnt - HORIZONS_S[-1] / DAY_S) * DAY_S)
    seen = look(holes, learnt * DAY_S, (learnt + scored) * DAY_S)
    kinds, which = np.unique(np.column_stack([seen.age, seen.cohort]), axis=0, return_inverse=True)
    which = which.ravel()
    remaining = [forecast.remaining(age, int(cohort)) for age, cohort in kinds.tolist()]
    answer: dict[str, object] = {"learnt_days": learnt, "scored_days": scored, "forecasts": len(seen.age)}
    brier: dict[str, object] = {}
    tables: dict[str, object] = {}
    for horizon in HORIZONS_S:
        known = seen.ended | (seen.rest >= horizon)
        part = Seen(*(column[known] for column in vars(seen).values()))
        truth = (part.rest >= horizon).astype(float)
        old = past.ended | (past.rest >= horizon)
        base = mean((past.rest >= horizon)[old].astype(float), past.weight[old])
        ours = chances(remaining, which, horizon)[known]
        constant, exponential = (base - truth) ** 2, (math.exp(-hazard * horizon) - truth) ** 2
        brier[f"{horizon:.0f}"] = {
            "constant": mean(constant, part.weight),
            "forecast_over_constant": ratio((ours - truth) ** 2, constant, part, random),
            "forecast_over_exponential": ratio((ours - truth) ** 2, exponential, part, random),
        }
        rows = []
        for low in np.arange(0, 1, 0.2):
            inside = (ours >= low) & (ours < low + 0.2 if low < 0.79 else ours <= 1)
            if inside.any():
                w = part.weight[inside]
                share = float(w.sum() / part.weight.sum())
                rows.append([f"{low:.1f}-{low + 0.2:.1f}", mean(ours[inside], w), mean(truth[inside], w), share])
        tables[f"{horizon:.0f}"] = rows
    answer["brier"], answer["reliability"] = brier, tables
    # The logarithm of the density of the rest; holes cut by the log's end count with their survival.
    lives = zip(which, seen.rest, seen.ended, strict=True)
    log_ours = np.array([log_density(remaining[k], rest, ended) for k, rest, ended in lives])
    log_one = np.where(seen.ended, math.log(hazard), 0.0) - hazard * seen.rest
    answer["log_score"] = {
        "exponential": mean(log_one, seen.weight), "forecast": mean(log_ours, seen.weight),
        "perplexity_ratio": math.exp(mean(log_one - log_ours, seen.weight)),
    }  # fmt: skip
    low = np.array([each.quantile(0.1) for each in remaining])[which]
    high = np.array([each.quantile(0.9) for each in remaining])[which]
    past_low, past_high = weighted_quantiles(past.rest, past.weight, (0.1, 0.9))
    one = np.ones(len(low))
    ours = interval_score(low, high, seen.rest)
    constant = interval_score(past_low * one, past_high * one, seen.rest)
    exponential = interval_score(-math.log(0.9) / hazard * one, -math.log(0.1) / hazard * one, seen.rest)
    answer["interval"] = {
        "held": mean((seen.rest >= low) & (seen.rest <= high), seen.weight),
        "held_constant": mean((seen.rest >= past_low) & (seen.rest <= past_high), seen.weight),
        "forecast_over_constant": ratio(ours, constant, seen, random),
        "forecast_over_exponential": ratio(ours, exponential, seen, random),
    }
    return answer


def log_density(remaining: RemainingLife, rest: float, ended: bool) -> float:
    chance = math.log(max(remaining.survival(rest), 1e-300))
    return chance + (
        math.log([h for begin, h in remaining.steps if begin < rest or begin == 0][-1]) if ended else 0.0
    )


def weighted_quantiles(values: np.ndarray, weight: np.ndarray, shares: tuple[float, ...]) -> list[float]:
    order = np.argsort(values)
    reached = np.cumsum(weight[order]) / weight.sum()
    return [float(values[order][np.searchsorted(reached, share)]) for share in shares]


def spread(row: list[float]) -> str:
    return f"{row[0]:.2f} ({row[1]:.2f}-{row[2]:.2f})"


def report(found: dict[str, Any]) -> None:
    learnt, scored, count = found["learnt_days"], found["scored_days"], found["forecasts"]
    print(f"\nlearnt on {learnt:g} days, scored on the next {scored:g}: {count:,} forecasts")
    print("  Brier score, over that of      constant             exponential")
    for horizon, row in found["brier"].items():
        ours = spread(row["forecast_over_constant"]), spread(row["forecast_over_exponential"])
        print(f"    idle {horizon:>5} s more          {ours[0]}     {ours[1]}")
    row = found["interval"]
    ours = spread(row["forecast_over_constant"]), spread(row["forecast_over_exponential"])
    print(f"  80 % interval, its score       {ours[0]}     {ours[1]}")
    print(f"    it held {row['held']:.2f} of the rests, that of constant {row['held_constant']:.2f}")
    better = 1 / found["log_score"]["perplexity_ratio"]
    print(f"  log score: what happened was {better:.1f} times as likely as by exponential")
    print("  reliability: forecast -> what happened (share of forecasts)")
    for horizon, rows in found["reliability"].items():
        print(f"    {horizon:>5} s  " + "  ".join(f"{p:.2f}->{t:.2f} ({share:.2f})" for _, p, t, share in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--learn", default="4,7,10", help="days learnt from, one run each")
    parser.add_argument("--score", type=float, default=3.0, help="days scored after them")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    trace = cluster_trace(read_trace(given.trace), Window())
    holes = holes_of(trace.intervals(), trace.start, trace.end)
    found = [compare(holes, float(days), given.score) for days in given.learn.split(",")]
    for each in found:
        report(each)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
