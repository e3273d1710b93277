"""What a start reads of the journal: of a long one not every event, since each takes some 40 us to read and fold.

The newest events are read, all of jobs that were not over before these, and of jobs that were what outlives them:
what some of them have measured, what their accounts have used (by the table of stays), and how main jobs fared.
What operators asked for counts always. What starts and changes of size cost is learnt from the newest alone."""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import ColumnElement, func, select, union

from malletrain.domain import event as kinds
from malletrain.domain.event import Event
from malletrain.domain.job import ACTIVE_PHASES
from malletrain.store import schema as t
from malletrain.store.database import reading
from malletrain.store.encoding import row_event
from malletrain.store.journal import READ_BATCH, last_number, read_events

#: So many of the newest events are read whole: those of a day of 10,000 nodes, whose older windows are merged.
FOLDED_WHOLE = 100_000

#: Accounts' use is asked for by periods of a month at most (seconds).
_USE_COUNTS_S = 33 * 86_400.0

#: Of older events those of these kinds count, whatever has become of their job.
_ALWAYS = (
    kinds.JobAnnounced.kind,
    kinds.JobCancelled.kind,
    kinds.JobCompleted.kind,
    kinds.JobFailed.kind,
    kinds.JobNotified.kind,
    kinds.NodeAils.kind,
    kinds.MainJobsArrived.kind,
    kinds.MainJobMet.kind,
    kinds.DaemonStarted.kind,
    kinds.OperatorRequest.kind,
)

#: Account, job, begin and end (Unix seconds) of a pilot's time on a node.
Stay = tuple[str, int, float, float]


class MeasuredJob(NamedTuple):
    """A job that is over, and on how many sizes it has measured its throughput."""

    id: int
    user: str
    name: str
    account: str
    sizes: int


#: Of jobs that are over, the first to end first, those whose measurements count.
Choice = Callable[[Sequence[MeasuredJob]], Collection[int]]


def what_counts(path: Path, choice: Choice, whole: int = FOLDED_WHOLE) -> tuple[Sequence[Stay], Iterator[Event]]:
    """The stays whose events are left out, by their end; and the events that count, in order. Nothing may be written
    to the journal meanwhile. Raises StoreError: it cannot be read."""
    with reading(path) as connection:
        newest = last_number(connection) - whole
        first = select(t.event.c.at).where(t.event.c.seq > newest).order_by(t.event.c.seq).limit(1)
        since = connection.execute(first).scalar()
        if since is None or newest <= 0:
            return (), read_events(path)
        stay, job, event = t.stay.c, t.job.c, t.event.c
        stays = select(job.account, stay.job, stay.started_at, stay.ended_at).join(t.job, job.id == stay.job)
        counted = (_was_over(since), stay.ended_at > since - _USE_COUNTS_S)
        found = connection.execute(stays.where(*counted).order_by(stay.ended_at, stay.id)).all()
        sizes = func.count(func.json_extract(event.data, "$.nodes").distinct())
        columns = (job.id, job.user, job.name, job.account, sizes)
        measured = select(*columns).join(t.event, (event.job == job.id) & (event.kind == kinds.SamplesReported.kind))
        over = measured.where(_was_over(since)).group_by(job.id).order_by(job.ended_at, job.id)
        chosen = choice([MeasuredJob(*row) for row in connection.execute(over)])
        return [tuple(row) for row in found], _events(path, newest, since, chosen)


def _was_over(since: float) -> ColumnElement[bool]:
    """Whether a job was over by then, and holds no node any more."""
    active = select(t.pilot.c.job).where(t.pilot.c.phase.in_(ACTIVE_PHASES))
    return (t.job.c.ended_at < since) & t.job.c.id.not_in(active)


def _events(path: Path, newest: int, since: float, chosen: Collection[int]) -> Iterator[Event]:
    event = t.event.c
    others = select(t.job.c.id).where(_was_over(since))
    mine = select(event.seq).where(event.job.in_(select(t.job.c.id).where(t.job.c.id.not_in(others))))
    always = select(event.seq).where(event.kind.in_(_ALWAYS))
    numbers = func.json_each(json.dumps(sorted(chosen))).table_valued("value")  # old SQLite takes 999 parameters
    samples = select(event.seq).where(
        event.kind == kinds.SamplesReported.kind, event.job.in_(select(numbers.c.value))
    )
    found = select(t.event).where(event.seq <= newest, event.seq.in_(union(mine, samples, always)))
    query = found.order_by(event.seq).execution_options(yield_per=READ_BATCH)
    with reading(path) as connection:
        yield from map(row_event, connection.execute(query))
    yield from read_events(path, after=newest)
