"""What people read: rows of the projections, and of the last look at the cluster."""

import json
import operator
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, Select, func, or_, select

from malletrain.domain.decision import Decision
from malletrain.domain.errors import InvalidInput
from malletrain.domain.event import (
    ActionIntent,
    BreakerSwitched,
    DaemonStarted,
    DaemonStopped,
    Event,
    MainJobMet,
    PoolCounted,
    SizesDecided,
    SlurmUnavailable,
)
from malletrain.domain.job import ACTIVE_PHASES, JobPhase, PilotPhase, ScriptCheck, ScriptVerdict
from malletrain.domain.snapshot import Snapshot
from malletrain.store import schema as t
from malletrain.store.database import reader_engine, storage_errors
from malletrain.store.encoding import row_event
from malletrain.store.folding import days
from malletrain.store.kept_answers import KeptAnswers, text_of
from malletrain.wire.rows import DecisionRow, EventRow, JobRow, NodeRow, PilotRow, PoolRow, StatusRow, UsageRow

_OVER = tuple(phase.value for phase in JobPhase if phase.is_over)
_ACTIVE = tuple(sorted(phase.value for phase in ACTIVE_PHASES))

#: Events of no job that name no user: shown also to users from whom others' jobs are hidden.
OPEN_KINDS = (
    DaemonStarted.kind,
    DaemonStopped.kind,
    SizesDecided.kind,
    BreakerSwitched.kind,
    SlurmUnavailable.kind,
    PoolCounted.kind,
)

#: At most so many rows in one answer.
MAX_JOBS = 10_000
MAX_EVENTS = 5_000

#: And so many bytes, or one row that is longer: of events, of a list of jobs.
MAX_EVENT_BYTES = 1024 * 1024
MAX_JOB_BYTES = 4 * 1024 * 1024

#: Rows of usage in one answer at most.
MAX_USAGE_ROWS = 50_000

#: A main job meets pilots within so many seconds: those asked to leave, until it has the nodes.
_MEETING_S = 86_400.0

#: A pilot in one of these phases has been started by Slurm.
_HOLDS_NODE = (PilotPhase.RUNNING, PilotPhase.LEAVING, PilotPhase.RECYCLING)


class StoreViews:
    """Reads over connections of its own, which cannot write. Safe to call from many threads."""

    def __init__(
        self,
        path: Path,
        snapshot: Callable[[], Snapshot | None] = lambda: None,
        decision: Callable[[], Decision | None] = lambda: None,
        version: str = "",
        notices: Callable[[], Sequence[str]] = tuple,
        waiting: Callable[[int], str] = lambda _job: "",
    ) -> None:
        """`path` is the journal's; `snapshot` and `decision` give the daemon's last ones, which no journal keeps;
        `notices` what it wants people to know; `waiting` why a job that is queued has no nodes."""
        self._path = path
        self._engine = reader_engine(path)
        self._snapshot = snapshot
        self._decision = decision
        self._version = version
        self._notices = notices
        self._waiting = waiting
        # The longer the more it takes; the status of less than some 1,500 nodes is not kept.
        self._kept = KeptAnswers(lambda size, took_s: min(2.0, 40.0 * took_s) if size >= 250_000 else 0.0)

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def next_job_id(self) -> int:
        """A number that no job ever had: old jobs keep their rows."""
        with storage_errors(self._path), self._engine.begin() as connection:
            return int(connection.execute(select(func.coalesce(func.max(t.job.c.id), 0))).scalar_one()) + 1

    def job(self, job_id: int) -> JobRow | None:
        """One job, with its active pilots; None if there is none of that number."""
        with storage_errors(self._path), self._engine.begin() as connection:
            rows = connection.execute(select(t.job).where(t.job.c.id == job_id)).all()
            found = self._with_reasons(_job_rows(connection, rows, MAX_JOBS))
        return found[0] if found else None

    def script_check(self, uid: int, digest: str) -> ScriptCheck | None:
        """What a check found of the script with this digest in the user's newest job that ran it, if it found any."""
        job = t.job.c
        query = (
            select(job.check_verdict, job.check_text)
            .where(job.uid == uid, job.check_digest == digest, job.check_digest != "")
            .where(job.check_verdict.in_((ScriptVerdict.EQUAL, ScriptVerdict.DIFFERENT)))
            .order_by(job.id.desc())
            .limit(1)
        )
        with storage_errors(self._path), self._engine.begin() as connection:
            row = connection.execute(query).first()
        return None if row is None else ScriptCheck(digest, ScriptVerdict(row.check_verdict), row.check_text)

    def jobs(
        self, over: bool = True, uid: int | None = None, limit: int = MAX_JOBS, before: int | None = None
    ) -> tuple[JobRow, ...]:
        """Jobs by number, the newest `limit` of them: without those that are `over` if so asked, of one user, with
        numbers below `before`."""
        with storage_errors(self._path), self._engine.begin() as connection:
            query = select(t.job).order_by(t.job.c.id.desc()).limit(min(limit, MAX_JOBS))
            if before is not None:
                query = query.where(t.job.c.id < before)
            if not over:
                query = query.where(t.job.c.phase.not_in(_OVER))
            if uid is not None:
                query = query.where(t.job.c.uid == uid)
            return self._with_reasons(_job_rows(connection, connection.execute(query).all()[::-1]))

    def jobs_page(
        self, over: bool, uid: int | None, limit: int, before: int | None
    ) -> tuple[tuple[JobRow, ...], int | None]:
        """As `jobs`, the newest that make `MAX_JOB_BYTES`; and the `before` of the next page, None at the end."""
        rows: list[JobRow] = []
        left = MAX_JOB_BYTES
        while len(rows) < limit:
            count = min(100, limit - len(rows))
            found = self.jobs(over, uid, count, before)
            for row in found[::-1]:
                left -= len(text_of(row.to_json()))
                if left < 0 and rows:
                    return tuple(rows[::-1]), rows[-1].id
                rows.append(row)
            if not found:
                return tuple(rows[::-1]), None
            before = found[0].id
        return tuple(rows[::-1]), before

    def status(self, at: float, nodes: bool = True, uid: int | None = None) -> StatusRow:
        """The whole picture: pool, nodes, jobs that are not over, last decision. `at` is what the clock says."""
        snapshot, decision = self._snapshot(), self._decision()
        with storage_errors(self._path), self._engine.begin() as connection:
            newest = connection.execute(select(t.pool).order_by(t.pool.c.seq.desc()).limit(1)).first()
            query = select(t.job).where(t.job.c.phase.not_in(_OVER)).order_by(t.job.c.id).limit(MAX_JOBS)
            if uid is not None:
                query = query.where(t.job.c.uid == uid)
            rows = _job_rows(connection, connection.execute(query).all())
            pilots = connection.execute(
                select(t.pilot).where(t.pilot.c.phase.in_(_ACTIVE), t.pilot.c.node != "").order_by(t.pilot.c.id)
            ).all()
        strays = stray_nodes(decision)
        return StatusRow(
            at=at,
            pool=replace(PoolRow() if newest is None else pool_row(newest), stray=len(strays)),
            nodes=_node_rows(snapshot, pilots, strays) if nodes else (),
            jobs=self._with_reasons(rows),
            decision=_decision_row(decision),
            taken_at=None if snapshot is None else snapshot.taken_at,
            version=self._version,
            notices=tuple(self._notices()),
        )

    def status_text(self, at: float, nodes: bool = True) -> bytes:
        """The JSON text of `status`. On a large machine it may be that of up to two seconds ago, as its `at` says."""
        return self._kept.get(nodes, lambda: text_of(self.status(at, nodes).to_json()))

    def kept_status_text(self, nodes: bool = True) -> bytes | None:
        """What `status_text` would give at once, without a look at the tables. Does not block."""
        return self._kept.kept(nodes)

    def _with_reasons(self, rows: tuple[JobRow, ...]) -> tuple[JobRow, ...]:
        """Rows of jobs that wait for nodes, or train nothing, with the reason why, after what the journal says."""
        return tuple(
            replace(row, reason="; ".join(filter(None, (row.reason, self._waiting(row.id)))))
            if row.phase in (JobPhase.QUEUED, JobPhase.RUNNING)
            else row
            for row in rows
        )

    def events(
        self,
        after: int = 0,
        job: int | None = None,
        uid: int | None = None,
        kinds: Sequence[str] = (),
        limit: int = MAX_EVENTS,
    ) -> tuple[tuple[EventRow, ...], int]:
        """Events above number `after`, and the number up to which was looked: the next call's `after`. A page ends
        after `limit` rows or `MAX_EVENT_BYTES`.

        `uid` leaves out other users' jobs and what is of no job but `OPEN_KINDS`, `kinds` all but the named ones."""
        limit = min(limit, MAX_EVENTS)
        query = _events(job, uid).where(t.event.c.seq > after).order_by(t.event.c.seq).limit(limit)
        if kinds:
            query = query.where(t.event.c.kind.in_(kinds))
        with storage_errors(self._path), self._engine.begin() as connection:
            newest = connection.execute(select(func.coalesce(func.max(t.event.c.seq), 0))).scalar_one()
            rows, is_whole = _page(connection, query)
        looked = max(after, newest) if is_whole and len(rows) < limit else rows[-1].seq
        return tuple(_event_row(row) for row in rows), looked

    def of_main_job(self, main_job: str) -> tuple[Event, ...]:
        """The events that name this job of the main queue, a part of it or a task: when pilots were asked to leave
        for it, and which nodes of pilots it then had."""
        if not (main_job.isascii() and main_job[:1].isdigit()):
            return ()
        of, part = func.json_extract(t.event.c.data, "$.main_job"), main_job.replace("_", "\\_")
        named = or_(of == main_job, of.like(f"{part}\\_%", escape="\\"), of.like(f"{part}+%", escape="\\"))
        named = or_(named, of == f"het{main_job}")
        meetings = select(t.event).where(t.event.c.kind == MainJobMet.kind, named).order_by(t.event.c.seq)
        with storage_errors(self._path), self._engine.begin() as connection:
            found = list(connection.execute(meetings.limit(MAX_EVENTS)).all())
            if not found:
                return ()
            # Intents are many: only those about the time at which it met pilots are looked through.
            begin, end = found[0].at - _MEETING_S, found[-1].at + _MEETING_S
            intents = select(t.event).where(
                t.event.c.kind == ActionIntent.kind, t.event.c.at.between(begin, end), named
            )
            found += connection.execute(intents.order_by(t.event.c.seq).limit(MAX_EVENTS)).all()
        return tuple(sorted(map(row_event, found), key=lambda event: event.seq))

    def usage(self, at: float, since: str = "", until: str = "", uid: int | None = None) -> tuple[UsageRow, ...]:
        """What was used by day, user and account, from day `since` to day `until` (UTC, both included)."""
        with storage_errors(self._path), self._engine.begin() as connection:
            return _usage_rows(connection, at, since, until, uid)

    def latest_events(
        self, count: int, job: int | None = None, uid: int | None = None
    ) -> tuple[tuple[EventRow, ...], int]:
        """The newest `count` events, in order, fewer where they are long (`MAX_EVENT_BYTES`); and the next call's
        `after` of `events`."""
        query = _events(job, uid).order_by(t.event.c.seq.desc()).limit(min(count, MAX_EVENTS))
        with storage_errors(self._path), self._engine.begin() as connection:
            newest = connection.execute(select(func.coalesce(func.max(t.event.c.seq), 0))).scalar_one()
            return tuple(_event_row(row) for row in _page(connection, query)[0][::-1]), newest


def _page(connection: Connection, query: Select[Any]) -> tuple[list[Row[Any]], bool]:
    """The first rows of events that make `MAX_EVENT_BYTES`, and whether these are all. No others are in memory."""
    rows: list[Row[Any]] = []
    left = MAX_EVENT_BYTES
    with connection.execution_options(yield_per=50).execute(query) as found:
        for row in found:
            left -= len(row.data) + len(row.reason) + 100
            if left < 0 and rows:
                return rows, False
            rows.append(row)
    return rows, True


def _events(job: int | None, uid: int | None) -> Select[Any]:
    """Events of one job, and those that are shown to a user."""
    query = select(t.event)
    if job is not None:
        query = query.where(t.event.c.job == job)
    if uid is not None:
        own = select(t.job.c.id).where(t.job.c.uid == uid)
        open_to_all = t.event.c.job.is_(None) & t.event.c.kind.in_(OPEN_KINDS)
        query = query.where(open_to_all | t.event.c.job.in_(own))
    return query


def _job_rows(connection: Connection, rows: Sequence[Row[Any]], figures: int = 16) -> tuple[JobRow, ...]:
    """Jobs with what other tables know of them, and so many of their figures (a job by itself has all): one query a
    table, whatever the number of jobs."""
    if not rows:
        return ()
    low, high = min(row.id for row in rows), max(row.id for row in rows)
    wanted = {row.id for row in rows}
    active: dict[int, list[Row[Any]]] = {}
    for p in connection.execute(
        select(t.pilot).where(t.pilot.c.job.between(low, high), t.pilot.c.phase.in_(_ACTIVE)).order_by(t.pilot.c.id)
    ):
        if p.job in wanted:
            active.setdefault(p.job, []).append(p)
    tasks = (
        select(t.pilot.c.job, func.count().label("tasks"))
        .where(t.pilot.c.job.between(low, high), t.pilot.c.phase == PilotPhase.HELD)
        .group_by(t.pilot.c.job)
    )
    held = {row.job: row.tasks for row in connection.execute(tasks)}
    pauses = (
        select(t.resize.c.job, func.count(), func.avg(t.resize.c.pause_s), func.max(t.resize.c.pause_s))
        .where(t.resize.c.job.between(low, high), t.resize.c.nodes_before > 0)
        .group_by(t.resize.c.job)
    )
    resizes = {job: figures for job, *figures in connection.execute(pauses)}
    metrics: dict[int, list[tuple[str, str]]] = {}
    for m in connection.execute(select(t.metric).where(t.metric.c.job.between(low, high)).order_by(t.metric.c.name)):
        known = metrics.setdefault(m.job, [])
        if len(known) < figures:
            known.append((m.name, m.value))
    return tuple(
        _job_row(row, active.get(row.id, ()), held.get(row.id, 0), resizes.get(row.id), metrics.get(row.id, ()))
        for row in rows
    )


_MADE = frozenset({"phase", "reason", "sizes", "members", "rate", "result", "batch", "trusted"})
_OF_JOB = t.stored_fields(JobRow, t.job, _MADE)
_OF_PILOT = t.stored_fields(PilotRow, t.pilot)
_OF_EVENT = t.stored_fields(EventRow, t.event, frozenset({"data"}))
_OF_POOL = t.stored_fields(PoolRow, t.pool)


def _as_stored(row: Row[Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def _job_row(
    row: Row[Any], active: Sequence[Row[Any]], held: int, resizes: Any, metrics: Sequence[tuple[str, str]]
) -> JobRow:
    members, (count, mean_s, longest_s) = json.loads(row.members), resizes or (0, None, None)
    # As people see it: a job is queued until a world of its trains.
    phase = JobPhase.RUNNING.value if row.phase == JobPhase.QUEUED and members else row.phase
    return JobRow(
        **_as_stored(row, _OF_JOB),
        phase=phase,
        reason="; ".join(filter(None, (row.reason, _why_fixed(row)))),
        sizes=tuple(json.loads(row.sizes)),
        nodes=sum(1 for p in active if p.phase in _HOLDS_NODE),
        members=len(members),
        held_tasks=held,
        rate=row.rate if members else 0.0,
        resizes=count,
        mean_pause_s=mean_s,
        max_pause_s=longest_s,
        metrics={name: json.loads(value) for name, value in metrics},
        result=json.loads(row.result),
        pilots=tuple(PilotRow(**_as_stored(each, _OF_PILOT)) for each in active),
        batch=row.batch if members else None,
        trusted=bool(row.trusted),
    )


def _why_fixed(row: Row[Any]) -> str:
    """Why the job keeps its size; "" where it does not, or is over."""
    if row.fixed_nodes is None or row.ended_at is not None:
        return ""
    return ScriptCheck(row.check_digest, ScriptVerdict.DIFFERENT, row.check_text, row.fixed_nodes).why_fixed()


def _event_row(row: Row[Any]) -> EventRow:
    data = json.loads(row.data)
    data.pop("mail_user", None)  # addresses are between a job's owner and the site
    return EventRow(**_as_stored(row, _OF_EVENT), data=data)


def pool_row(row: Row[Any]) -> PoolRow:
    """Node counts as the table has them."""
    return PoolRow(**_as_stored(row, _OF_POOL))


def _decision_row(decision: Decision | None) -> DecisionRow:
    if decision is None:
        return DecisionRow()
    sizes = {str(job): nodes for job, nodes in sorted(decision.sizes.items())}
    return DecisionRow(decision.at, sizes, decision.status.value, decision.objective)


def stray_nodes(decision: Decision | None) -> frozenset[str]:
    """The nodes of jobs in the harvest partition that are no pilots."""
    return frozenset() if decision is None else frozenset(node for each in decision.strays for node in each.nodes)


def _node_rows(
    snapshot: Snapshot | None, pilots: Sequence[Row[Any]], strays: Collection[str] = ()
) -> tuple[NodeRow, ...]:
    """Nodes by name, as Slurm last showed them, with our pilots. Without a look at Slurm, the pilots alone."""
    ours = {p.node: p for p in pilots if p.phase in _HOLDS_NODE}
    if snapshot is None:
        return tuple(NodeRow(name, "pilot", p.job, p.id, p.ends_at) for name, p in sorted(ours.items()))
    rows = []
    for node in snapshot.nodes:
        holders = snapshot.holders.get(node.name, ())
        pilot = ours.get(node.name)
        if pilot is not None:
            rows.append(NodeRow(node.name, "pilot", pilot.job, pilot.id, pilot.ends_at))
        else:
            holder = holders[0].id if holders else ""
            state = "stray" if node.name in strays and holder else node.state.value
            rows.append(NodeRow(node.name, state, holder=holder))
    return tuple(rows)


def _usage_rows(
    connection: Connection, at: float, since: str = "", until: str = "", uid: int | None = None
) -> tuple[UsageRow, ...]:
    """Rows by day, user, account, from day `since` to day `until` (UTC, `2026-11-20`, both included, empty: open).
    Each has its share of the day unless `uid` selects one user. Raises InvalidInput beyond `MAX_USAGE_ROWS`."""
    ended = select(t.usage, t.job.c.user, t.job.c.account).join(t.job, t.job.c.id == t.usage.c.job)
    lasting = (
        select(t.stay.c.job, t.stay.c.started_at, t.job.c.user, t.job.c.account)
        .join(t.job, t.job.c.id == t.stay.c.job)
        .where(t.stay.c.ended_at.is_(None))
    )
    if uid is not None:
        ended, lasting = ended.where(t.job.c.uid == uid), lasting.where(t.job.c.uid == uid)
    sums: dict[tuple[str, str, str], tuple[list[float], set[int]]] = {}

    def add(day: str, row: Row[Any], *figures: float) -> None:
        if since <= day and (not until or day <= until):
            total, jobs = sums.setdefault((day, row.user, row.account), ([0.0, 0.0, 0, 0], set()))
            total[:] = map(operator.add, total, figures)
            jobs.add(row.job)

    for row in connection.execute(ended.where(t.usage.c.day >= since)):
        add(row.day, row, row.node_seconds, row.samples, row.stays, row.preemptions)
    for row in connection.execute(lasting):
        for index, (day, seconds) in enumerate(days(row.started_at, at)):
            add(day, row, seconds, 0.0, int(index == 0), 0)
    if len(sums) > MAX_USAGE_ROWS:
        why = f"{len(sums)} rows of days, users and accounts, of at most {MAX_USAGE_ROWS}: ask for fewer days"
        raise InvalidInput("since, until", why)
    of_day = defaultdict[str, float](float)
    for (day, _, _), (total, _) in sums.items():
        of_day[day] += total[0]
    rows = []
    for key, ((node_s, samples, stays, preemptions), jobs) in sorted(sums.items(), key=lambda each: each[0]):
        share = node_s / of_day[key[0]] if uid is None and of_day[key[0]] > 0 else None
        rows.append(UsageRow(*key, node_s, samples, len(jobs), int(stays), int(preemptions), share=share))
    return tuple(rows)
