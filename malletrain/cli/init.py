"""`malletrain init`: the changed lines that make a training script malleable, as a diff."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command(
    epilog="""\b
Examples:
  malletrain init train.py
  malletrain init train.py | patch train.py
  malletrain init --write train.py && malletrain check train.py"""
)
@click.option("--write", is_flag=True, help="Change the file, and keep the former one as SCRIPT.orig.")
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def init(write: bool, script: Path) -> None:
    """Propose the changes that make a PyTorch script malleable.

    SCRIPT is read, not run. The diff goes to standard output, what is to be done by hand to standard error. It knows
    the usual loop: a DataLoader, epochs around batches, backward() and the optimizer's step.

    Exit status: 0 with a diff; 1 without.
    """
    # Imported here so that --help need not wait.
    from malletrain.script_check.proposal import propose

    before = script.read_text()
    proposal = propose(before)
    diff = proposal.diff(before, script.name)
    if write and diff:
        script.with_name(script.name + ".orig").write_text(before)
        script.write_text(proposal.text)
    else:
        click.echo(diff, nl=False)
    for note in proposal.notes:
        click.echo(f"{script.name}: {note}", err=True)
    if not diff:
        sys.exit(1)
    click.echo(f"then: malletrain check {script}", err=True)
