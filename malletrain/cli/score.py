"""`malletrain score`: what a daemon's journal was worth, in the figures of `malletrain replay`."""

import json
from datetime import UTC, datetime
from pathlib import Path

import click

from malletrain.cli.common_options import FILE
from malletrain.domain.errors import InvalidInput


@click.command(
    epilog="""\b
Example:
  malletrain score /var/lib/malletrain/malletrain.db"""
)
@click.argument("journal", type=FILE)
@click.option(
    "--until", metavar="TIME", type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M"]), help="Up to then (UTC)."
)
@click.option("--json", "as_json", is_flag=True, help="JSON, in seconds and node-seconds.")
def score(journal: Path, until: datetime | None, as_json: bool) -> None:
    """Score a daemon's journal in the figures of `malletrain replay`.

    JOURNAL is the daemon's store.path or a copy. It is only read.
    """
    # Imported here so that --help need not wait for numpy.
    from malletrain.replay.report.summary import table
    from malletrain.replay.scoring.journal_score import score_journal
    from malletrain.store.journal import read_events

    if not journal.is_file():
        raise InvalidInput(str(journal), "is not a file: name the daemon's store.path, or a copy of it")
    end = None if until is None else until.replace(tzinfo=UTC).timestamp()
    found = score_journal(read_events(journal), end)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=2, allow_nan=False))
        return
    for name, value in zip(*table({journal.stem: found}), strict=True):
        click.echo(f"{name:16}{value}")
