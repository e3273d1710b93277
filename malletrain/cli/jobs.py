"""Commands about malleable jobs, which ask the daemon. Runs on the base wheel."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from urllib.parse import urlsplit

import click

from malletrain.cli import render
from malletrain.cli.common_options import CommandFailed, as_json
from malletrain.cli.logs import last_words
from malletrain.wire.daemon import DaemonClient, connect
from malletrain.wire.http import DaemonRefused
from malletrain.wire.rows import JobRow, ProfileRow

#: Seconds that `events --follow` and `drain` let the daemon hold a request open.
LONG_POLL_S = 25.0

#: Columns of the longest bar of a profile.
_BAR_COLUMNS = 32

#: Kinds of events that workers report all the time.
_FIGURES = ("samples", "metric")


def say(lines: Iterable[render.Line]) -> None:
    """Print lines, with colours on a terminal that wants them (https://no-color.org)."""
    colors = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    click.echo(render.colored(lines) if colors else render.plain(lines))


def say_json(value: object) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, indent=2))


def show(as_json: bool, value: object, lines: Callable[[], Iterable[render.Line]]) -> None:
    """Print one JSON document for programs, or lines for people."""
    if as_json:
        say_json(value)
    else:
        say(lines())


@click.command(epilog="Example:  malletrain status        malletrain status 3 --json")
@click.argument("job", type=click.IntRange(min=1), required=False)
@click.option("--all", "over", is_flag=True, help="Jobs that have ended, too.")
@as_json
def status(job: int | None, over: bool, as_json: bool) -> None:
    """Show the cluster and every malleable job, or one JOB in full.

    # is the main queue, a letter a job, . idle, : planned, r reserved, ~ off, x down; `3+1` NODES: one comes or goes.
    """
    daemon = connect()
    if job is not None:
        row = daemon.job(job)
        show(as_json, row.to_json(), lambda: _in_full(daemon, row))
        return
    picture = daemon.status()
    if over:
        picture = replace(picture, jobs=daemon.jobs())
    width = shutil.get_terminal_size((120, 24)).columns if sys.stdout.isatty() else 120
    show(as_json, picture.to_json(), lambda: render.status(picture, width=width, over=over))


def _in_full(daemon: DaemonClient, row: JobRow) -> list[render.Line]:
    said = last_words(daemon, row) if row.phase == "failed" and row.uid == os.getuid() else ""
    return [*render.job(row, now=time.time()), *([(render.Span(f"printed last: {said}"),)] if said else [])]


def _asking(verb: str, words: str) -> click.Command:
    """A command that asks the daemon the same for each job, tells of every refusal, and fails if there was one."""

    @click.command(verb, help=words, epilog=f"Example:  malletrain {verb} 3")
    @click.argument("jobs", metavar="JOB...", type=click.IntRange(min=1), nargs=-1, required=True)
    def command(jobs: tuple[int, ...]) -> None:
        daemon = connect()
        refused = False
        for job in dict.fromkeys(jobs):
            try:
                daemon.ask(job, verb)
            except DaemonRefused as error:
                refused = True
                click.echo(f"malletrain: job {job}: {error}", err=True)
            else:
                click.echo(f"job {job}: {verb} requested")
        if refused:
            sys.exit(1)

    return command


cancel = _asking("cancel", "End jobs for good, with their waiting tasks.")
hold = _asking("hold", "Pause jobs: they give their nodes back until `malletrain release`.")
release = _asking("release", "Resume paused jobs.")


@click.command(epilog="Example:  malletrain events --follow --job 3")
@click.option("--follow", "-f", is_flag=True, help="Go on until Ctrl-C.")
@click.option("--job", type=click.IntRange(min=1), help="Only this job.")
@click.option(
    "--after", type=click.IntRange(min=0), default=0, show_default=False, help="Begin after event number N."
)
@click.option("--samples", is_flag=True, help="Throughput and the script's figures, too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def events(follow: bool, job: int | None, after: int, samples: bool, as_json: bool) -> None:
    """Print what happened, oldest first."""
    daemon = connect()
    while True:
        rows, last = daemon.events(after=after, wait_s=LONG_POLL_S if follow else 0.0, job=job)
        for row in rows:
            if row.kind in _FIGURES and not samples:
                continue
            if as_json:
                click.echo(json.dumps(row.to_json()))
            else:
                say([render.event(row)])
        if not follow and (not rows or last <= after):
            return
        after = max(after, last)


@click.command(epilog="Example:  malletrain wait 3 && malletrain report")
@click.argument("jobs", metavar="JOB...", type=click.IntRange(min=1), nargs=-1, required=True)
@click.option("--timeout", type=click.FloatRange(min=0), help="Give up after N seconds.")
def wait(jobs: tuple[int, ...], timeout: float | None) -> None:
    """Wait until jobs are over, and say how each ended.

    Exit status: 0 if all completed, otherwise 1.
    """
    daemon = connect()
    deadline = None if timeout is None else time.monotonic() + timeout
    good = True
    for job in dict.fromkeys(jobs):
        _, last = daemon.latest_events(1)
        while (row := daemon.job(job)).ended_at is None:
            left = LONG_POLL_S if deadline is None else min(LONG_POLL_S, deadline - time.monotonic())
            if left <= 0:
                raise CommandFailed(f"job {job} is {row.phase} after {timeout:.0f} s")
            _, last = daemon.events(
                after=last, wait_s=left, job=job, kinds=("job_completed", "job_failed", "job_cancelled")
            )
        click.echo(render.printable(f"job {job}: {row.phase}" + (f": {row.reason}" if row.reason else "")))
        good = good and row.phase == "completed"
    if not good:
        sys.exit(1)


@click.command(epilog="Example:  malletrain explain 3        malletrain explain n017")
@click.argument("subject", metavar="JOB|NODE", required=False)
@click.option("--main-job", metavar="ID", help="Whether pilots delayed this main job, how long, and why.")
@as_json
def explain(subject: str | None, main_job: str | None, as_json: bool) -> None:
    """Say why a JOB has its nodes, or a NODE its pilot."""
    if (subject is None) == (main_job is None):
        raise click.UsageError("give one of: a JOB's number, a NODE's name, or --main-job ID")
    asked = subject if subject is not None else f"main-job {main_job}"
    lines = [render.local_times(line) for line in connect().explain(asked)]
    show(as_json, {"subject": asked, "lines": lines}, lambda: [(render.Span(line),) for line in lines])


@click.command(epilog="Example:  malletrain profile 3")
@click.argument("job", type=click.IntRange(min=1))
@as_json
def profile(job: int, as_json: bool) -> None:
    """Show how JOB scales, what a resize costs, and what is measured next.

    # is measured, = estimated, . the band (right nine times in ten), | perfect scaling.
    """
    row = connect().profile(job)
    show(as_json, row.to_json(), lambda: [(render.Span(line),) for line in _profile_lines(row)])


def _profile_lines(row: ProfileRow) -> list[str]:
    """The profile as text: a bar of `#` for each measured size, of `=` for each estimated one; `.` up to where the
    band ends, and `|` for perfect scaling from the smallest size on."""
    out = [f"job {row.job}: profile {row.profile}" + (f", most like the family {row.family}" if row.family else "")]
    if row.noise is not None:
        out.append(f"scatter of a window: {row.noise:.1%}")
    if row.sizes:
        out.append(f"{'nodes':>6} {'samples/s':>12} {'band (9 of 10)':>25}  windows")
    widest = max((size.high for size in row.sizes), default=0.0) or 1.0
    for size in row.sizes:
        band = f"{size.low:.1f} to {size.high:.1f}"
        windows = str(size.windows) if size.windows else "estimated"
        perfect = row.sizes[0].rate * size.nodes / row.sizes[0].nodes
        bar = ("#" if size.windows else "=") * max(1, round(_BAR_COLUMNS * size.rate / widest))
        bar = bar.ljust(round(_BAR_COLUMNS * size.high / widest), ".").ljust(_BAR_COLUMNS)
        at = round(_BAR_COLUMNS * perfect / widest)
        bar = f"{bar[:at]}|{bar[at:]}" if at <= _BAR_COLUMNS else bar
        out.append(f"{size.nodes:>6} {size.rate:>12.1f} {band:>25}  {windows:<9} {bar}".rstrip())
    if not row.sizes:
        out.append("no size is measured yet")
    if row.node_class:
        out.append(f"on nodes of class {row.node_class}; others are expected to scale alike")
    if row.costs:
        out.append("a change of size costs: " + ", ".join(f"{name} {took:.2g} s" for name, took in row.costs.items()))
    out += [f"left out: {count} samples: {reason}" for reason, count in sorted(row.ignored.items())]
    if row.next:
        out.append(row.next)
    return out


@click.command(epilog="Example:  malletrain web")
@as_json
def web(as_json: bool) -> None:
    """Print a link that opens the daemon's web page, signed in as you.

    It works once, within a minute. Share it with no one.
    """
    link, lifetime_s = connect().web_link()
    if as_json:
        say_json({"link": link, "lifetime_s": lifetime_s})
        return
    click.echo(link)
    parts = urlsplit(link)
    port, host = parts.port or (443 if parts.scheme == "https" else 80), parts.hostname
    click.echo(f"It opens once, within {lifetime_s:.0f} s. From a machine that does not reach {host}:", err=True)
    click.echo(f"  ssh -L {port}:{host}:{port} LOGIN_NODE    and then the link with localhost:{port}", err=True)


@click.command(epilog="Example:  malletrain report --since 2026-11-01")
@click.option("--since", metavar="DAY", type=click.DateTime(["%Y-%m-%d"]), help="From this day on (UTC).")
@as_json
def report(since: datetime | None, as_json: bool) -> None:
    """Show node hours and samples by day, account and user."""
    rows = connect().usage(since="" if since is None else f"{since:%Y-%m-%d}")
    table = render.table(render.USAGE_COLUMNS, rows) if rows else [(render.Span("nothing used yet", dim=True),)]
    show(as_json, [row.to_json() for row in rows], lambda: table)
