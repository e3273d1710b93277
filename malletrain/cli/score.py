"""`malletrain score`: what a daemon's journal was worth, in the figures of `malletrain replay`."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click

from malletrain.domain.errors import InvalidInput


@click.command(
    epilog="""\b
Examples:
  malletrain score /var/lib/malletrain/malletrain.db
  malletrain score malletrain.db --waterfall --keep-idle 4"""
)
@click.argument("journal", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--until", metavar="TIME", type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M"]),
    help="Up to then (UTC).",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="JSON, in seconds and node-seconds.")
@click.option("--waterfall", is_flag=True, help="Show where idle node-time went.")
@click.option(
    "--keep-idle", type=click.IntRange(0), default=0, show_default=True, metavar="N",
    help="Nodes kept idle, for --waterfall.",
)  # fmt: skip
def score(journal: Path, until: datetime | None, as_json: bool, waterfall: bool, keep_idle: int) -> None:
    """Score a daemon's journal in the figures of `malletrain replay`.

    JOURNAL is the daemon's store.path or a copy. It is only read.
    """
    # Imported here so that --help need not wait for numpy.
    from malletrain.replay.report.summary import table, waterfall_lines
    from malletrain.replay.scoring.journal_score import score_journal
    from malletrain.replay.scoring.journal_waterfall import journal_waterfall
    from malletrain.store.event_reader import read_events

    if not journal.is_file():
        raise InvalidInput(str(journal), "is not a file: name the daemon's store.path, or a copy of it")
    end = None if until is None else until.replace(tzinfo=UTC).timestamp()
    events = list(read_events(journal))
    found = score_journal(events, end)
    if waterfall and events:
        last = max(event.at for event in events) if end is None else end
        found = replace(found, waterfall=journal_waterfall(events, (events[0].at, last), keep_idle))
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=2, allow_nan=False))
        return
    for name, value in zip(*table({journal.stem: found}), strict=True):
        click.echo(f"{name:16}{value}")
    for line in waterfall_lines(journal.stem, found):
        click.echo(line)
