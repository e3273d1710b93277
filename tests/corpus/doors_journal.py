"""The doors to what is kept: the journal in SQLite, its tables and views; replay by the daemon's own loop."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC
from pathlib import Path
from typing import Any

from malletrain.domain.event import Event
from malletrain.domain.job import ResizeCosts
from malletrain.replay.cluster_trace import Window, cluster_trace
from malletrain.replay.loop_engine import REPLAY_RULES, replay_through_loop
from malletrain.replay.scoring.figures import Score
from malletrain.replay.scoring.journal_score import score_journal
from malletrain.replay.traces import read_trace
from malletrain.replay.workload import mix
from malletrain.sizing import registry
from malletrain.store.journal import SqliteJournal
from malletrain.store.views import StoreViews
from tests.corpus import doors
from tests.corpus.cases import canonical
from tests.recomputed import recomputed
from tests.store.folded_anew import fold_anew

Json = dict[str, Any]


@contextmanager
def journal(path: Path, events: Iterable[Event]) -> Iterator[SqliteJournal]:
    """A journal of these events, written in batches."""
    listed = list(events)
    with SqliteJournal(path) as opened:
        for begin in range(0, len(listed), 100):
            opened.append(listed[begin : begin + 100])
        yield opened


def rebuild(opened: SqliteJournal) -> int:
    """Fold the tables anew; how many events that took."""
    return fold_anew(opened)


def untimed(done: doors.Done) -> str:
    """The figures that a command printed as JSON, without how long it took."""
    if done.status:
        return done.text
    figures = {key: value for key, value in done.json.items() if key not in ("solve_s", "wall_s")}
    return canonical(figures) + done.err


def read_back(opened: SqliteJournal) -> list[Json]:
    """The journal's events."""
    return [doors.event_row(it) for it in opened.read()]


def tables(path: Path) -> Iterator[tuple[str, str, list[list[Any]]]]:
    """Each table and view by name: the statement that makes it, and its rows as SQL shows them, but for when the
    schema was made."""
    with closing(sqlite3.connect(path)) as connection:
        made = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
            " ORDER BY name"
        ).fetchall()
        for name, sql in made:
            rows = [list(row) for row in connection.execute(f"SELECT * FROM {name}")]
            if name == "schema_version":
                rows = [row[:2] for row in rows]
            yield name, sql, sorted(rows, key=str)


def people_read(path: Path, at: float) -> Mapping[str, Any]:
    """The rows that people's commands get."""
    views = StoreViews(path, version="corpus")
    try:
        events, last = views.events(after=10, limit=50)
        return {
            "status": views.status(at).to_json(),
            "jobs": [row.to_json() for row in views.jobs()],
            "jobs of ann that are not over": [row.to_json() for row in views.jobs(over=False, uid=1001, limit=3)],
            "events": [[row.to_json() for row in events], last],
            "decisions": [row.to_json() for row in views.events(kinds=["decided", "generation"], limit=20)[0]],
            "latest of job 1": [row.to_json() for row in views.latest_events(10, job=1)[0]],
            "usage": [row.to_json() for row in views.usage(at)],
            "next job": views.next_job_id(),
        }
    finally:
        views.close()


def loop_replayed(trace: Path, jobs: str, costs: tuple[float, float, float], policy: str) -> list[Event]:
    """The journal of the daemon's own loop over a trace; `costs`: to activate, to grow, to shrink."""
    machine = cluster_trace(read_trace(trace, UTC, frozenset()), Window())
    wanted = mix(jobs, ResizeCosts(*costs), 1)
    return list(replay_through_loop(machine, wanted, registry.policy(policy), REPLAY_RULES))


def score(events: Iterable[Event]) -> Json:
    """The figures of a journal."""
    return _score_row(score_journal(events))


def decided_anew(events: Iterable[Event], policy: str) -> list[Json]:
    """Each decision of a journal, and what comes out now."""
    return [
        {"seq": it.seq, "decided": dict(it.decided), "now": dict(it.recomputed)}
        for it in recomputed(events, registry.policy(policy), REPLAY_RULES)
    ]


def _score_row(it: Score) -> Json:
    return {
        "idle": it.idle_node_seconds,
        "occupied": it.occupied_node_seconds,
        "productive": it.productive_node_seconds,
        "speedup": it.speedup_node_seconds,
        "ideal": it.ideal_speedup_node_seconds,
        "share": it.share_of_ideal,
        "samples": it.samples,
        "completed": it.jobs_completed,
        "mean_jct": it.mean_jct_s,
        "rescales": it.rescales,
        "activations": it.activations,
        "preemptions": it.preemptions,
        "activation": it.activation_node_seconds,
        "stall": it.stall_node_seconds,
        "jain": it.jain,
        "waits": [it.jobs_started, it.mean_wait_s, it.median_wait_s, it.p95_wait_s],
        "deadlines": [it.deadlines, it.deadlines_met],
    }
