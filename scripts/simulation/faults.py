"""What may go wrong, and how often: rates of random faults, and crashes at chosen points."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, fields, replace


class DaemonKilled(BaseException):
    """The simulated daemon has died here. Not an `Exception`: nothing that the daemon does may catch it."""


@dataclass(frozen=True, slots=True)
class FaultRates:
    """Faults a simulated second, and chances where the name says so.

    Attributes:
        daemon_kill: chance at each crash point: before and after each write to the journal and each call of Slurm.
        daemon_away_s: longest time until the next daemon is started.
        lost_answer: chance that Slurm does what it was asked, and its answer is lost.
        slurm_silent: slurmctld stops answering, for up to 20 s.
        node_down: a node fails with all on it, for up to 60 s.
        worker_kill, worker_term, worker_freeze: of one running process; a frozen one goes on after up to 200 s.
        cut: one worker cannot reach the daemon, for up to 150 s.
        partition: nodes that cannot reach some others, for up to 150 s, though all may reach the daemon.
        delay: chance, at each step of the simulation, that a worker's reports stay on their way.
        doubled: chance that a report arrives twice.
        main_job: a main job is submitted.
        clock_step: the wall clock is set, by up to 90 s either way.
        exile: two or three nodes that reach neither the daemon nor the others, for up to 150 s.
        cancel: an owner cancels a job.
        reused_id: chance that a submitted array gets the number of an earlier one, none of whose tasks is left.
        lost_state: slurmctld comes back, after up to 20 s, from a state in which about half of the arrays are not,
            and tasks that were cancelled lately are.
        journal_busy: the journal cannot be written, for up to 40 s.
        echo: chance that a report arrives once more, after later ones: up to 60 s late, also after its worker's end.
        late_answer: chance that the answer to a poll is on its way for up to 20 s.
        daemon_stall: the daemon stands still, as it does while its disk does, for up to 45 s.
        taken: all nodes of a job are taken: by the daemon's word, by SIGTERM with SIGKILL 30 s later, or by both.
    """

    daemon_kill: float = 0.0
    daemon_away_s: float = 20.0
    lost_answer: float = 0.0
    slurm_silent: float = 0.0
    node_down: float = 0.0
    worker_kill: float = 0.0
    worker_term: float = 0.0
    worker_freeze: float = 0.0
    cut: float = 0.0
    delay: float = 0.0
    doubled: float = 0.0
    main_job: float = 0.0
    clock_step: float = 0.0
    cancel: float = 0.0
    partition: float = 0.0
    exile: float = 0.0
    reused_id: float = 0.0
    lost_state: float = 0.0
    journal_busy: float = 0.0
    daemon_stall: float = 0.0
    echo: float = 0.0
    late_answer: float = 0.0
    taken: float = 0.0

    def scaled(self, factor: float) -> FaultRates:
        """All faults but the main queue's `factor` times as often."""
        more = {
            each.name: min(_MOST.get(each.name, math.inf), factor * getattr(self, each.name))
            for each in fields(self)
            if each.name not in _AS_THEY_ARE
        }
        return replace(self, **more)


#: What is not scaled, and the largest chances.
_AS_THEY_ARE = ("daemon_away_s", "main_job", "reused_id", "taken")
_MOST = {"lost_answer": 0.5, "delay": 0.9, "doubled": 0.9, "echo": 0.5, "late_answer": 0.5}

#: What one machine does to itself, so often that two faults regularly meet.
FAULTS_OF_ONE = FaultRates(
    daemon_kill=0.01,
    daemon_away_s=30.0,
    lost_answer=0.02,
    slurm_silent=0.01,
    node_down=0.005,
    worker_kill=0.02,
    worker_term=0.01,
    worker_freeze=0.01,
    cut=0.01,
    delay=0.2,
    doubled=0.05,
    main_job=0.04,
    clock_step=0.003,
    cancel=0.001,
)
#: Everything at once.
ALL_FAULTS = replace(FAULTS_OF_ONE, partition=0.01, exile=0.003, reused_id=0.3)
#: And what the machines of the daemon and of slurmctld lose or do late.
WITH_DISKS = replace(ALL_FAULTS, lost_state=0.003, journal_busy=0.01, daemon_stall=0.005)
#: And a network that delivers late: reports after later ones, directives that no longer hold.
WITH_LATE_MESSAGES = replace(WITH_DISKS, echo=0.02, late_answer=0.01)
#: All nodes of a job are taken, again and again, at any moment of what else may happen to it.
ALL_TAKEN = FaultRates(
    taken=0.03,
    worker_freeze=0.01,
    cut=0.01,
    delay=0.2,
    doubled=0.05,
    main_job=0.003,
    daemon_kill=0.002,
    daemon_stall=0.003,
    partition=0.01,
    late_answer=0.01,
)
#: By the name that `--faults` takes; after `taken` the later ones have all of the earlier ones' faults.
PROFILES = {
    "taken": ALL_TAKEN,
    "machine": FAULTS_OF_ONE,
    "network": ALL_FAULTS,
    "disks": WITH_DISKS,
    "late": WITH_LATE_MESSAGES,
}
#: A busy main queue, and nothing that breaks.
NO_FAULTS = FaultRates(main_job=0.04)


class CrashPoints:
    """Every boundary of the daemon where a crash tells something new: before and after each write and each order.

    Args:
        at: the daemon dies when the boundaries with these numbers are reached, counted from 1 over all daemons.
        chance: draws a further crash; called at every boundary.
    """

    def __init__(self, at: frozenset[int] = frozenset(), chance: Callable[[], bool] = lambda: False) -> None:
        self._at, self._chance = at, chance
        self.reached = 0
        self.killed: list[str] = []  #: at which boundaries

    def pass_by(self, name: str) -> None:
        """One boundary.

        Raises:
            DaemonKilled: this is the end of the daemon.
        """
        self.reached += 1
        if self.reached in self._at or self._chance():
            self.killed.append(f"{self.reached}: {name}")
            raise DaemonKilled(name)


def drawn(rng: random.Random, rate: float, seconds: float) -> bool:
    """Whether a fault of this rate (per second) happens within `seconds`."""
    return rate > 0.0 and rng.random() < rate * seconds
