"""Commands of operators: nodes kept free of pilots, users who are refused; and `stop`, which asks Slurm alone. Runs
on the base wheel."""

import os
import shlex
import time
import tomllib
from datetime import datetime
from pathlib import Path

import click

from malletrain.cli import render
from malletrain.cli.common_options import CommandFailed, as_json
from malletrain.cli.jobs import LONG_POLL_S, show
from malletrain.domain.errors import InvalidInput
from malletrain.slurm.command import Commands
from malletrain.wire import address
from malletrain.wire.daemon import connect

#: Where a daemon on this machine would have its configuration: `stop` takes partition and account from it.
_DAEMON_FILE = Path("/etc/malletrain/malletrain.toml")


@click.command(epilog="Example:  malletrain drain n[001-016] --until 2026-12-01T08:00        malletrain drain")
@click.argument("nodes", required=False)
@click.option("--all", "everything", is_flag=True, help="Every node.")
@click.option("--until", metavar="TIME", help="Local time, as 2026-12-01T08:00; now ends a drain.")
@click.option("--wait/--no-wait", default=True, help="Return when no pilot is left, or at once.")
@click.option(
    "--timeout", type=click.FloatRange(min=1), default=600.0, metavar="S", help="Seconds to wait; then exit status 1."
)
@as_json
def drain(nodes: str | None, everything: bool, until: str | None, wait: bool, timeout: float, as_json: bool) -> None:
    """Keep pilots off NODES until a time, or list what is drained. For operators.

    Slurm is not changed.
    """
    if nodes is None and not everything and until is None:
        found = connect().drains()
        ends = [{"node": node, "until": end} for node, end in sorted(found.items())]
        show(as_json, ends, lambda: render.drains(found))
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
            raise CommandFailed(f"{len(left)} pilots are still there after {timeout:.0f} s: {who}; see explain")
        # The journal grows when a pilot ends: wait for that, not for time to pass.
        _, last = daemon.events(after=last, wait_s=min(LONG_POLL_S, max(0.5, deadline - time.monotonic())))
    click.echo(f"{len(named)} nodes kept free of pilots until {render.clock(end)}")


@click.command(epilog="Example:  malletrain ban mallory --reason 'ticket 4711'")
@click.argument("user", required=False)
@click.option("--reason", help="Why; the user sees it.")
@as_json
def ban(user: str | None, reason: str | None, as_json: bool) -> None:
    """Refuse USER (a name or id) and end its jobs; without USER, list who is refused.

    For operators, who cannot be banned.
    """
    daemon = connect()
    if user is not None:
        if not reason:
            raise click.UsageError("give --reason: the user sees it, and the journal keeps it")
        daemon.ban(user, reason)
        click.echo(f"{user} is refused; the user's jobs end. To end the ban: malletrain unban {user}")
    elif reason:
        raise click.UsageError("--reason needs a USER")
    else:
        rows = daemon.bans()
        banned = [f"{row.get('user')} ({row.get('uid')}): {row.get('reason')}" for row in rows]
        show(as_json, rows, lambda: [(render.Span(each),) for each in banned or ["no user is banned"]])


@click.command(epilog="Example:  malletrain unban mallory")
@click.argument("user")
def unban(user: str) -> None:
    """Admit USER again. For operators."""
    connect().unban(user)
    click.echo(f"{user} is admitted")


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
        raise CommandFailed(f"scancel: {answer.error}")
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


def _time(text: str) -> float:
    """Local time in ISO 8601, or `now`, as Unix seconds."""
    if text == "now":
        return time.time()
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidInput("--until", f"{text!r} is not a time such as 2026-12-01T08:00") from error
