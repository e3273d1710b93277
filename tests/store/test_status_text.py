"""The status as text is that of the rows, byte for byte, whatever has changed since the one before."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

from starlette.responses import JSONResponse

from malletrain.domain.event import (
    ArrayAttached,
    Event,
    GenerationPublished,
    GenerationSwitched,
    JobAnnounced,
    JobCancelled,
    JobHeld,
    JobReleased,
    MetricReported,
    Payload,
    PilotEnded,
    PilotStarted,
    PoolCounted,
    SamplesReported,
    TasksAdded,
)
from malletrain.domain.job import MalleableJob
from malletrain.domain.snapshot import Node, NodeState, Snapshot
from malletrain.loop.memory import ManualClock, MemoryCluster
from malletrain.store.journal import SqliteJournal
from malletrain.store.views import StoreViews

START = 1_790_000_000.0


def something(rng: random.Random, job: int, at: float) -> Event:
    pilot, node = f"{10 * job}_{rng.randrange(3)}", f"n{rng.randrange(20):02d}"
    choices: list[Payload] = [
        PilotStarted(at, at + rng.randrange(1000)),
        PilotEnded(),
        GenerationPublished(rng.randrange(1, 9), (pilot,), "plan"),
        GenerationSwitched(rng.randrange(1, 9), 1, rng.random(), 3, grew=True),
        SamplesReported(10, 1, rng.random(), 3.0, 10, rng.random() * 1e6),
        MetricReported("loss", rng.choice([0.5, float("nan"), None]), 3),
        JobHeld("ada"),
        JobReleased("ada"),
        PoolCounted(idle=rng.randrange(5)),
        *([JobCancelled("ada")] if rng.random() < 0.2 else []),
    ]
    return Event(at, rng.choice(choices), job, pilot, node, reason=rng.choice(["", "because", 'wörtlich "so"']))


def test_it_is_that_of_the_rows_whatever_has_changed(tmp_path: Path) -> None:
    rng = random.Random(3)
    clock = ManualClock(START)
    cluster = MemoryCluster([Node(f"n{i:02d}", NodeState.IDLE, ("batch", "harvest")) for i in range(20)], clock)
    seen: list[Snapshot | None] = [None]
    waits: dict[int, str] = {}
    with SqliteJournal(tmp_path / "journal.db") as journal:
        views = StoreViews(
            journal.path,
            lambda: seen[0],
            version="1",
            notices=lambda: ["a notice"],
            waiting=lambda j: waits.get(j, ""),
        )
        at = START
        for step in range(150):
            at += 1.0
            if step % 15 == 0:
                job = 1 + step // 15
                announced = MalleableJob(job, f"job{job}", "ada", 1, "", 1, 3, at)
                journal.append(
                    [
                        Event(at, JobAnnounced(announced), job),
                        Event(at, ArrayAttached(10 * job, 3), job),
                        Event(at, TasksAdded(10 * job, (0, 1, 2)), job),
                    ]
                )
            if step % 7 == 3:
                node = rng.choice(list(cluster.nodes))
                cluster.nodes[node] = replace(cluster.nodes[node], state=rng.choice(list(NodeState)))
                seen[0] = cluster.snapshot()
            waits[1 + rng.randrange(10)] = rng.choice(["", "no node is idle"])
            jobs = 1 + step // 15
            journal.append([something(rng, 1 + rng.randrange(jobs), at) for _ in range(rng.randrange(4))])
            for nodes in (True, False):
                rows = JSONResponse(views.status(at, nodes).to_json()).body
                assert views.status_text(at, nodes) == rows
        assert len(json.loads(views.status_text(at))["nodes"]) == 20
        views.close()
