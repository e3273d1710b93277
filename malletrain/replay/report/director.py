"""What a director asks: how many nodes, worth what, with which energy, when nodes are idle, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from malletrain.replay.report.frames import ColumnTable
from malletrain.replay.report.intervals import nodes_interval
from malletrain.replay.report.summary import best, length
from malletrain.replay.result import integral
from malletrain.replay.run import Replay
from malletrain.replay.scoring.figures import Watts
from malletrain.replay.scoring.ideal import Ideal

#: Days of a mean month (365.25 / 12).
MONTH_DAYS = 30.4375
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True, slots=True)
class SitePrices:
    """What the site gives, to turn node-hours into money and energy; None: not given, and left out."""

    node_hour: float | None = None
    currency: str = "EUR"
    watts: Watts | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """How the report came about. `mix`: the training jobs as asked for; `zone`: of calendars."""

    command: str = ""
    version: str = ""
    seed: int = 0
    mix: str = ""
    zone: tzinfo = UTC


def key_figures(answer: Replay, prices: SitePrices) -> Iterator[tuple[str, str]]:
    """(what, how much) in the order in which a director reads them, for the policy that trained most."""
    name, score = best(answer)
    days = answer.trace.seconds / 86_400.0
    monthly = MONTH_DAYS / days if days > 0 else 0.0
    yield "Idle node-hours a month", f"{score.idle_node_seconds / 3600 * monthly:,.0f}"
    yield "of these held for training", f"{score.occupied_node_seconds / 3600 * monthly:,.0f}"
    yield (
        "worth, in node-hours of dedicated nodes a month",
        f"{score.speedup_node_seconds / 3600 * monthly:,.0f}",
    )
    sure = nodes_interval(answer, name)
    nodes = f"{score.equivalent_nodes:,.1f}"
    if sure is not None:
        nodes += f" (95 %: {sure[0]:,.1f} to {sure[1]:,.1f})"
    yield "nodes won, as many dedicated ones would train as much", nodes
    if prices.node_hour is not None:
        money = score.speedup_node_seconds / 3600 * monthly * prices.node_hour
        yield (
            f"what these would have cost a month ({prices.node_hour:g} {prices.currency} a node-hour)",
            (f"{money:,.0f} {prices.currency}"),
        )
    if score.energy_kwh is not None:
        kwh = score.energy_kwh * monthly
        yield "energy a month, beyond what the nodes draw idle", f"{kwh:,.0f} kWh"
    if score.starts_per_minute is not None:
        of = "" if answer.sampled is None else " of those replayed"
        starts = f"{score.starts_per_minute:.2f}; {score.busiest_minute_starts or 0:,} in the busiest minute{of}"
        yield "nodes on which pilots start a minute, which slurmctld has to serve", starts
    delay = score.main_delay
    if delay is not None:
        met = delay.starts_on_pilots / (delay.starts or 1)
        yield "main jobs' starts that met a pilot, as modelled", f"{met:.1%}; mean delay of all {delay.mean_s:.2f} s"


def trainings(answer: Replay) -> str:
    """What was trained, in words."""
    name, score = best(answer)
    if all(each.job.total_samples is None for each in answer.jobs):
        return (
            f"The {len(answer.jobs):,} trainings have no end in this replay; {score.samples:,.0f} samples were seen."
        )
    whole = f"{score.jobs_completed:,} of {len(answer.jobs):,} trainings would have been finished"
    return f"{whole} in {length(answer.trace.seconds)} (policy {name})."


def months(answer: Replay, prices: SitePrices, zone: tzinfo) -> ColumnTable:
    """One row a calendar month of the window: days, idle and held node-hours, and those that the training was worth;
    with money and energy where the site gives figures. Of a sample, held and worth are estimated by the month's days
    that were replayed."""
    trace, (name, _) = answer.trace, best(answer)
    edges = _month_edges(trace.start, trace.end, zone)
    idle, _ = trace.counts()
    log = answer.results[name].log
    at = np.array(edges)
    idle_h = np.diff(integral(trace.time, idle, trace.end, at)) / 3600
    if answer.sampled is None:
        held_h = np.diff(integral(log.time, log.held, trace.end, at)) / 3600
        trained = np.append(log.trained, answer.results[name].totals.speedup)
        worth_h = np.diff(np.interp(at, np.append(log.time, trace.end), trained)) / 3600
    else:
        spans = list(pairwise(edges))
        best_possible = Ideal.of_all(answer.jobs, idle, len(trace.nodes))
        best_h = np.diff(integral(trace.time, best_possible, trace.end, at)) / 3600
        held_h = idle_h * [answer.sampled.ratio(name, "occupied", *span) for span in spans]
        worth_h = best_h * [answer.sampled.ratio(name, "speedup", *span) for span in spans]
    columns: dict[str, NDArray[np.generic]] = {
        "month": np.array([datetime.fromtimestamp(edge, zone).strftime("%Y-%m") for edge in edges[:-1]]),
        "days": np.diff(at) / 86_400,
        "idle_node_hours": idle_h,
        "held_node_hours": held_h,
        "worth_node_hours": worth_h,
    }
    if prices.node_hour is not None:
        columns[f"worth_{prices.currency.lower()}"] = worth_h * prices.node_hour
    if prices.watts is not None:
        columns["kwh"] = held_h * (prices.watts.training - prices.watts.idle) / 1000
    return ColumnTable(columns)


def hours_of_week(answer: Replay, zone: tzinfo) -> NDArray[np.float64]:
    """Mean idle nodes by weekday (from Monday) and hour in the site's zone; nan where the window has none of them."""
    trace = answer.trace
    idle, _ = trace.counts()
    first = math.floor(trace.start / 3600) * 3600.0
    edges = np.clip(np.arange(first, trace.end + 3600.0, 3600.0), trace.start, trace.end)
    seconds = np.diff(edges)
    node_seconds = np.diff(integral(trace.time, idle, trace.end, edges))
    total, lasted = np.zeros((7, 24)), np.zeros((7, 24))
    for edge, lasts, sum_ in zip(edges.tolist(), seconds.tolist(), node_seconds.tolist(), strict=False):
        if lasts > 0:
            when = datetime.fromtimestamp(edge, zone)
            total[when.weekday(), when.hour] += sum_
            lasted[when.weekday(), when.hour] += lasts
    means: NDArray[np.float64] = np.divide(total, lasted, out=np.full((7, 24), np.nan), where=lasted > 0)
    return means


def _month_edges(start: float, end: float, zone: tzinfo) -> list[float]:
    """Start, the begins of months between, end."""
    edges = [start]
    month = datetime.fromtimestamp(start, zone).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    while True:
        month = (month + timedelta(days=32)).replace(day=1)
        if month.timestamp() >= end:
            return [*edges, end]
        edges.append(month.timestamp())
