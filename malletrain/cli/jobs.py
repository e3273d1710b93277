"""Commands about malleable jobs: all but `stop` ask the daemon. Runs on the base wheel."""

import json
import os
import shlex
import shutil
import sys
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import click

from malletrain.cli import render
from malletrain.cli.common_options import as_json
from malletrain.cli.logs import last_words
from malletrain.domain.errors import InvalidInput, MalletrainError
from malletrain.slurm.command import Commands
from malletrain.wire import address
from malletrain.wire.daemon import DaemonClient, connect
from malletrain.wire.http import DaemonRefused
from malletrain.wire.rows import JobRow

#: Seconds that `events --follow` and `drain` let the daemon hold a request open.
LONG_POLL_S = 25.0

#: Where a daemon on this machine would have its configuration: `stop` takes partition and account from it.
_DAEMON_FILE = Path("/etc/malletrain/malletrain.toml")

#: Kinds of events that workers report all the time.
_FIGURES = ("samples", "metric")


def say(lines: Iterable[render.Line]) -> None:
    """Print lines, with colours on a terminal that wants them (https://no-color.org)."""
    colors = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    click.echo(render.colored(lines) if colors else render.plain(lines))


def say_json(value: object) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, indent=2))


def terminal_width() -> int:
    """Columns to write into: the terminal's, or 120 where there is none."""
    return shutil.get_terminal_size((120, 24)).columns if sys.stdout.isatty() else 120


@click.command(epilog="Example:  malletrain status        malletrain status 3 --json")
@click.argument("job", type=click.IntRange(min=1), required=False)
@click.option("--all", "over", is_flag=True, help="Jobs that have ended, too.")
@as_json
def status(job: int | None, over: bool, as_json: bool) -> None:
    """Show the cluster and every malleable job, or one JOB in full.

    # is the main queue, a letter a job, . idle, : planned, r reserved, x down. `3+1` NODES: one warms up or leaves.
    """
    daemon = connect()
    if job is not None:
        row = daemon.job(job)
        if as_json:
            say_json(row.to_json())
        else:
            say([*render.job(row, now=time.time()), *_scales(daemon, job), *_last_words(daemon, row)])
        return
    picture = daemon.status()
    if over:
        picture = replace(picture, jobs=daemon.jobs())
    if as_json:
        say_json(picture.to_json())
    else:
        say(render.status(picture, width=terminal_width(), over=over))


def _scales(daemon: DaemonClient, job: int) -> list[render.Line]:
    """How a job that is not over scales, in a line; more in `malletrain profile`."""
    try:
        known = daemon.profile(job)
    except DaemonRefused:
        return []
    points = [f"{size.nodes}: {size.rate:.1f}{'' if size.windows else '?'}" for size in known.sizes]
    return [(render.Span(f"samples/s by nodes (? estimated): {', '.join(points)}"),)] if points else []


def _last_words(daemon: DaemonClient, row: JobRow) -> list[render.Line]:
    found = last_words(daemon, row) if row.phase == "failed" and row.uid == os.getuid() else None
    return [(render.Span(f"printed last: {found[1]} ({found[0]})"),)] if found else []


def _asking(verb: str, words: str) -> click.Command:
    """A command that asks the daemon the same for each job."""

    @click.command(verb, help=words, epilog=f"Example:  malletrain {verb} 3")
    @click.argument("jobs", metavar="JOB...", type=click.IntRange(min=1), nargs=-1, required=True)
    def command(jobs: tuple[int, ...]) -> None:
        _ask_each(verb, jobs)

    return command


cancel = _asking("cancel", "End jobs for good, with their waiting tasks.")
hold = _asking("hold", "Pause jobs: they give their nodes back until `malletrain release`.")
release = _asking("release", "Resume paused jobs.")


def _ask_each(verb: str, jobs: Sequence[int]) -> None:
    """Ask for every job, tell of every refusal, and fail if there was one."""
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


@click.command(epilog="Example:  malletrain events --follow --job 3")
@click.option("--follow", "-f", is_flag=True, help="Go on until Ctrl-C.")
@click.option("--job", type=click.IntRange(min=1), help="Only this job.")
@click.option("--after", type=click.IntRange(min=0), default=0, help="Begin after event number N.")
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
                raise TimedOut(f"job {job} is {row.phase} after {timeout:.0f} s")
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
    if as_json:
        say_json({"subject": asked, "lines": lines})
    else:
        say([(render.Span(line),) for line in lines])


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
    if as_json:
        say_json([row.to_json() for row in rows])
    else:
        say(render.table(render.USAGE_COLUMNS, rows) if rows else [(render.Span("nothing used yet", dim=True),)])


@click.command(epilog="Example:  malletrain drain n[001-016] --until 2026-12-01T08:00        malletrain drain")
@click.argument("nodes", required=False)
@click.option("--all", "everything", is_flag=True, help="Every node.")
@click.option("--until", metavar="TIME", help="Local time, as 2026-12-01T08:00; now ends a drain.")
@click.option("--wait/--no-wait", default=True, help="Return when no pilot is left (default), or at once.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    metavar="S",
    help="Seconds to wait; then exit status 1.",
)
@as_json
def drain(nodes: str | None, everything: bool, until: str | None, wait: bool, timeout: float, as_json: bool) -> None:
    """Keep pilots off NODES until a time, or list what is drained. For operators.

    Slurm is not changed.
    """
    if nodes is None and not everything and until is None:
        found = connect().drains()
        if as_json:
            say_json([{"node": node, "until": end} for node, end in sorted(found.items())])
        else:
            say(render.drains(found))
        return
    if until is None:
        raise click.UsageError("give --until: 2026-12-01T08:00, or now to end a drain")
    if (nodes is None) == (not everything):
        raise click.UsageError("give either NODES or --all")
    end = _time(until)
    daemon = connect()
    named = daemon.drain(nodes=nodes or "", until=end)
    if end <= time.time():
        click.echo("drain ended")
        return
    deadline = time.monotonic() + timeout
    _, last = daemon.latest_events(1)
    while wait:
        left = [node.name for node in daemon.status().nodes if node.state == "pilot" and node.name in named]
        if not left:
            break
        if time.monotonic() > deadline:
            who = ", ".join(left[:8])
            raise TimedOut(f"{len(left)} pilots are still there after {timeout:.0f} s: {who}; see explain")
        # The journal grows when a pilot ends: wait for that, not for time to pass.
        _, last = daemon.events(after=last, wait_s=min(LONG_POLL_S, max(0.5, deadline - time.monotonic())))
    click.echo(f"{len(named)} nodes kept free of pilots until {render.clock(end)}")


class TimedOut(MalletrainError):
    """What was waited for has not come in time."""

    exit_status = 1


@click.command(epilog="Example:  malletrain stop --all --now")
@click.option("--all", "everything", is_flag=True, help="Required.")
@click.option("--now", is_flag=True, help="Required.")
@click.option("--partition", "-p", help="Default: from client.toml or malletrain.toml.")
@click.option("--account", "-A", help="The same.")
@click.option("--dry-run", is_flag=True, help="Print the command.")
def stop(everything: bool, now: bool, partition: str | None, account: str | None, dry_run: bool) -> None:
    """Cancel every pilot by plain scancel, by partition and account; needs no daemon.

    Without an operator's rights in Slurm it reaches only your own. For one job: malletrain cancel.
    """
    if not (everything and now):
        sure = "confirm with --all --now; for one job: malletrain cancel"
        raise click.UsageError(f"this ends all training at once: {sure}")
    if partition is None:
        partition, from_file = _harvest_names()
        account = from_file if account is None else account
    argv = ["scancel", f"--partition={partition}"]
    argv += [f"--account={account}"] if account else []
    if dry_run:
        click.echo(shlex.join(argv))
        return
    # With slurmctld down a command takes 9 s to say so, and thousands of tasks take their time.
    answer = Commands(timeout_s=60).run(argv)
    if not answer.ok:
        raise SlurmCommandFailed(f"scancel: {answer.error}")
    click.echo(f"cancelled: every job of partition {partition}" + (f", account {account}" if account else ""))


def _harvest_names() -> tuple[str, str]:
    """Partition and account of pilots, from the first file that names a partition."""
    site = address.of_site(os.environ)
    if site.partition:
        return site.partition, site.account
    try:
        section = tomllib.loads(_DAEMON_FILE.read_text(encoding="utf-8"))["slurm"]
        return str(section["partition"]), str(section.get("account", ""))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        why = "no client.toml or malletrain.toml names the harvest partition: name it here"
        raise InvalidInput("--partition", why) from error


class SlurmCommandFailed(MalletrainError):
    """A Slurm command answered with an error."""

    exit_status = 1


def _time(text: str) -> float:
    """Local time in ISO 8601, or `now`, as Unix seconds."""
    if text == "now":
        return time.time()
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidInput("--until", f"{text!r} is not a time such as 2026-12-01T08:00") from error
