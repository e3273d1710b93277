"""How long a resize stops training: grow 2 -> 4, shrink 4 -> 2, kill -9 and SIGSTOP one of 4.

    python -m scripts.bench.elastic.resize [--repeats 10] [--width 4166] [--small 2] [--large 4]
        [--only nothing,shrink,grow,kill,stop] [--device cpu]

Real processes over loopback, the real protocol, the environment that a pilot's launcher gives. Each step's excess is
its time beyond the median of its own world. Pause: the greatest excess of a step on the oldest member, from the event
to the second step after the switch. Lost: the sum of them. Latency: from the event to the first commit after the
switch, less the new median; of a growing world the event is that the last newcomer is warm, of a frozen worker that
it was given up.

Nothing: the same reckoning around a moment in which nothing happens, over as many steps: what noise alone comes to.

--device cuda: all workers share one GPU, by NCCL over loopback; `--width 12700` makes 1.5 GB of state.

350 million parameters: `--width 17713 --small 1 --large 2 --only grow,shrink`; some 8 GB for each worker.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

from malletrain.loop.membership.admission import Claim
from malletrain.loop.membership.state import MembershipSettings
from scripts.bench.shared import options_of
from scripts.lab.ports import free_port
from tests.elastic.coordinator import ARRAY, JOB, Coordinator, Pod
from tests.gpu.one_gpu import environment_of
from tests.waiting import wait_until

SCRIPT = str(Path(__file__).with_name("train_large.py"))

#: Steps from a signal to the second step after the switch, most often.
AROUND = 5


class Field:
    """So many seats, of which the oldest stay."""

    def __init__(self, directory: Path, width: int, seats: int, device: str) -> None:
        self.device = device
        self.directory = directory
        self.daemon = Coordinator(free_port())
        self.daemon.start()
        self.pod = Pod(directory)
        self.restarts = dict.fromkeys(range(seats), -1)
        self.options = [str(width), str(directory / "stop"), device]

    def _gather(self, seconds: float) -> None:
        """Newcomers wait so long for each other. (Leavers wait for a tenth of it.)"""
        self.daemon.membership.settings.gather_s = seconds

    def leave(self, *tasks: int) -> None:
        self._gather(MembershipSettings().gather_s)
        for task in tasks:
            self.daemon.leave(task)

    def add(self, *tasks: int) -> None:
        self._gather(5.0)  # a machine with few cores warms them up one after the other
        for task in tasks:
            self.restarts[task] += 1
            self._greet(task)
        for task in tasks:
            shared = environment_of(task) if self.device == "cuda" else {}
            self.pod.spawn(self.daemon.url, task, [SCRIPT, *self.options], self.restarts[task], **shared)

    def _greet(self, task: int) -> None:
        """Say hello for a worker, as its launcher does when the pilot starts: the daemon then expects its worker."""
        members, pilot = self.daemon.membership, f"{ARRAY}_{task}"
        claim = Claim(JOB, pilot, self.restarts[task], f"node{task}", os.getuid())
        self.daemon.gate.change(lambda: members.hello(claim))

    def commits(self, task: int) -> list[tuple[float, int, int]]:
        path = self.directory / f"commits-{task}.{self.restarts[task]}"
        if not path.exists():
            return []
        rows = [line.split() for line in path.read_text().splitlines()]
        return [(float(row[0]), int(row[1]), int(row[2])) for row in rows if len(row) == 3]

    def steps_of_size(self, size: int, count: int, since: float) -> None:
        def made() -> bool:
            if self.pod.processes[0].poll() is not None:
                raise AssertionError(
                    "worker 0, the one that is watched, has ended (it missed a round?): run it again"
                )
            return sum(1 for at, _, n in self.commits(0) if n == size and at > since) >= count

        wait_until(made, 600, f"{count} steps of {size} workers")

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


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


def sham(field: Field, size: int) -> Measured:
    """What `waited` would find in a world that does not change, over as many steps as a change takes."""
    field.steps_of_size(size, AROUND, time.time())
    commits = field.commits(0)
    first = next((i for i in range(len(commits), 0, -1) if commits[i - 1][2] != size), 0)
    took = [late[0] - early[0] for early, late in itertools.pairwise(commits[first:])][2:]
    usual = statistics.median(took[:-AROUND])
    excess = [each - usual for each in took[-AROUND:]]
    return Measured(max(excess), sum(excess), 0.0)


def lose(field: Field, kind: str, large: int) -> Measured:
    """One of `large` workers is killed, or frozen; another takes its place afterwards."""
    victim = field.pod.processes[large - 1]
    at = time.time()
    victim.send_signal(signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
    field.steps_of_size(large - 1, 8, at)
    result = waited(field.commits(0), at, large - 1)
    if kind == "stop":
        lost = max(event.at for event in field.daemon.seen("worker_lost"))
        result = replace(result, latency_s=result.latency_s - (lost - at), detected_s=lost - at)
    if victim.poll() is None:
        victim.kill()
    victim.wait(30)
    field.add(large - 1)
    return result


def round_trip(field: Field, small: int, large: int) -> dict[str, Measured]:
    """From `large` workers to `small`, and back."""
    victims = tuple(range(small, large))
    at = time.time()
    before = field.pod.processes.copy()
    field.leave(*victims)
    field.steps_of_size(small, 8, at)
    shrunk = waited(field.commits(0), at, small)
    for task in victims:
        before[task].wait(30)
    at = time.time()
    field.add(*victims)
    field.steps_of_size(large, 10, at)
    warm = max(event.at for event in field.daemon.seen("worker_warm"))
    return {"shrink": shrunk, "grow": waited(field.commits(0), warm, large)}


def measure(field: Field, kinds: list[str], small: int, large: int) -> Iterator[tuple[str, Measured]]:
    """One round: each of `kinds`, from `large` workers to `large` workers."""
    if "nothing" in kinds:
        yield "nothing", sham(field, large)
    if "grow" in kinds or "shrink" in kinds:
        yield from ((kind, result) for kind, result in round_trip(field, small, large).items() if kind in kinds)
    for kind in ("kill", "stop"):
        if kind in kinds:
            at = time.time()
            yield kind, lose(field, kind, large)
            field.steps_of_size(large, 10, at)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--width", type=int, default=4166)
    parser.add_argument("--small", type=int, default=2)
    parser.add_argument("--large", type=int, default=4)
    parser.add_argument("--only", default="nothing,shrink,grow,kill,stop")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of `finally`: nothing is left running
    small, large = options.small, options.large
    results: dict[str, list[Measured]] = {kind: [] for kind in options.only.split(",")}
    with tempfile.TemporaryDirectory() as directory:
        field = Field(Path(directory), options.width, large, options.device)
        try:
            field.add(*range(small))
            wait_until(lambda: len(field.daemon.world()) == small, 120, f"a world of {small}")
            field.add(*range(small, large))
            field.steps_of_size(large, 10, 0.0)
            while min(map(len, results.values())) < options.repeats:
                for kind, row in measure(field, list(results), small, large):
                    results[kind].append(row)
                    print(f"{len(results[kind])} {kind}: {row}, load {os.getloadavg()[0]:.1f}", flush=True)
        except BaseException:
            field.pod.end()
            print(field.pod.logs()[-6000:])
            raise
        finally:
            field.close()
    for kind, rows in results.items():
        figures = {field.name: spread([getattr(row, field.name) for row in rows]) for field in fields(Measured)}
        print(json.dumps({"kind": kind, "sizes": [small, large], "n": len(rows), **figures}))


if __name__ == "__main__":
    main()
