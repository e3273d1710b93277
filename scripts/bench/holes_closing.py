"""Is any pilot still on a node when the main job that Slurm planned there could start?

One lab for each epilog. In each group of four nodes one runs a main job with a limit in minutes, and the other three
are planned for a job that waits for it: three holes with a known end, which pilots fill. Watched is until when
pilots, or their epilogs, are on these nodes. Waves: the daemon has to learn how long this site's epilog takes; from
the second on its pilots are there before the main jobs come, and are cut.

    python -m scripts.bench.holes_closing --epilogs 0,15,60 --holes 18
    python -m scripts.bench.holes_closing --epilogs 0 --kill-wait 30 --deaf     payloads that ignore SIGTERM
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from malletrain.store.encoding import payload_data
from malletrain.store.journal import read_events
from scripts.bench.shared import options_of
from scripts.lab import Lab, LabConfig, LabError
from scripts.play.site import SLEEPING, Site, folder_for_labs

#: Holes that one waiting job leaves.
OF_A_GROUP = 3

#: The longest wait (seconds).
LONGEST_S = 600.0

#: Seconds between two looks at pilots.
LOOK_S = 0.4


@dataclass
class Hole:
    """A node that is planned for a main job from `closes` on (Unix seconds); pilots' first and last sign there."""

    node: str
    closes: float
    first: float | None = None
    last: float | None = None

    @property
    def is_late(self) -> bool:
        return self.last is not None and self.last >= self.closes


@dataclass
class Ground:
    """One lab with its daemon."""

    epilog_s: float
    lab: Lab
    site: Site
    holes: list[Hole] = field(default_factory=list)
    starts: dict[int, float] = field(default_factory=dict)  #: planned, by job; squeue tells them now and then

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """A node that a main job holds, and those that the next one waits for."""
        return [self.lab.nodes[at : at + 1 + OF_A_GROUP] for at in range(0, len(self.lab.nodes), 1 + OF_A_GROUP)]


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--epilogs", default="0,15,60", help="seconds, one lab each")
    parser.add_argument("--holes", type=int, default=18, help="holes of each lab in each wave, by threes")
    parser.add_argument("--waves", type=int, default=2)
    parser.add_argument("--minutes", type=int, default=3, help="shortest hole; half of them are a minute longer")
    parser.add_argument("--kill-wait", type=int, default=5, help="KillWait, seconds")
    parser.add_argument("--deaf", action="store_true", help="the payload ignores SIGTERM")
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = stack.enter_context(folder_for_labs())
        grounds = [ground(stack, directory, float(epilog), options) for epilog in options.epilogs.split(",")]
        for number in range(options.waves):
            wave(grounds, number, options)
    for each in grounds:
        print(f"epilog {each.epilog_s:3g} s: {told(each.holes)}")
    every = [hole for each in grounds for hole in each.holes]
    late = sum(hole.is_late for hole in every)
    print(f"{len(every)} holes, {late} with a pilot still there at the planned start")
    return 1 if late else 0


def ground(stack: ExitStack, directory: Path, epilog_s: float, options: argparse.Namespace) -> Ground:
    groups = -(-options.holes // OF_A_GROUP)
    config = LabConfig(
        nodes=groups * (1 + OF_A_GROUP),
        users=True,
        epilog_s=epilog_s,
        settings=(("KillWait", str(options.kill_wait)),),
    )
    lab = stack.enter_context(Lab.up(directory / f"epilog{epilog_s:g}", config))
    site = stack.enter_context(Site(lab, settings={"breaker": ["preemptions_per_hour = 10000"]}))
    say(f"epilog {epilog_s:g} s: {config.nodes} nodes")
    return Ground(epilog_s, lab, site)


def wave(grounds: list[Ground], number: int, options: argparse.Namespace) -> None:
    """Main jobs, and the holes between them, until the last has closed; all labs at once."""
    began = [(each, hold(each, options.minutes)) for each in grounds]
    waiting = []
    for each, jobs in began:
        until(partial(run, each, jobs), grounds, "main jobs that hold a node of each group")
        waiting.append((each, want(each)))
    for each, jobs in waiting:
        until(partial(planned, each, jobs, number), grounds, "plans for the main jobs that wait")
        if number == 0:
            harvest(each, options)
    last = max(hole.closes for each in grounds for hole in each.holes) + 3.0
    until(lambda: time.time() > last, grounds, f"the end of wave {number + 1}")
    for each in grounds:
        say(f"wave {number + 1}, epilog {each.epilog_s:g} s: {told(each.holes[-OF_A_GROUP * len(each.groups) :])}")
        explain(each)
        each.lab.run(["scancel", "-u", "bob"])


def harvest(each: Ground, options: argparse.Namespace) -> None:
    """A malleable job on all that is idle."""
    each.site.start()
    # No loop around a sleep: a shell whose sleep is killed first begins another, and linuxproc does not look again.
    payload = "trap '' TERM\nexec sleep 100000" if options.deaf else SLEEPING
    each.site.harvest("alice", len(each.lab.nodes), payload=payload)


def hold(each: Ground, minutes: int) -> list[int]:
    """Submit the main jobs that hold the first node of each group for some minutes; their numbers."""
    limits = [minutes + at % 2 for at in range(len(each.groups))]
    return [
        each.lab.submit(f"sleep {60 * limit - 1}", "-w", held, "--exclusive", f"--time={limit}", user="bob")
        for limit, (held, *_) in zip(limits, each.groups, strict=True)
    ]


def want(each: Ground) -> list[int]:
    """Submit the main jobs that wait for these, each for all nodes of its group; their numbers."""
    return [
        each.lab.submit(
            "sleep 20", "-w", ",".join(group), f"--nodes={len(group)}", "--exclusive", "--time=1", user="bob"
        )
        for group in each.groups
    ]


def run(each: Ground, jobs: list[int]) -> bool:
    rows = each.lab.run(["squeue", "-h", "-p", "batch", "-t", "R", "-o", "%A"]).stdout.split()
    return set(jobs) <= set(map(int, rows))


def planned(each: Ground, jobs: list[int], number: int) -> bool:
    """Whether Slurm has planned a start for all these jobs; then their holes are known."""
    rows = each.lab.run(
        ["env", "SLURM_TIME_FORMAT=%s", "squeue", "-h", "-p", "batch", "-t", "PD", "-o", "%A %S"]
    ).stdout.split()
    each.starts |= {int(job): float(at) for job, at in zip(rows[::2], rows[1::2], strict=True) if at.isdigit()}
    if not set(jobs) <= set(each.starts):
        return False
    each.holes += [
        Hole(node, each.starts[job]) for job, (_, *free) in zip(jobs, each.groups, strict=True) for node in free
    ]
    say(f"wave {number + 1}, epilog {each.epilog_s:g} s: {OF_A_GROUP * len(jobs)} holes are open")
    return True


def until(condition: Callable[[], bool], grounds: list[Ground], what: str) -> None:
    """Watch pilots until `condition` holds.

    Raises:
        LabError: it does not within `LONGEST_S`.
    """
    end = time.monotonic() + LONGEST_S
    while not condition():
        if time.monotonic() > end:
            raise LabError(f"{what}: not within {LONGEST_S:g} s")
        for each in grounds:
            watch(each)
        time.sleep(LOOK_S)


def watch(each: Ground) -> None:
    """Note which holes have a pilot, or its epilog, in them now."""
    asked = time.time()
    try:
        rows = each.lab.run(["squeue", "-h", "-r", "-p", "harvest", "-t", "R,CG,CF", "-o", "%N"]).stdout.split()
    except LabError as error:  # a slurmctld that is slow for once: the next look tells
        say(f"no look: {error}")
        return
    there = set(rows)
    for hole in each.holes:
        # What is there some time after belongs to the next hole.
        if hole.node in there and asked < hole.closes + 2.0:
            hole.first = hole.first or asked
            hole.last = asked


def explain(each: Ground) -> None:
    """What the daemon's journal has of nodes that were left too late."""
    late = [hole for hole in each.holes[-OF_A_GROUP * len(each.groups) :] if hole.is_late]
    events = list(read_events(each.site.directory / "malletrain.db")) if late else []
    for hole in late:
        print(f"  {hole.node}, planned from {hole.closes:.0f} on, last sign {hole.last or 0.0:.1f}:")
        for event in events:
            if event.node == hole.node and abs(event.at - hole.closes) < 90.0:
                data = payload_data(event.payload)
                print(f"    {event.at - hole.closes:+8.1f} {event.kind} {event.pilot or ''} {event.reason} {data}")


def told(holes: list[Hole]) -> str:
    used = [hole for hole in holes if hole.first is not None and hole.last is not None]
    if not used:
        return f"{len(holes)} holes, none filled"
    spare = sorted(hole.closes - (hole.last or 0.0) for hole in used)
    return (
        f"{len(holes)} holes, {len(used)} filled, {sum(hole.is_late for hole in used)} with a pilot at the planned "
        f"start; last sign of a pilot {spare[0]:.1f} to {spare[-1]:.1f} s before it, {spare[len(spare) // 2]:.1f} s "
        "in the median"
    )


def say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
