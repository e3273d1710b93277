"""How large a journal grows, and how long a daemon needs to read it: `python -m scripts.bench.journal_year`.

The events of a site are appended day by day, with the times that they would have, and tended as the daemon does;
nothing else is simulated. By default that of 10,000 nodes: 100 pilots at a time in 50 jobs, a look every 10 s that
finds other counts and holes, jobs of two days, pilots of half an hour. Windows of training come every `--window-s`
seconds of each job in the last day; before it one a quarter of an hour, for upkeep leaves one an hour, and of days
whose events upkeep has deleted at the end only what leaves rows. At the end the journal is read as a start reads it.
With `--days 70` it reads as many events: of older days none are left.

    python -m scripts.bench.journal_year --fold 10 4000 40000

prints what folding an event of a pilot's end takes where so many pilots of one node run, and writes no journal.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from malletrain.daemon.first_fold import folded
from malletrain.domain.decision import Outcome, RecyclePilot, StartPilot
from malletrain.domain.event import (
    ActionIntent,
    ActionOutcome,
    ArrayAttached,
    Event,
    GenerationPublished,
    GenerationSwitched,
    HolesEnded,
    HolesOpened,
    JobAnnounced,
    JobCompleted,
    PilotHeld,
    PilotStarted,
    PoolCounted,
    SamplesReported,
    SizesDecided,
    TasksAdded,
    WorkerJoined,
    WorkerLeft,
    WorkerWarm,
)
from malletrain.domain.job import MalleableJob
from malletrain.loop.ledger import Ledger
from malletrain.store.journal import SqliteJournal
from malletrain.store.upkeep import DAY_S, Retention, Upkeep
from scripts.bench.shared import options_of

START = 1_760_000_000.0
STAY_S, JOB_S, LOOK_S = 1800.0, 2 * DAY_S, 10.0
MERGED_WINDOW_S = 870.0
BATCH = 2000


#: Of which rows outlive the events: of jobs, and of their time on nodes.
LEAVE_ROWS = (JobAnnounced, ArrayAttached, TasksAdded, PilotStarted, WorkerLeft, PilotHeld, JobCompleted)


def day_of_site(day: int, jobs: int, pilots_a_job: int, window_s: float) -> Iterator[Event]:
    """The events of one day, in order of their times."""
    begin = START + day * DAY_S
    streams = [
        *(_job(slot, begin, jobs, pilots_a_job, window_s) for slot in range(jobs)),
        _site(begin, jobs),
    ]
    yield from sorted(itertools.chain.from_iterable(streams), key=lambda event: event.at)


def _as_left_by_upkeep(day: int, asked: argparse.Namespace) -> Iterator[Event]:
    """A day's events, less those of which upkeep leaves nothing until the last day."""
    window_s = asked.window_s if day == asked.days - 1 else MERGED_WINDOW_S
    events = day_of_site(day, asked.jobs, asked.pilots, window_s)
    deleted = (asked.days - day) * DAY_S > Retention().jobs_s + JOB_S
    return (event for event in events if not deleted or isinstance(event.payload, LEAVE_ROWS))


def _site(begin: float, jobs: int) -> Iterator[Event]:
    for look in range(int(DAY_S / LOOK_S)):
        at = begin + look * LOOK_S
        yield Event(at, PoolCounted(look % 90, look % 7, 100, 9700, 50, look % 3))
        names = tuple(f"n{(look * 3 + i) % 10_000:05d}" for i in range(3))
        yield Event(at, HolesOpened(names))
        yield Event(at, HolesEnded(names, taken=bool(look % 3)))
        if look % 6 == 0:
            sizes = {slot + 1: 2 for slot in range(jobs)}
            yield Event(at, SizesDecided(sizes, "optimal", 12.5, 100, sizes, 300.0), reason="nodes have come")


def _job(slot: int, begin: float, jobs: int, pilots: int, window_s: float) -> Iterator[Event]:
    for part in range(max(1, int(DAY_S / JOB_S))):
        number = int((begin - START) // JOB_S) * jobs + slot + part + 1
        array = 1000 + 2 * number
        if (begin - START) % JOB_S == 0:
            job = MalleableJob(
                number, f"job{slot}", f"user{slot % 20}", 5000 + slot % 20, "harvest", 1, pilots, begin
            )
            yield Event(begin, JobAnnounced(job), number)
            yield Event(begin, ArrayAttached(array, 40), number)
            yield Event(begin, TasksAdded(array, tuple(range(40))), number)
        world = tuple(f"{array}_{which}" for which in range(pilots))
        generation = int((begin - START) % JOB_S / STAY_S) * pilots
        for turn in range(int(DAY_S / STAY_S)):
            at = begin + turn * STAY_S + slot
            for which in range(pilots):
                generation += 1
                node = f"n{(slot * pilots + which):05d}"
                yield from _stay(number, f"{array}_{which}", node, at + which, generation, world)
            steps = int((STAY_S - 60) / window_s)
            for step in range(steps):
                window = SamplesReported(
                    step * 30,
                    pilots,
                    300.0,
                    window_s,
                    30,
                    float(turn * 1e6 + step * 300),
                    True,
                    {"data": 0.1, "compute": 2.5, "reduce": 0.3},
                    120.0,
                    {f"{array}_0.0": 100.0},
                    10**9,
                )
                yield Event(at + 30 + step * window_s, window, number, f"{array}_0")
        if (begin - START) % JOB_S == JOB_S - DAY_S:
            yield Event(begin + DAY_S - 1, JobCompleted({"loss": 0.1}), number)


def _stay(job: int, pilot: str, node: str, at: float, generation: int, world: tuple[str, ...]) -> Iterator[Event]:
    start = StartPilot(job, pilot, node, 3600.0, "the node is idle")
    recycle = RecyclePilot(job, pilot, node, "main job 12345 wants its node")
    done = Outcome(True, "released")
    yield Event(at, ActionIntent(start), job, pilot, node, start.reason)
    yield Event(at + 0.3, ActionOutcome(start, done.done, done.detail, 0), job, pilot, node, done.detail)
    yield Event(at + 2, PilotStarted(at + 1, at + 3601), job, pilot, node)
    yield Event(at + 5, WorkerJoined(f"{pilot}.0"), job, pilot, node)
    yield Event(at + 12, WorkerWarm(f"{pilot}.0", {"import": 3.1, "load": 4.0}), job, pilot, node)
    yield Event(at + 12, GenerationPublished(generation, world, "plan"), job, reason=f"{pilot} is warm")
    yield Event(at + 12.4, GenerationSwitched(generation, 1, 0.3, 10, grew=True), job, pilot, node)
    yield Event(at + STAY_S - 20, WorkerLeft(f"{pilot}.0", 900, "step-900"), job, pilot, node, recycle.reason)
    yield Event(at + STAY_S - 20, ActionIntent(recycle), job, pilot, node, recycle.reason)
    yield Event(at + STAY_S - 19, ActionOutcome(recycle, done=True, detail=""), job, pilot, node)
    yield Event(at + STAY_S - 10, PilotHeld(), job, pilot, node)


def main() -> None:
    """Print a line for each thirty days, and the sum."""
    parser = options_of(__doc__)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--jobs", type=int, default=50, help="at a time")
    parser.add_argument("--pilots", type=int, default=2, help="of each job")
    parser.add_argument("--window-s", type=float, default=3.0)
    parser.add_argument("--fold", type=int, nargs="+", metavar="NODES", help="time the fold alone, at so many nodes")
    asked = parser.parse_args()
    for nodes in asked.fold or ():
        print(json.dumps({"nodes": nodes, "us an event": round(1e6 * fold_s(nodes), 1), "load": os.getloadavg()[0]}))
    if asked.fold:
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with SqliteJournal(folder / "journal.db") as journal:
            for day in range(asked.days):
                events = _as_left_by_upkeep(day, asked)
                while batch := list(itertools.islice(events, BATCH)):
                    journal.append(batch)
                for _ in range(3):  # the daemon tends it each hour: freed pages are given back bit by bit
                    Upkeep(journal).tend(START + (day + 1) * DAY_S)
                if (day + 1) % 30 == 0 or day + 1 == asked.days:
                    print(json.dumps({"day": day + 1, **figures(folder, journal)}), flush=True)
        with SqliteJournal(folder / "journal.db") as journal:
            print(json.dumps({**starts(journal), "load": os.getloadavg()[0]}))


def fold_s(nodes: int) -> float:
    """Seconds of processor time to fold one event of a pilot's end, the mean of 500 ends, where there are `nodes`
    pilots, in jobs of 64 at most."""
    ledger, ends = Ledger(), []
    for first in range(0, nodes, 64):
        number, pilots = first // 64 + 1, min(64, nodes - first)
        job = MalleableJob(number, f"job{number}", f"user{number % 20}", 5000, "harvest", 1, 64, START)
        ledger.apply(
            [Event(START, JobAnnounced(job), number), Event(START, TasksAdded(number, tuple(range(64))), number)]
        )
        for which in range(pilots):
            pilot = f"{number}_{which}"
            stay = list(_stay(number, pilot, f"n{first + which:05d}", START, 1, (pilot,)))
            ledger.apply(stay[:-4])
            ends.append(stay[-4:])
    some = [event for stay in ends[:: max(1, nodes // 500)] for event in stay]
    begun = time.process_time()
    ledger.apply(some)
    return (time.process_time() - begun) / len(some)


def starts(journal: SqliteJournal) -> dict[str, float]:
    """What a start costs that reads every event, and one as the daemon's, in seconds of processor time."""
    with journal.writing() as connection:
        events = int(connection.exec_driver_sql("SELECT count(*) FROM event").scalar_one())
    begun = time.process_time()
    folded(journal.path, whole=10**12)
    whole_s = time.process_time() - begun
    begun = time.process_time()
    read = folded(journal.path).events
    return {
        "events": events,
        "start from all of them, processor_s": round(whole_s, 1),
        "events that a start reads": read,
        "start, processor_s": round(time.process_time() - begun, 1),
    }


def figures(folder: Path, journal: SqliteJournal) -> dict[str, float]:
    """Sizes in MB (10^6 bytes), and rows."""
    files = sum(path.stat().st_size for path in folder.glob("journal.db*"))
    with journal.writing() as connection:
        rows = int(connection.exec_driver_sql("SELECT count(*) FROM event").scalar_one())
    return {"journal_mb": round(files / 1e6, 1), "events": rows}


if __name__ == "__main__":
    main()
