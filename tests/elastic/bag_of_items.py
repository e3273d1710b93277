"""A script of independent items: writes down what it works on, and waits a moment in each batch, or the seconds in a
file `pace`, or as long as there is a file `long`, or one for its task alone (`long-1`); the batch of item 7 fails
while there is a file `fail`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from malletrain import elastic

home = Path(os.environ["MALLETRAIN_TEST_DIR"])
task = os.environ.get("SLURM_ARRAY_TASK_ID", "-")
pace = home / "pace"


def note(word: str, number: int) -> None:
    """One write of one line, appended: lines of several processes do not mix."""
    with (home / "diary").open("a") as diary:
        diary.write(f"{word} {number} {task}.{os.getpid()}\n")


with elastic.Items(home / "out", range(1, 301), batch=5, lease_s=8.0, finish_s=float(sys.argv[1])) as items:
    for batch in items:
        note("begin", batch.number)
        if (home / "fail").exists() and 7 in batch.items:
            sys.exit(3)
        limit = time.monotonic() + (float(pace.read_text()) if pace.exists() else 0.05)
        while time.monotonic() < limit or any((home / name).exists() for name in ("long", f"long-{task}")):
            time.sleep(0.01)
        if batch.commit(",".join(str(item * item) for item in batch.items).encode()):
            note("commit", batch.number)
    assert sum(len(found) for found, _ in items.results()) == 300
note("all", 0)
