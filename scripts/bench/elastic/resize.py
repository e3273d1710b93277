"""How long a resize stops training: grow 2 -> 4, shrink 4 -> 2, kill -9 and SIGSTOP one of 4.

    python -m scripts.bench.elastic.resize [--repeats 10] [--width 4166] [--only grow,shrink,kill,stop]

Real processes over loopback, the real protocol. Pause: the longest time between two commits on the oldest member
around the event, less the median step of the world after it. Latency: from the event to the first commit after the
switch, less that median.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

from malletrain.loop.membership import MembershipSettings
from tests.elastic.coordinator import Coordinator, Pod, free_port, wait_until

SCRIPT = str(Path(__file__).with_name("train_large.py"))


class Field:
    """Four seats, of which the oldest two stay."""

    def __init__(self, directory: Path, width: int) -> None:
        self.directory = directory
        self.daemon = Coordinator(free_port(), settings=MembershipSettings(gather_s=5.0))
        self.daemon.start()
        self.pod = Pod(directory)
        self.restarts = dict.fromkeys(range(4), -1)
        self.options = ["--width", str(width), "--stop", str(directory / "stop")]

    def add(self, *tasks: int) -> None:
        for task in tasks:
            self.restarts[task] += 1
            self.pod.spawn(self.daemon.url, task, [SCRIPT, *self.options], restart=self.restarts[task])

    def commits(self, task: int) -> list[tuple[float, int, int]]:
        path = self.directory / f"commits-{task}.{self.restarts[task]}"
        if not path.exists():
            return []
        rows = [line.split() for line in path.read_text().splitlines()]
        return [(float(row[0]), int(row[1]), int(row[2])) for row in rows if len(row) == 3]

    def steps_of_size(self, size: int, count: int, since: float) -> None:
        wait_until(
            lambda: sum(1 for at, _, n in self.commits(0) if n == size and at > since) >= count,
            180,
            f"{count} steps of {size} workers",
        )

    def close(self) -> None:
        self.pod.end()
        self.daemon.stop()


def pause(commits: list[tuple[float, int, int]], at: float, size: int) -> tuple[float, float]:
    """(pause, latency) of the first switch to `size` after `at`."""
    times = [row[0] for row in commits]
    after = [i for i in range(1, len(commits)) if times[i] > at and commits[i][2] == size]
    normal = statistics.median(times[i] - times[i - 1] for i in after[2:])
    gap = max(times[i] - times[i - 1] for i in range(1, after[0] + 2) if times[i] > at)
    return max(0.0, gap - normal), times[after[0]] - at - normal


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


def measure(field: Field, kind: str) -> tuple[float, float]:
    """One event, from four workers to four workers."""
    begin = time.time()
    field.steps_of_size(4, 8, begin)
    victims = {"shrink": (2, 3), "kill": (2,), "stop": (2,), "grow": (2, 3)}[kind]
    at = time.time()
    before = field.pod.processes.copy()
    if kind == "kill":
        before[2].send_signal(signal.SIGKILL)
    elif kind == "stop":
        before[2].send_signal(signal.SIGSTOP)
    else:
        for task in victims:
            field.daemon.leave(task)
    size = 4 - len(victims)
    field.steps_of_size(size, 8, at)
    result = pause(field.commits(0), at, size)
    for task in victims:
        if before[task].poll() is None and kind in ("kill", "stop"):
            before[task].kill()
        before[task].wait(30)
    at = time.time()
    field.add(*victims)
    field.steps_of_size(4, 8, at)
    if kind == "grow":
        warm = max(e.at for e in field.daemon.events if e.kind == "worker_warm")
        grown, _ = pause(field.commits(0), at, 4)
        first = next(row[0] for row in field.commits(0) if row[0] > at and row[2] == 4)
        return grown, first - warm
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--width", type=int, default=4166)
    parser.add_argument("--only", default="grow,shrink,kill,stop")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        field = Field(Path(directory), options.width)
        try:
            field.add(0, 1)
            wait_until(lambda: len(field.daemon.world()) == 2, 120, "a world of 2")
            field.add(2, 3)
            results: dict[str, list[tuple[float, float]]] = {kind: [] for kind in options.only.split(",")}
            for number in range(options.repeats):
                for kind, rows in results.items():
                    rows.append(measure(field, kind))
                    load = os.getloadavg()[0]
                    print(
                        f"{number} {kind}: pause {rows[-1][0]:.3f} s, latency {rows[-1][1]:.3f} s, load {load:.1f}",
                        flush=True,
                    )
        except BaseException:
            print(field.pod.logs()[-6000:])
            raise
        finally:
            field.close()
    summary = {
        kind: {"pause_s": spread([p for p, _ in rows]), "latency_s": spread([q for _, q in rows])}
        for kind, rows in results.items()
    }
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
