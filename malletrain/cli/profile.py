"""`malletrain profile`: what is known of how a job scales, and what would be measured next."""

from __future__ import annotations

import click

from malletrain.cli.jobs import as_json, say, say_json
from malletrain.cli.render import Span
from malletrain.wire.daemon import connect
from malletrain.wire.rows import ProfileRow


@click.command(epilog="Example:  malletrain profile 3")
@click.argument("job", type=click.IntRange(min=1))
@as_json
def profile(job: int, as_json: bool) -> None:
    """Show what is known of how JOB scales: measured sizes, the band around them, and what comes next."""
    row = connect().profile(job)
    if as_json:
        say_json(row.to_json())
    else:
        say([(Span(line),) for line in lines(row)])


def lines(row: ProfileRow) -> list[str]:
    """The profile as text."""
    out = [f"job {row.job}: profile {row.profile}" + (f", most like the family {row.family}" if row.family else "")]
    if row.noise is not None:
        out.append(f"scatter of a window: {row.noise:.1%}")
    if row.sizes:
        out.append(f"{'nodes':>6} {'samples/s':>12} {'band (9 of 10)':>25}  windows")
    for size in row.sizes:
        band = f"{size.low:.1f} to {size.high:.1f}"
        windows = str(size.windows) if size.windows else "estimated"
        out.append(f"{size.nodes:>6} {size.rate:>12.1f} {band:>25}  {windows}")
    if not row.sizes:
        out.append("no size is measured yet")
    out += [f"left out: {count} samples: {reason}" for reason, count in sorted(row.ignored.items())]
    if row.next:
        out.append(row.next)
    return out
