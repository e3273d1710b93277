"""What travels: every message and row, filled in and with its defaults, what is said of each fault; the routes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.corpus import doors_wire
from tests.corpus.cases import Case, canonical

Json = dict[str, Any]

SEAT: Json = {"worker": "7_0.0", "address": "h0:4711"}
PLAN: Json = {
    "generation": 7, "members": [SEAT, {"worker": "7_1.2", "address": "h1:4711"}], "store": "h0:4711",
    "reason": "joining: 7_1.2", "urgent": True, "batch": 256, "void_before": 5,
}  # fmt: skip
PILOT: Json = {
    "id": "7_0", "phase": "running", "node": "n1", "started_at": 1e6, "ends_at": 1.0036e6, "reason": "hole",
}  # fmt: skip
SIZE: Json = {"nodes": 4, "rate": 350.5, "low": 300.0, "high": 400.0, "windows": 3}
POOL: Json = {"at": 1e6, "idle": 3, "planned": 1, "harvested": 4, "main": 90, "down": 2}
NODE: Json = {"name": "n1", "state": "pilot", "job": 3, "pilot": "7_0", "until": 1.0036e6, "holder": "55"}
DECISION: Json = {"at": 1e6, "sizes": {"3": 4, "5": 0}, "status": "optimal", "objective": 12.25}
JOB: Json = {
    "id": 3, "name": "größe", "user": "ann", "uid": 1001, "account": "ml", "phase": "running", "min_nodes": 1,
    "max_nodes": 8, "submitted_at": 1e6, "reason": "grew", "sizes": [1, 2, 4, 8], "weight": 2.0,
    "elastic": "restart", "nodes": 4, "members": 3, "held_tasks": 9, "generation": 12, "rate": 512.5,
    "samples": 1e5, "total_samples": 1e6, "node_seconds": 3600.0, "resizes": 5, "mean_pause_s": 0.25,
    "max_pause_s": 1.5, "preemptions": 1, "lost_workers": 2, "ended_at": 1.1e6, "metrics": {"loss": 0.5, "bad": None},
    "result": {"accuracy": 0.9, "notes": ["a", 1, True]}, "pilots": [PILOT], "batch_min": 32, "batch_max": 512,
    "batch": 64, "noise_scale": 1000.0,
}  # fmt: skip

#: Each kind: its fields filled in, and those of them that must be there.
KINDS: dict[str, tuple[Json, tuple[str, ...]]] = {
    "seat": (SEAT, ("worker", "address")),
    "plan": (PLAN, ("generation",)),
    "directive": (
        {"seq": 3, "plan": PLAN, "check_in": 4, "leave": "yield", "end": "the job is over", "top_up": 8}, ("seq",),
    ),
    "welcome": (
        {"worker": "7_0.0", "token": "secret", "pilot": "7_0", "heartbeat_s": 20.0, "mode": "restart"},
        ("worker", "token", "pilot", "heartbeat_s"),
    ),
    "standing": (
        {"generation": 7, "members": [SEAT], "step": 90, "address": "h0:4711", "seen": 8},
        ("generation", "members", "step", "address"),
    ),
    "hello": (
        {
            "credential": "MUNGE:x:", "job": 3, "slurm_job_id": 1234, "array_id": 7, "task": 0, "restart": 2,
            "node": "n1", "pid": 99, "part": 1,
            "standing": {"generation": 7, "members": [SEAT], "step": 90, "address": "h0:4711"},
        },
        ("credential", "job", "slurm_job_id", "array_id", "task", "restart", "node", "pid"),
    ),
    "report warm": ({"address": "h0:4711", "stages": {"import": 2.5, "build": 1}}, ("address",)),
    "report checkedin": (
        {"answers": 4, "generation": 7, "step": 90, "whole": True, "stuck_s": 1.5},
        ("answers", "generation", "step", "whole"),
    ),
    "report fault": (
        {"generation": 7, "step": 90, "how": "closed", "detail": "peer 2"}, ("generation", "step", "how"),
    ),
    "report switched": (
        {"generation": 8, "step": 91, "nodes": 4, "pause_s": 0.25, "grew": True, "state_bytes": 10**9},
        ("generation", "step", "nodes", "pause_s", "grew"),
    ),
    "report leaving": ({"why": "SIGTERM"}, ("why",)),
    "report left": ({"generation": 9, "step": 95, "saved": "/scratch/3"}, ("generation", "step")),
    "report samples": (
        {
            "step": 95, "nodes": 4, "samples": 2560, "seconds": 10.5, "steps": 20, "total": 90000, "steady": False,
            "parts": {"data": 0.1, "sync": 2}, "noise_scale": 512.5, "rates": {"7_0.0": 64.0, "7_1.2": 32},
            "memory_bytes": 2**33,
        },
        ("step", "nodes", "samples", "seconds", "steps", "total"),
    ),
    "report metric": ({"name": "loss", "value": 0.25, "samples": 90000}, ("name", "value", "samples")),
    "report finished": ({"result": {"accuracy": 0.9, "notes": ["a", {"b": None}], "bad": 1e999}}, ()),
    "report failed": ({"step": 95, "message": "ValueError: größe"}, ("step", "message")),
    "report exited": ({"status": -9}, ("status",)),
    "report toppedup": ({"array_id": 8, "tasks": 12}, ("array_id", "tasks")),
    "row pilot": (PILOT, ("id", "phase")),
    "row size": (SIZE, ("nodes", "rate", "low", "high")),
    "row profile": (
        {
            "job": 3, "profile": "active", "sizes": [SIZE], "family": "log", "noise": 0.02, "probe_nodes": 2,
            "ignored": {"the rate is absurd": 1}, "next": "4 nodes", "costs": {"grow": 0.3},
            "node_class": "gpu:a100:4",
        },
        ("job", "profile"),
    ),
    "row job": (
        JOB, ("id", "name", "user", "uid", "account", "phase", "min_nodes", "max_nodes", "submitted_at"),
    ),
    "row node": (NODE, ("name", "state")),
    "row pool": (POOL, ()),
    "row event": (
        {
            "seq": 9, "at": 1e6, "kind": "samples", "job": 3, "pilot": "7_0", "node": "n1", "reason": "r",
            "data": {"nodes": 4, "rates": {"7_0.0": 64.0}},
        },
        ("seq", "at", "kind"),
    ),
    "row decision": (DECISION, ()),
    "row status": (
        {
            "at": 1e6, "pool": POOL, "nodes": [NODE], "jobs": [JOB], "decision": DECISION, "taken_at": 999999.5,
            "version": "1.2", "notices": ["nothing starts"],
        },
        ("at", "pool"),
    ),
    "row usage": (
        {
            "day": "2026-11-20", "user": "ann", "account": "ml", "node_seconds": 3600.5, "samples": 1e5, "jobs": 2,
            "stays": 9, "preemptions": 1,
        },
        ("day", "user", "account", "node_seconds"),
    ),
}  # fmt: skip

#: Put in the place of each field.
ODD: tuple[object, ...] = (
    None, True, 1, -1, 1.5, "text", "", "x" * 5000, "a\0b", [], {}, [1], {"a": "b"}, 2**70, float("nan"), 1e301,
    {"a": [[[[1]]]]}, [{"worker": 1, "address": "h"}],
)  # fmt: skip


def cases() -> Iterator[Case]:
    """A case for each kind: whole, least, and with every fault of one field; then the routes."""
    for name, (filled, needed) in KINDS.items():
        kind, _, word = name.partition(" ")
        typed = {"type": word} if kind == "report" else {}
        kind = kind if typed else name
        whole = doors_wire.passed_on(kind, typed | filled)
        least = doors_wire.passed_on(kind, typed | {key: filled[key] for key in needed})
        yield Case(f"{name.replace(' ', '/')}", f"{whole}\n{least}\n", least[:200], whole=True)
        told = []
        for at, body in _faulty(filled):
            told.append(f"{at}: {doors_wire.passed_on(kind, typed | body if isinstance(body, dict) else body)}\n")
        refused = sum(": refused: " in line for line in told)
        yield Case(f"{name.replace(' ', '/')}-faults", "".join(told), f"{refused} of {len(told)} refused")
    none: tuple[object, ...] = (None, [], {}, {"type": 3})
    told = [f"{json.dumps(raw)}: {doors_wire.passed_on('report', raw)}\n" for raw in none]
    yield Case("report/faults", "".join(told), whole=True)
    for route, operation in doors_wire.routes().items():
        name = route.replace(" /", "-").replace("/", ".").replace("{", "").replace("}", "")
        answers = ",".join(operation["responses"])
        yield Case(f"route/{name}", canonical(operation), f"{route} -> {answers}")


def _faulty(filled: Json) -> Iterator[tuple[str, object]]:
    for key in filled:
        yield f"without {key}", {k: v for k, v in filled.items() if k != key}
        for odd in ODD:
            yield f"{key} {json.dumps(odd)[:40]}", filled | {key: odd}
    yield "unknown", filled | {"zork": 1}
    for odd in (None, 3, "text", []):
        yield f"all {json.dumps(odd)}", odd
