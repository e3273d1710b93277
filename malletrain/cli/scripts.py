"""Commands about a training script: `malletrain check`, whether it gives the same result when workers come, go and
are killed; `malletrain init`, the changed lines that make it malleable, as a diff."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from malletrain.cli.common_options import SCRIPT

if TYPE_CHECKING:
    from malletrain.script_check.check_runs import CheckReport

_DURING = {
    "alone": "with one worker",
    "joining": "as workers joined",
    "three workers": "with three workers",
    "after a kill": "after one of three was killed",
    "two workers": "with two workers from the start",
}

_GUIDE = "docs/how-to/researcher-script.md"


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="""\b
Examples:
  malletrain check train.py --epochs 20
  malletrain check --at-epoch 9 --from .malletrain/12 train.py""",
)
@click.option(
    "--json", "as_json", is_flag=True, help="JSON: verdict, text, steps, equality, differences, unmet, good."
)
@click.option("--at-epoch", type=click.IntRange(min=0), help="Begin with this epoch, from 0.")
@click.option(
    "--from",
    "checkpoints",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Begin with the newest checkpoint of this folder.",
)
@click.argument("script", type=SCRIPT)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def check(
    as_json: bool, at_epoch: int | None, checkpoints: Path | None, script: Path, arguments: tuple[str, ...]
) -> None:
    """Check a training script on this machine.

    It trains thirty steps with one worker, three, and two after a kill, and compares the result with static runs of
    one and two. Exit status 0: equal, statistical where the session claims no more, or undecided.
    """
    # Imported here so that --help need not wait for torch.
    from malletrain.script_check.check_runs import check_script

    def say(text: str) -> None:
        if not as_json and sys.stderr.isatty():
            click.echo(f"... {text}", err=True)

    try:
        report = check_script(script, arguments, say, at_epoch, checkpoints and checkpoints.resolve())
    except TimeoutError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(report.as_json(), indent=2))
    else:
        click.echo(_text(report))
    if not report.good:
        sys.exit(1)


def _text(report: CheckReport) -> str:
    made = f"{report.steps} steps: alone, then three workers, one of them killed, then two; static runs of 1 and 2"
    claims = f"the session claims: {report.equality}"
    # Those that rounding alone moves anywhere say nothing.
    worst = max((each.difference for each in report.differences if each.limit < 1.0), default=0.0)
    causes = report.causes or [
        "no rule knows the cause: leave out one part of the loss, of the step, or of what is between steps at a "
        "time, and check again"
    ]
    rows = {
        "equal": [
            f"equal  {made}.",
            f"largest difference: {worst:.2g} of what training has changed a parameter by (rounding)",
            claims,
            report.text,
        ],
        "not repeatable": [
            f"NOT REPEATABLE  two static runs of the script differ: {report.text}.",
            "Nothing can be compared with them. Seed all random numbers before Session(...) (torch.manual_seed), and "
            "do not depend on the time.",
        ],
        "statistical": [f"statistical, not equal  {made}.", report.text, claims],
        "undecided": [f"undecided, because rounding decides  {made}.", report.text, claims],
        "different": [f"DIFFERENT  {made}.", report.text, report.begins, claims, *causes],
        "no session": [f"NOT MALLEABLE YET  the script trains without an elastic.Session: six lines, see {_GUIDE}"],
        "too short": [f"TOO SHORT  {report.text}"],
    }
    word = "WRONG" if report.verdict == "wrong" else "FAILED"
    failed = [f"{word}  {_DURING.get(report.during, report.during)}:", report.text]
    unmet = [f"not met: {each}" for each in report.unmet] if report.good else []
    return "\n  ".join(filter(None, [*rows.get(report.verdict, failed), *report.notes, *unmet]))


@click.command(
    epilog="""\b
Examples:
  malletrain init train.py
  malletrain init train.py | patch train.py
  malletrain init --write train.py && malletrain check train.py"""
)
@click.option("--write", is_flag=True, help="Change the file; the old one becomes SCRIPT.orig.")
@click.argument("script", type=SCRIPT)
def init(write: bool, script: Path) -> None:
    """Propose the lines that make a PyTorch script malleable, as a diff.

    SCRIPT is read, not run. What to do by hand goes to standard error. Exit status 1: nothing can be proposed.
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
