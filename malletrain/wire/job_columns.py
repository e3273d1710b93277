"""The columns of `malletrain status`, and of the page's table of jobs: each is declared here, once.

A new one shows a field of `malletrain.wire.rows.JobRow`; the terminal has it at its place, the page before the last.
"""

from collections.abc import Callable
from dataclasses import dataclass

from malletrain.wire.rows import JobRow


@dataclass(frozen=True, slots=True)
class JobColumn:
    """`head` in capitals; what a row says, in `words`; a `number` stands to the right. `drawn`: the page draws it
    itself (jobTable in views.js), and needs no words."""

    head: str
    words: Callable[[JobRow], str]
    number: bool = False
    drawn: bool = False


def node_words(row: JobRow) -> str:
    """Nodes that train, and those that warm up or leave beside them."""
    more = row.nodes - row.members
    return f"{row.members}{more:+d}" if more else str(row.members)


def size_words(row: JobRow) -> str:
    """The sizes that a job permits."""
    if row.sizes:
        return ",".join(str(size) for size in row.sizes)
    return str(row.min_nodes) if row.min_nodes == row.max_nodes else f"{row.min_nodes}-{row.max_nodes}"


def progress(row: JobRow) -> str:
    """Samples trained, of how many where that is known."""
    if row.total_samples:
        return f"{count(row.samples)}/{count(row.total_samples)} ({100 * row.samples / row.total_samples:.0f}%)"
    return count(row.samples)


def rate(samples_per_s: float) -> str:
    """Samples a second, or a dash."""
    return f"{count(samples_per_s)}/s" if samples_per_s > 0 else "-"


def pause(seconds: float | None) -> str:
    """A stall, in seconds with two digits behind the point."""
    return "-" if seconds is None else f"{seconds:.2f} s"


def count(number: float) -> str:
    """A count in three digits: 999, 1.23k, 45.6M."""
    for unit in ("", "k", "M", "G", "T"):
        if abs(number) < 999.5 or unit == "T":
            break
        number /= 1000
    if not unit and number == int(number):
        return str(int(number))
    return f"{number:.{2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0}f}{unit}"


JOB_COLUMNS: tuple[JobColumn, ...] = (
    JobColumn("NAME", lambda row: row.name[:24], drawn=True),
    JobColumn("USER", lambda row: row.user, drawn=True),
    JobColumn("PHASE", lambda row: row.phase, drawn=True),
    JobColumn("NODES", node_words, drawn=True),
    JobColumn("SIZES", size_words, drawn=True),
    JobColumn("RATE", lambda row: rate(row.rate), number=True, drawn=True),
    JobColumn("SAMPLES", progress, number=True, drawn=True),
    JobColumn("RESIZES", lambda row: str(row.resizes), number=True, drawn=True),
    JobColumn("PAUSE", lambda row: pause(row.mean_pause_s), number=True, drawn=True),
)
