"""`malletrain promise`: what the main queue is promised, what that costs in harvest, and how it was kept so far."""

from __future__ import annotations

import click

from malletrain.cli.jobs import as_json, say, say_json
from malletrain.cli.render import Line, Span, clock, table
from malletrain.wire.daemon import connect
from malletrain.wire.rows import MainJobDelayRow, PromiseKeptRow, PromiseRow


@click.command(epilog="Example:  malletrain promise --days 1 --main-jobs")
@click.option(
    "--days", type=click.IntRange(1, 90), default=7, show_default=True, metavar="N", help="Count the last N days."
)
@click.option("--main-jobs", is_flag=True, help="List main jobs that met pilots.")
@as_json
def promise(days: int, main_jobs: bool, as_json: bool) -> None:
    """Show the promise to the main queue, its cost at this hour, and whether it was kept."""
    row = connect().promise(days=days)
    if as_json:
        say_json(row.to_json())
        return
    lines = [*_stated(row), *_kept(row.kept, days), *_cost(row)]
    if main_jobs:
        lines += _listed(row.main_jobs)
    say(lines)


def _stated(row: PromiseRow) -> list[Line]:
    if not row.stated:
        return [_line("promised: nothing ([promise] is not set); the table below shows what a promise would cost")]
    stated = ((key, f"{key} {value:g}") for key, value in row.stated.items() if key != "chance")
    said = ", ".join(words + " s" * (key == "main_delay_p95") for key, words in stated)
    lines = [_line(f"promised: {said}, with a chance of {row.stated.get('chance', 0.0):.0%}")]
    if row.reserve_nodes is not None:
        lines.append(_line(f"  reserve now: {row.reserve_nodes} nodes; {row.reserve_reason}"))
    if row.pilot_cap is not None:
        lines.append(_line(f"  pilots at most: {row.pilot_cap}; {row.cap_reason}"))
    if row.steps_back:
        lines.append(_line(f"  {row.steps_back} steps stricter, the last since {row.stepped_for}"))
    return lines


def _kept(kept: PromiseKeptRow | None, days: int) -> list[Line]:
    if kept is None or not kept.main_jobs:
        return [_line(f"kept: no main job arrived in the last {days} days")]
    lines = [
        _line(f"main jobs from {clock(kept.since)} to {clock(kept.until)}: {kept.main_jobs}"),
        _line(f"  met pilots: {kept.met}; delayed by them: {kept.delayed}"),
        _line(
            f"  delay: mean {kept.delay_mean_s:.2g} s, p95 {kept.delay_p95_s:.3g} s, longest {kept.longest_s:.3g} s"
        ),
    ]
    if kept.behind:
        lines.append(_line(f"  {kept.behind} more waited behind these: {kept.behind_longest_s:.3g} s at most"))
    if kept.bound_s is not None and kept.within is not None and kept.at_least is not None:
        lines.append(_line(f"  within {kept.bound_s:g} s: {kept.within:.1%} (shown: at least {kept.at_least:.1%})"))
    if kept.broken:
        lines.append((Span(f"  not kept: {kept.broken}", bold=True),))
    return lines


def _cost(row: PromiseRow) -> list[Line]:
    known = row.freed_median_s
    freed = "not measured yet" if known is None else f"{known:.3g} s (median of {row.yields})"
    lines = [
        _line(f"cost at this hour, by {row.arrivals} main jobs known, those {row.hour or 'of no hour'} counted;"),
        _line(f"  nodes are free for a main job after: {freed}; backfill cycles: {row.cycle_s:.3g} s"),
    ]
    if not any(point.reserve_nodes for point in row.curve):
        note = "  every bound below is kept without a reserve" if row.curve else "  not known before the first poll"
        lines.append(_line(note))
    head = ("P95 OF DELAYS", "NODES IN RESERVE", "HARVEST LEFT")
    cells = [
        (Span(f"{each.delay_s:g} s"), Span(f"{each.reserve_nodes:.1f}"), Span(f"{each.harvest_share:.1%}"))
        for each in row.curve
    ]
    return [*lines, *table(head, cells, right={0, 1, 2})]


def _listed(rows: tuple[MainJobDelayRow, ...]) -> list[Line]:
    if not rows:
        return [_line("no main job met pilots")]
    head = ("MAIN JOB", "USER", "STARTED", "DELAY", "NODES", "WHY")
    cells = [
        (
            Span(each.main_job), Span(each.user or "?"), Span(clock(each.started_at)), Span(f"{each.delay_s:.3g} s"),
            Span(str(len(each.nodes))), Span(each.reason),
        )
        for each in rows
    ]  # fmt: skip
    return table(head, cells, right={3, 4})


def _line(text: str) -> Line:
    return (Span(text),)
