"""What is kept of a history: every table and view as SQL shows it, and the rows that people's commands get."""

from __future__ import annotations

from collections.abc import Iterator

from tests.corpus import doors, doors_journal
from tests.corpus.cases import Case, canonical, lines
from tests.corpus.decisions import TICKS, History


def cases() -> Iterator[Case]:
    """Of some histories: folded with each append, then anew."""
    for seed in (1, 5, 10):
        history = History(seed)
        for tick in range(TICKS):
            history.tick(tick)
        events = [*history.site.journal(), *ODD]
        with doors.folder() as folder, doors_journal.journal(folder / "journal.db", events) as opened:
            path, name = folder / "journal.db", f"kept-{seed:02}"
            for table, made, rows in doors_journal.tables(path):
                if seed == 1:
                    yield Case(f"schema/{table}", made, whole=True)
                yield Case(
                    f"{name}/{table}",
                    lines(rows),
                    f"{len(rows)} rows",
                    whole=seed == 1 and len(rows) < 12 and "schema" not in table,
                )
            for what, rows in doors_journal.people_read(path, history.site.now + 60.0).items():
                yield Case(f"{name}/read-{what.replace(' ', '-')}", canonical(rows))
            yield Case(f"{name}/journal-read-back", lines(doors_journal.read_back(opened)))
            done = doors.malletrain("score", "journal.db", "--json")
            yield Case(f"{name}/score", doors_journal.untimed(done), whole=seed == 1)
            before = [rows for _, _, rows in doors_journal.tables(path)]
            count = doors_journal.rebuild(opened)
            same = "as before" if [rows for _, _, rows in doors_journal.tables(path)] == before else "differs"
            yield Case(f"{name}/folded-anew", f"{count} events: {same}\n", same)


#: What no history has: figures, ends and faults of jobs that are there, or are not.
ODD = [
    doors.event(doors.START + 5000, "metric", 1, "1001_0", name="loss", value=0.25, samples=640),
    doors.event(doors.START + 5001, "metric", 1, "1001_0", name="loss", value=float("nan"), samples=1280),
    doors.event(doors.START + 5002, "metric", 999, "1_0", name="loss", value=1.0, samples=1),
    doors.event(doors.START + 5003, "breaker", reason="21 preemptions in an hour", open=True),
    doors.event(doors.START + 5004, "node_ails", None, "1001_0", "n01", "drained by Slurm", state="drained"),
    doors.event(doors.START + 5005, "samples", 1, "1001_0", nodes=2, samples=-1.0, seconds=0.0, steps=0),
    doors.event(doors.START + 5006, "daemon_stopped"),
    doors.event(doors.START + 5007, "daemon_started", version="1.0", pid=1, stage="whole"),
    doors.event(doors.START + 5008, "job_failed", 2, reason="the script failed"),
    doors.event(doors.START + 90_000, "job_completed", 1, reason="done", result={"accuracy": 0.9}),
]
