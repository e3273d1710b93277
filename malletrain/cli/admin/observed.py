"""What a journal says: `malletrain observed`, what `malletraind --observe` would have harvested; `malletrain score`,
what a daemon was worth."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import click

from malletrain import config as configuration
from malletrain.cli import common_options
from malletrain.domain.errors import InvalidInput
from malletrain.observe.observation import Observation, observation, spread
from malletrain.store.journal import observed_path, read_events

T = TypeVar("T")

_TIME = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M"])


@click.command(epilog="Example:  malletrain observed --since 2026-11-19")
@common_options.config_file
@click.option("--journal", metavar="FILE", type=common_options.FILE, help="The journal of observation.")
@click.option("--since", metavar="TIME", type=_TIME, help="From then on (UTC).")
@click.option("--until", metavar="TIME", type=_TIME, help="Up to then (UTC).")
@click.option(
    "--activate", metavar="S", type=click.FloatRange(min=0), default=15.0, help="Seconds until a pilot trains."
)
@click.option("--json", "as_json", is_flag=True, help="JSON; times in seconds.")
def observed(
    config_file: Path | None,
    journal: Path | None,
    since: datetime | None,
    until: datetime | None,
    activate: float,
    as_json: bool,
) -> None:
    """Report what `malletraind --observe` found. Needs no daemon."""
    path = journal or observed_path(Path(configuration.load_or_defaults(config_file).store.path))
    if not path.exists():
        raise InvalidInput(str(path), "nothing was observed yet: run malletraind --observe, or name its --journal")
    seen = observation(read_events(path), _unix(since, 0.0), _unix(until, float("inf")))
    if as_json:
        click.echo(json.dumps(seen.to_json() | {"productive_node_s": seen.productive_node_s(activate)}, indent=1))
    else:
        for line in lines(seen, activate):
            click.echo(line)


def lines(seen: Observation, activate_s: float) -> Iterator[str]:
    """The observation for people."""
    if seen.seconds <= 0:
        yield "nothing observed in this time"
        return
    yield f"observed          {_utc(seen.begin)} to {_utc(seen.end)}, running for {_hours(seen.seconds)} hours"
    if seen.blind:
        yield f"                  Slurm did not answer {seen.blind} times"
    yield f"holes             {seen.holes}{_spread('; they lasted', seen.hole_s, 60.0, 'min')}"
    yield f"idle              {_hours(seen.idle_node_s)} node-hours"
    share = seen.harvested_node_s / seen.idle_node_s if seen.idle_node_s else 0.0
    productive = seen.productive_node_s(activate_s)
    yield f"harvestable       {_hours(seen.harvested_node_s)} node-hours ({share:.0%})"
    yield f"  training        {_hours(productive)} node-hours, if each pilot needs {activate_s:g} s to start"
    yield f"pilots            {seen.stays} simulated"
    yield f"                  {seen.ended_by_plan} ended before the next planned job"
    late = _spread("; the job got the node", seen.leads_s, 1.0, "s later")
    yield f"                  {seen.asked} left for a waiting main job{late}"
    if seen.asked_in_vain:
        yield f"                  {seen.asked_in_vain} of these left for no job: none started there within 5 minutes"
    yield f"                  {seen.unseen} were on nodes of main jobs that arrived and started between two polls"
    if seen.ended_otherwise:
        yield f"                  {seen.ended_otherwise} ended otherwise, such as on a drained node"
    started = max(seen.main_started, seen.main_jobs_affected)
    yield f"main jobs         {started} started; {seen.main_jobs_affected} would have met a pilot:"
    yield f"                  {seen.jobs_asked} found their nodes free: their pilots had left"
    yield (
        f"                  {seen.jobs_unseen} would have waited up to {seen.worst_wait_s:g} s "
        f"(poll {seen.look_s:g} s, pilot's exit {seen.leave_s:g} s), then for the epilog and Slurm's next cycle"
    )
    yield "next              let Slurm preempt one pilot: malletrain doctor --try"


@click.command(
    epilog="""\b
Example:
  malletrain score /var/lib/malletrain/malletrain.db"""
)
@click.argument("journal", type=common_options.FILE)
@click.option("--until", metavar="TIME", type=_TIME, help="Up to then (UTC).")
@click.option("--json", "as_json", is_flag=True, help="JSON, in seconds and node-seconds.")
def score(journal: Path, until: datetime | None, as_json: bool) -> None:
    """Score a daemon's journal in the figures of `malletrain replay`.

    JOURNAL is the daemon's store.path or a copy. It is only read.
    """
    # Imported here so that --help need not wait for numpy.
    from malletrain.replay.report.summary import table
    from malletrain.replay.scoring.journal_score import score_journal

    if not journal.is_file():
        raise InvalidInput(str(journal), "is not a file: name the daemon's store.path, or a copy of it")
    found = score_journal(read_events(journal), _unix(until, None))
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=2, allow_nan=False))
        return
    for name, value in zip(*table({journal.stem: found}), strict=True):
        click.echo(f"{name:16}{value}")


def _spread(words: str, values: list[float], unit: float, name: str) -> str:
    found = spread(values)
    if not found:
        return ""
    middle, high = found["median"] / unit, found["p90"] / unit
    return f"{words} {middle:.1f} {name} in the median, 9 of 10 up to {high:.1f}"


def _unix(at: datetime | None, otherwise: T) -> float | T:
    return otherwise if at is None else at.replace(tzinfo=UTC).timestamp()


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f}"
