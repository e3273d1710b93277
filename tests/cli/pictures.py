"""One small cluster, as rows: what the tests of the command line show."""

from malletrain.wire.rows import DecisionRow, EventRow, JobRow, NodeRow, PilotRow, PoolRow, StatusRow, UsageRow

AT = 1_795_000_000.0

DIGITS = JobRow(
    id=1, name="digits", user="ann", uid=1000, account="ml", phase="running", min_nodes=1, max_nodes=8,
    submitted_at=AT - 100, reason="grows to 2: n004 is idle for 15 min", nodes=2, members=1,
    held_tasks=6, generation=3, rate=1234.5, samples=45678.0,
    total_samples=100000.0, node_seconds=4000.0, resizes=3, mean_pause_s=0.213,
    max_pause_s=0.5, metrics={"accuracy": 0.97},
    pilots=(
        PilotRow("12_1", "running", "n004", AT - 90, AT + 600, "its hole lasts until a main job starts"),
        PilotRow("12_2", "released"),
    ),
)  # fmt: skip

RESNET = JobRow(
    id=2, name="resnet", user="bob", uid=1001, account="", phase="queued", min_nodes=2, max_nodes=4,
    submitted_at=AT - 50, sizes=(2, 4), reason="waits for 2 nodes", held_tasks=6,
)  # fmt: skip

OVER = JobRow(
    id=3, name="old", user="ann", uid=1000, account="ml", phase="completed", min_nodes=1, max_nodes=1,
    submitted_at=AT - 5000, ended_at=AT - 10, samples=2e6, node_seconds=90000.0, result={"accuracy": 0.99},
)  # fmt: skip

NODES = (
    *(NodeRow(f"n{n:03d}", "allocated", holder="77") for n in range(3)),
    NodeRow("n003", "completing"),
    NodeRow("n004", "pilot", job=1, pilot="12_1", until=AT + 600),
    NodeRow("n005", "pilot", job=54, pilot="13_0"),
    NodeRow("n006", "idle"),
    NodeRow("n007", "planned"),
    NodeRow("n008", "maint"),
    NodeRow("n009", "down"),
    NodeRow("n010", "powered_down"),
    NodeRow("n011", "a word of a later release"),
)

STATUS = StatusRow(
    at=AT, pool=PoolRow(AT, idle=1, planned=1, harvested=2, main=4, down=3, powered_down=1), nodes=NODES,
    jobs=(DIGITS, RESNET, OVER),
    decision=DecisionRow(AT, {"1": 2}, "optimal", 3.0), taken_at=AT - 2, version="0.1.0",
)  # fmt: skip

EVENTS = (
    EventRow(4, AT, "job_announced", job=1, reason="", data={"name": "digits", "min_nodes": 1}),
    EventRow(
        5, AT + 1, "switched", 1, "12_1", "n004", "n004 is warm", {"pause_s": 0.2123456789, "members": ["12_1"]}
    ),
    EventRow(6, AT + 2, "daemon_started", data={"version": "0.1.0", "long": "x" * 100}),
)

USAGE = (
    UsageRow("2026-11-19", "ann", "ml", 7200.0, 1.5e6, 1, 4, 1, 1.0),
    UsageRow("2026-11-20", "bob", "", 90.0, 0.0, 1, 1, 0),
)
