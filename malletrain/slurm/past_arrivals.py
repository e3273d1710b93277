"""Main jobs of the last weeks by accounting: what the promise to the main queue is reckoned from at the start, and
which heterogeneous jobs the reserve must not harm."""

from __future__ import annotations

from malletrain.domain.errors import ClusterUnavailable, InvalidInput
from malletrain.slurm.command import Commands
from malletrain.slurm.formats import scalars

#: Periods that accounting is asked for, in days, until it answers in time: hundreds of thousands of rows take long.
PERIODS_DAYS = (28, 7, 1)


def past_arrivals(
    commands: Commands, harvest_partition: str, most_days: int = PERIODS_DAYS[0]
) -> list[tuple[str, float, int]]:
    """Main jobs as (id, submission in Unix seconds, nodes), of the newest `most_days`, or fewer, for which accounting
    answers in time; empty where it does not, or shows none. Each component of a heterogeneous job is one: `12+0`."""
    for days in (period for period in PERIODS_DAYS if period <= most_days):
        try:
            answer = commands.run(
                ["sacct", "-a", "-X", "-n", "-P", "-S", f"now-{days}days", "-E", "now",
                 "-o", "JobID,Partition,Submit,NNodes"]
            )  # fmt: skip
        except ClusterUnavailable:
            continue
        if answer.ok:
            return parse_arrivals(answer.output, harvest_partition)
    return []


def parse_arrivals(text: str, harvest_partition: str) -> list[tuple[str, float, int]]:
    """The rows of `sacct -X -n -P -o JobID,Partition,Submit,NNodes`; a row that cannot be read is left out."""
    found = []
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) != 4 or cells[1] == harvest_partition:
            continue
        try:
            submitted = scalars.moment(cells[2])
        except InvalidInput:
            continue
        width = scalars.number(cells[3])
        if submitted is not None and width > 0:
            found.append((cells[0], submitted, width))
    return found
