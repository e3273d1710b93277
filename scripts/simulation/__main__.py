"""Searches for histories that break a law: `python -m scripts.simulation`.

    python -m scripts.simulation                             1,000 histories with all faults, from seed 0
    python -m scripts.simulation --histories 100000 --jobs 2
    python -m scripts.simulation --crash-points 10000        each boundary of quiet histories, one crash each
    python -m scripts.simulation --seed 1449 --histories 1   one history again
    python -m scripts.simulation --faults disks              without the kinds of faults that came later

Prints each seed that breaks a law, and a summary; exit status 1 when any does. docs/reliability.md has the laws.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace

import structlog

from malletrain.domain.job import Elastic
from scripts.simulation.faults import NO_FAULTS, PROFILES
from scripts.simulation.world import ALONE, ONE_BY_ONE, SHORT, WIDE, History, Setting, play

#: Histories that one process plays before it hands its answer back.
_CHUNK = 25


#: The profile that has all faults.
NEWEST = list(PROFILES)[-1]
#: How the jobs of a history change size, by turns.
KINDS = (
    (Elastic.LIVE,),
    (Elastic.RESTART,),
    (Elastic.LIVE,),
    (Elastic.TASKS,),
    (Elastic.LIVE,),
    tuple(Elastic),
)


@dataclass
class Found:
    """What a search came to."""

    histories: int = 0
    crash_points: int = 0
    kills: int = 0
    simulated_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    broken: dict[str, list[str]] = field(default_factory=dict)  #: by what would play it again

    def add(self, again: str, history: History) -> None:
        """One more history; `again`: the options that play it again."""
        broken = {again: history.violations} if history.violations else {}
        kills, seconds = len(history.kills), history.seconds
        self.merge(Found(1, history.crash_points, kills, seconds, history.faults, broken))

    def merge(self, other: Found) -> None:
        """All of another search too."""
        self.histories += other.histories
        self.crash_points += other.crash_points
        self.kills += other.kills
        self.simulated_s += other.simulated_s
        self.faults += other.faults
        self.broken |= other.broken


def random_histories(begin: int, end: int, profile: str = NEWEST) -> Found:
    """Histories of these seeds, with the faults of a profile; the higher a seed modulo 4, the more often something
    fails."""
    found = Found()
    for seed in range(begin, end):
        setting = setting_of(seed, profile)
        again = f"--faults {profile} --seed {seed} --histories 1"
        found.add(again, play(seed, PROFILES[profile].scaled(1 + seed % 4), setting))
    return found


def setting_of(seed: int, profile: str) -> Setting:
    """What a seed plays: with the newest faults every second five seeds have jobs that are relaunched, independent
    items, or all kinds, and some have tasks of several nodes. One seed in five has short jobs one after the other,
    whose arrays can get numbers of earlier ones."""
    if profile == "taken":
        return ALONE
    if profile != NEWEST:
        return Setting() if seed % 5 else ONE_BY_ONE
    kinds = KINDS[seed // 5 % len(KINDS)]
    if seed % 5 == 4:
        return replace(WIDE, elastic=kinds)
    return replace(Setting() if seed % 5 else ONE_BY_ONE, elastic=kinds)


def crash_points(begin: int, end: int) -> Found:
    """Crashes `begin` to `end`: one at each boundary of quiet histories; with every fourth a second soon after."""
    found = Found()
    for number, (seed, boundary) in enumerate(itertools.islice(_boundaries(), end)):
        if number < begin:
            continue
        at = {boundary} if number % 4 else {boundary, boundary + 1 + number % 7}
        again = f"--crash-points {number + 1} --first {number}"
        found.add(again, play(seed, NO_FAULTS, _short(seed), frozenset(at)))
    return found


def _short(seed: int) -> Setting:
    return replace(SHORT, elastic=KINDS[seed % len(KINDS)])


def _boundaries() -> Iterator[tuple[int, int]]:
    for seed in itertools.count():
        for boundary in range(1, _boundaries_of(seed) + 1):
            yield seed, boundary


@functools.cache
def _boundaries_of(seed: int) -> int:
    return play(seed, NO_FAULTS, _short(seed)).crash_points


def _begin_process() -> None:
    """The daemon's log is left out. Modules are left out of garbage collection, and histories, which are garbage as a
    whole, are collected by many: a sixth of the time otherwise."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    gc.freeze()
    gc.set_threshold(200_000, 10, 10)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.simulation", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--histories", type=int, default=1000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the first one's (default: %(default)s)")
    parser.add_argument("--faults", choices=PROFILES, default=NEWEST, help="which kinds (default: %(default)s)")
    parser.add_argument("--crash-points", type=int, default=0, metavar="N", help="crash at N boundaries instead")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first of these (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="the summary as JSON")
    asked = parser.parse_args()
    search = crash_points if asked.crash_points else functools.partial(random_histories, profile=asked.faults)
    first, last = (
        (asked.first, asked.crash_points) if asked.crash_points else (asked.seed, asked.seed + asked.histories)
    )
    began, found = time.monotonic(), Found()
    starts = range(first, last, _CHUNK)
    with ProcessPoolExecutor(asked.jobs, initializer=_begin_process) as pool:
        for part in pool.map(search, starts, (min(last, start + _CHUNK) for start in starts)):
            found.merge(part)
            for again, why in part.broken.items():
                print(f"{again}: {'; '.join(why)}", flush=True)
            if sys.stderr.isatty():
                print(f"\r{found.histories} of {last - first}", end="", file=sys.stderr, flush=True)
    summary = {
        "histories": found.histories,
        "broken": len(found.broken),
        "crash_points_passed": found.crash_points,
        "daemons_killed": found.kills,
        "simulated_hours": round(found.simulated_s / 3600, 1),
        "faults": dict(sorted(found.faults.items())),
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(summary) if asked.json else "\n".join(f"{name}: {value}" for name, value in summary.items()))
    return 1 if found.broken else 0


if __name__ == "__main__":
    sys.exit(main())
