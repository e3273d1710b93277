"""A script of independent items: writes down what it works on, and waits a moment in each batch, or as long as there
is a file `long`; the batch of item 7 fails while there is a file `fail`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from malletrain import elastic

home = Path(os.environ["MALLETRAIN_TEST_DIR"])


def note(word: str, number: int) -> None:
    """One write of one line, appended: lines of several processes do not mix."""
    with (home / "diary").open("a") as diary:
        diary.write(f"{word} {number} {os.environ.get('SLURM_ARRAY_TASK_ID', '-')}.{os.getpid()}\n")


with elastic.Items(home / "out", range(1, 301), batch=5, lease_s=3.0, finish_s=float(sys.argv[1])) as items:
    for batch in items:
        note("begin", batch.number)
        if (home / "fail").exists() and 7 in batch.items:
            sys.exit(3)
        limit = time.monotonic() + 0.05
        while time.monotonic() < limit or (home / "long").exists():
            time.sleep(0.01)
        if batch.commit(",".join(str(item * item) for item in batch.items).encode()):
            note("commit", batch.number)
    assert sum(len(found) for found, _ in items.results()) == 300
note("all", 0)
