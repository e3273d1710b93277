"""`malletrain promise`: what the main queue is promised, what that costs in harvest, and how it was kept so far."""

import click

from malletrain.cli.common_options import as_json
from malletrain.cli.jobs import show
from malletrain.cli.render import Column, Line, Span, clock, table
from malletrain.wire.daemon import connect
from malletrain.wire.rows import MainJobDelayRow, PromiseCostRow, PromiseKeptRow, PromiseRow

_COST_COLUMNS: tuple[Column[PromiseCostRow], ...] = (
    Column("P95 OF DELAYS", lambda row: f"{row.delay_s:g} s", number=True),
    Column("NODES IN RESERVE", lambda row: f"{row.reserve_nodes:.1f}", number=True),
    Column("HARVEST LEFT", lambda row: f"{row.harvest_share:.1%}", number=True),
)

_JOB_COLUMNS: tuple[Column[MainJobDelayRow], ...] = (
    Column("MAIN JOB", lambda row: row.main_job),
    Column("USER", lambda row: row.user or "?"),
    Column("STARTED", lambda row: clock(row.started_at)),
    Column("DELAY", lambda row: f"{row.delay_s:.3g} s", number=True),
    Column("NODES", lambda row: str(len(row.nodes)), number=True),
    Column("WHY", lambda row: row.reason),
)


@click.command(epilog="Example:  malletrain promise --days 1 --main-jobs")
@click.option("--days", type=click.IntRange(1, 90), default=7, metavar="N", help="Count the last N days.")
@click.option("--main-jobs", is_flag=True, help="List main jobs that met pilots.")
@as_json
def promise(days: int, main_jobs: bool, as_json: bool) -> None:
    """Show the promise to the main queue, its cost at this hour, and whether it was kept."""
    row = connect().promise(days=days)
    show(as_json, row.to_json(), lambda: _lines(row, days, main_jobs))


def _lines(row: PromiseRow, days: int, main_jobs: bool) -> list[Line]:
    lines = [*_stated(row), *_kept(row.kept, days), *_cost(row)]
    if main_jobs:
        lines += table(_JOB_COLUMNS, row.main_jobs) if row.main_jobs else [_line("no main job met pilots")]
    return lines


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
    return [*lines, *table(_COST_COLUMNS, row.curve)]


def _line(text: str) -> Line:
    return (Span(text),)
