"""How long a resize stops training: grow 2 -> 4, shrink 4 -> 2, kill -9 and SIGSTOP one of 4.

    python -m scripts.bench.elastic.resize [--repeats 10] [--width 4166] [--small 2] [--large 4]
        [--only grow,shrink,kill,stop]

Real processes over loopback, the real protocol. Each step's excess is its time beyond the median of its own world.
Pause: the greatest excess of a step on the oldest member, from the event to the second step after the switch. Lost:
the sum of them. Latency: from the event to the first commit after the switch, less the new median; of a growing world
the event is that the last newcomer is warm, of a frozen worker that it was given up.

Growing is compared with a model: 1.5 x bytes / bandwidth + 50 ms, where bytes are those of the state that a newcomer
gets (parameters and momentum), and the bandwidth is that of one pair of members before anything else runs.
350 million parameters: `--width 17713 --small 1 --large 2 --only grow,shrink`; some 8 GB for each worker.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch

from malletrain.domain.event import EventKind
from malletrain.elastic.groups import StoreServer, all_closed, make_group
from malletrain.elastic.transfer import PIECE_BYTES
from malletrain.loop.membership import MembershipSettings
from tests.elastic.coordinator import Coordinator, Pod, free_port, wait_until

SCRIPT = str(Path(__file__).with_name("train_large.py"))


class Field:
    """So many seats, of which the oldest stay."""

    def __init__(self, directory: Path, width: int, seats: int) -> None:
        self.directory = directory
        self.daemon = Coordinator(free_port())
        self.daemon.start()
        self.pod = Pod(directory)
        self.restarts = dict.fromkeys(range(seats), -1)
        self.options = ["--width", str(width), "--stop", str(directory / "stop")]

    def _gather(self, seconds: float) -> None:
        """Newcomers wait so long for each other. (Leavers wait for a tenth of it.)"""
        self.daemon.membership._settings = MembershipSettings(gather_s=seconds)

    def leave(self, *tasks: int) -> None:
        self._gather(MembershipSettings().gather_s)
        for task in tasks:
            self.daemon.leave(task)

    def add(self, *tasks: int) -> None:
        self._gather(5.0)  # a machine with few cores warms them up one after the other
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
            600,
            f"{count} steps of {size} workers",
        )

    def close(self) -> None:
        self.pod.end()
        self.daemon.stop()


@dataclass(frozen=True, slots=True)
class Measured:
    """See the module: seconds. `latency_s` of a frozen worker is that after it was given up, at `detected_s`."""

    pause_s: float
    lost_s: float
    latency_s: float
    detected_s: float = 0.0

    def __str__(self) -> str:
        return (
            f"pause {self.pause_s:.3f} s, lost {self.lost_s:.3f} s, latency {self.latency_s:.3f} s, "
            f"detected {self.detected_s:.2f} s"
        )


def waited(commits: list[tuple[float, int, int]], at: float, size: int) -> Measured:
    """The first switch to `size` after `at`."""
    times = [row[0] for row in commits]
    first = next(i for i in range(1, len(commits)) if times[i] > at and commits[i][2] == size)
    took = [0.0, *(late - early for early, late in itertools.pairwise(times))]
    before = commits[first - 1][2]
    new = statistics.median(took[first + 2 :])
    olds = [took[i] for i in range(1, first) if times[i] <= at and commits[i][2] == before]
    old = statistics.median(olds or [new])
    excess = [took[i] - (old if i < first else new) for i in range(1, first + 3) if times[i] > at]
    return Measured(max(excess), sum(excess), times[first] - at - new)


def state_bytes(width: int) -> int:
    """Parameters of `train_large.build` and their momentum, in float32."""
    layers = ((1024, width), (width, width), (width, 1024))
    return 2 * 4 * sum(inputs * outputs + outputs for inputs, outputs in layers)


def link_bandwidth(repeats: int = 5) -> float:
    """Bytes a second from one member to another, by messages as a state takes them; the median of some."""
    store, took = StoreServer("127.0.0.1"), []
    pieces = [torch.zeros(PIECE_BYTES, dtype=torch.uint8) for _ in range(2)]

    def member(rank: int) -> None:
        group = make_group(store.address, 1, rank, 2, "127.0.0.1", timedelta(seconds=60))
        for _ in range(repeats + 1):
            began = time.perf_counter()
            for _ in range(8):
                if rank:
                    group.receive(pieces[1], 0, 1)
                else:
                    group.send(pieces[0], 1, 1)
            took.append(time.perf_counter() - began if rank else 0.0)
        group.bury()

    other = threading.Thread(target=member, args=(0,))
    other.start()
    member(1)
    other.join()
    all_closed(5.0)
    return 8 * PIECE_BYTES / statistics.median([seconds for seconds in took if seconds][1:])


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


def measure(field: Field, kind: str, small: int, large: int) -> Measured:
    """One event, from `large` workers to `large` workers."""
    field.steps_of_size(large, 8, time.time())
    victims = tuple(range(small, large)) if kind in ("shrink", "grow") else (large - 1,)
    at = time.time()
    before = field.pod.processes.copy()
    for task in victims:
        if kind in ("kill", "stop"):
            before[task].send_signal(signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
    if kind in ("shrink", "grow"):
        field.leave(*victims)
    size = large - len(victims)
    field.steps_of_size(size, 8, at)
    result = waited(field.commits(0), at, size)
    if kind == "stop":
        lost = max(event.at for event in field.daemon.seen(EventKind.WORKER_LOST))
        result = replace(result, latency_s=result.latency_s - (lost - at), detected_s=lost - at)
    for task in victims:
        if before[task].poll() is None and kind in ("kill", "stop"):
            before[task].kill()
        before[task].wait(30)
    at = time.time()
    field.add(*victims)
    field.steps_of_size(large, 8, at)
    if kind == "grow":
        warm = max(event.at for event in field.daemon.seen(EventKind.WORKER_WARM))
        result = waited(field.commits(0), warm, large)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--width", type=int, default=4166)
    parser.add_argument("--small", type=int, default=2)
    parser.add_argument("--large", type=int, default=4)
    parser.add_argument("--only", default="grow,shrink,kill,stop")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of `finally`: nothing is left running
    small, large = options.small, options.large
    bandwidth = link_bandwidth()
    model = 1.5 * state_bytes(options.width) / bandwidth + 0.05
    with tempfile.TemporaryDirectory() as directory:
        field = Field(Path(directory), options.width, large)
        try:
            field.add(*range(small))
            wait_until(lambda: len(field.daemon.world()) == small, 120, f"a world of {small}")
            field.add(*range(small, large))
            results: dict[str, list[Measured]] = {kind: [] for kind in options.only.split(",")}
            for number in range(options.repeats):
                for kind, rows in results.items():
                    rows.append(measure(field, kind, small, large))
                    print(f"{number} {kind}: {rows[-1]}, load {os.getloadavg()[0]:.1f}", flush=True)
        except BaseException:
            field.pod.end()
            print(field.pod.logs()[-6000:])
            raise
        finally:
            field.close()
    for kind, rows in results.items():
        print(
            json.dumps(
                {
                    "kind": kind,
                    "sizes": [small, large],
                    "n": len(rows),
                    **(
                        {"bandwidth_GB_s": round(bandwidth / 1e9, 2), "model_s": round(model, 3)}
                        if kind == "grow"
                        else {}
                    ),
                    "pause_s": spread([row.pause_s for row in rows]),
                    "lost_s": spread([row.lost_s for row in rows]),
                    "latency_s": spread([row.latency_s for row in rows]),
                    "detected_s": spread([row.detected_s for row in rows]),
                }
            )
        )


if __name__ == "__main__":
    main()
