"""Signs of harm, folded from the journal and from what Slurm shows: for the breaker and the ladder of stages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from statistics import median

from malletrain.domain.decision import LeavePilot, RecyclePilot
from malletrain.domain.event import (
    ActionIntent,
    BreakerSwitched,
    DaemonStarted,
    Event,
    NodeAils,
    PilotEnded,
    PilotHeld,
    PilotStarted,
)
from malletrain.domain.job import part_of
from malletrain.domain.snapshot import NodeState, Snapshot
from malletrain.loop import breaker
from malletrain.loop.rollout import Lately, Stage

#: A node that Slurm itself takes out of service so soon after a pilot ended there ails because of it, perhaps.
AFTER_S = 900.0

#: Words of Slurm's own (slurmctld, slurmd), not of staff, for a node that is taken out of service.
_OWN_WORDS = (
    "kill task failed", "prolog", "epilog", "batch job complete failure", "not responding", "duplicate jobid",
    "unexpectedly rebooted",
)  # fmt: skip

#: What Slurm preempts within so many seconds counts once: a main job of many nodes ends as many pilots, whose grace
#: time (GraceTime, KillWait) they use in part.
ONE_PREEMPTION_S = 60.0

#: Main cycles count as slow above this factor over those without pilots, and above so many seconds.
SLOW_FACTOR = 2.0
SLOW_CYCLE_S = 0.5

_KEPT = 10_000

_NOBODY = ("", 0.0, None)

#: Signs that a job or user may be to blame for.
_ONES_OWN = ("slow_exits", "ailing_nodes")


class HarmSignalTracker:
    """`slow_exit_s`: a pilot that was asked to leave and is still seen after so long was slow."""

    def __init__(self, slow_exit_s: float = 60.0) -> None:
        self.slow_exit_s = slow_exit_s
        self._times: dict[str, deque[tuple[float, int | None]]] = {  #: when, and by a pilot of which job
            name: deque(maxlen=_KEPT) for name in ("preempted", "slow_exits", "ailing_nodes", "slow_cycles")
        }
        self._asked: dict[str, float] = {}  #: pilot -> when it was asked to leave
        #: node -> its last pilot, when that ended (inf: runs), and its job
        self._left: dict[str, tuple[str, float, int | None]] = {}
        self._nodes: dict[str, dict[str, None]] = {}  #: pilot -> the nodes that it is the last of
        self._ailing: set[str] = set()
        self._alone: deque[float] = deque(maxlen=60)
        self._beside: deque[float] = deque(maxlen=12)
        self._lately: Lately | None = None

    def apply(self, event: Event) -> None:
        """Take in one event of the journal."""
        match event.payload:
            case ActionIntent(action=LeavePilot() | RecyclePilot(unstarted="")) if event.pilot:
                self._asked.setdefault(event.pilot, event.at)
            case PilotStarted():
                self._started(event)
            case PilotHeld(preempted=preempted) | PilotEnded(preempted=preempted):
                self._ended(event)
                if preempted and event.pilot is not None:
                    self._count("preempted", event, apart_s=ONE_PREEMPTION_S)
            case NodeAils():
                if event.node:
                    self._ailing.add(event.node)
                self._count("ailing_nodes", event)
            case DaemonStarted(stage=stage) if stage in tuple(Stage):
                if self._lately is None or self._lately.stage is not Stage(stage):
                    self._lately = Lately(Stage(stage), event.at)
            case BreakerSwitched(open=True) if self._lately is not None:
                self._lately = replace(self._lately, opened=self._lately.opened + 1)

    def seen(
        self, unsound: str = "", excused: Callable[[int | None, float], bool] = lambda _job, _at: False
    ) -> breaker.HarmSignals:
        """All signs, for the breaker, but for those `excused` by job and time: what follows from a job's or user's
        own breaker. Preemptions and slow cycles belong to no job."""
        found = {
            name: tuple(at for at, job in times if name not in _ONES_OWN or not excused(job, at))
            for name, times in self._times.items()
        }
        return breaker.HarmSignals(**found, unsound=unsound)

    def lately(self) -> Lately | None:
        """What this stage has shown so far; None before a daemon has started with one."""
        return self._lately

    def look(self, snapshot: Snapshot, pilots: int, now: float) -> list[Event]:
        """What a snapshot says: nodes that Slurm took out of service after pilots, as events; cycle times are kept.

        `pilots`: how many run now.
        """
        self._mind_cycles(snapshot.plan.main_cycle_s, pilots, now)
        events = []
        for name, (pilot, ended, job) in sorted(self._left.items()):
            node = snapshot.node.get(name)
            out = node is not None and node.state in (NodeState.DRAINED, NodeState.DOWN)
            if node is None or not out:
                self._ailing.discard(name)
                if now - ended > AFTER_S:
                    self._forget(name)
                continue
            why = node.reason.lower()
            if name not in self._ailing and now - ended <= AFTER_S and any(words in why for words in _OWN_WORDS):
                reason = f"{node.state.value} ({node.reason}) after pilot {pilot}"
                events.append(Event(now, NodeAils(), job, pilot, name, reason))
        return events

    def _mind_cycles(self, cycle_s: float | None, pilots: int, now: float) -> None:
        if cycle_s is None:
            return
        (self._beside if pilots else self._alone).append(cycle_s)
        if pilots and len(self._beside) == self._beside.maxlen:
            usual = median(self._alone) if len(self._alone) >= 6 else 0.0
            slowest_good = max(SLOW_CYCLE_S, SLOW_FACTOR * usual)
            if median(self._beside) > slowest_good:
                self._times["slow_cycles"].append((now, None))

    def _count(self, name: str, event: Event, apart_s: float = 0.0) -> None:
        """Of a stage each pilot counts; for the breaker, those within `apart_s` once."""
        times = self._times[name]
        if not times or not 0.0 <= event.at - times[-1][0] < apart_s:
            times.append((event.at, event.job))
        if self._lately is not None:
            self._lately = replace(self._lately, **{name: getattr(self._lately, name) + 1})

    def _started(self, event: Event) -> None:
        if event.node and event.pilot and self._left.get(event.node, _NOBODY)[:2] != (event.pilot, float("inf")):
            self._forget(event.node)
            self._left[event.node] = (event.pilot, float("inf"), event.job)
            self._nodes.setdefault(event.pilot, {})[event.node] = None
            # Of a task that holds several nodes its first pilot counts.
            if self._lately is not None and not part_of(event.pilot):
                self._lately = replace(self._lately, started=self._lately.started + 1)

    def _ended(self, event: Event) -> None:
        if event.pilot is None:
            return
        for name in self._nodes.get(event.pilot, ()):
            _, ended, job = self._left[name]
            self._left[name] = (event.pilot, min(ended, event.at), job)
        asked = self._asked.pop(event.pilot, None)
        if asked is not None and event.at - asked > self.slow_exit_s and not part_of(event.pilot):
            self._count("slow_exits", event)

    def _forget(self, node: str) -> None:
        """What pilot was there last is no matter any more."""
        pilot = self._left.pop(node, _NOBODY)[0]
        nodes = self._nodes.get(pilot, {})
        nodes.pop(node, None)
        if not nodes:
            self._nodes.pop(pilot, None)
