"""`malletrain profile`: what is known of how a job scales, and what would be measured next."""

import click

from malletrain.cli.common_options import as_json
from malletrain.cli.jobs import show
from malletrain.cli.render import Span
from malletrain.wire.daemon import connect
from malletrain.wire.rows import ProfileRow

#: Columns of the longest bar.
_BAR_COLUMNS = 32


@click.command(epilog="Example:  malletrain profile 3")
@click.argument("job", type=click.IntRange(min=1))
@as_json
def profile(job: int, as_json: bool) -> None:
    """Show how JOB scales, what a resize costs, and what is measured next.

    # is measured, = estimated, . the band (right nine times in ten), | perfect scaling.
    """
    row = connect().profile(job)
    show(as_json, row.to_json(), lambda: [(Span(line),) for line in lines(row)])


def lines(row: ProfileRow) -> list[str]:
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
