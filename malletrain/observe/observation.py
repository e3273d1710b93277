"""What weeks of `malletraind --observe` came to: a fold of its journal. Pure.

Three things are reported: what the main queue left, what pilots would have held of it, and how often a main job would
have met a pilot. A job that was seen waiting is given its nodes beforehand ("asked"); one that took a node between
two looks ("unseen") would have waited until the next look and for the pilot to go.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles
from typing import cast

from malletrain.domain import event as kinds
from malletrain.domain.decision import LeaveCause, LeavePilot, RecyclePilot, StartPilot
from malletrain.domain.event import Event, JsonValue
from malletrain.domain.snapshot import SlurmState


@dataclass
class Observation:
    """Sums over the time observed; node-seconds where the name says so, seconds otherwise.

    `seconds` is the time that was really observed. `stays` are imagined pilots, by what ended them: the hole's
    planned end, a waiting main job (`asked`), one that no look showed waiting (`unseen`), staff or anything else.
    `leads_s`: from asking a pilot to the moment when the main queue was seen to have the node.
    """

    begin: float = 0.0
    end: float = 0.0
    seconds: float = 0.0
    idle_node_s: float = 0.0
    harvested_node_s: float = 0.0
    holes: int = 0
    hole_s: list[float] = field(default_factory=list)
    stays: int = 0
    ended_by_plan: int = 0
    asked: int = 0
    asked_in_vain: int = 0
    unseen: int = 0
    ended_otherwise: int = 0
    main_started: int = 0
    jobs_asked: int = 0
    jobs_unseen: int = 0
    leads_s: list[float] = field(default_factory=list)
    look_s: float = 0.0
    leave_s: float = 0.0
    blind: int = 0

    @property
    def main_jobs_affected(self) -> int:
        """Main jobs that would have met a pilot, in time or not."""
        return self.jobs_asked + self.jobs_unseen

    @property
    def worst_wait_s(self) -> float:
        """How long a main job that no look showed waiting would have waited for the daemon's part: the next light
        look, and the worker's leave. The site's epilog and Slurm's next cycle come on top."""
        return self.look_s + self.leave_s

    def productive_node_s(self, activate_s: float) -> float:
        """What is left of the harvest when each pilot takes `activate_s` seconds until it trains."""
        return max(0.0, self.harvested_node_s - activate_s * self.stays)

    def to_json(self) -> dict[str, JsonValue]:
        """The sums, with times of holes and leads as quantiles."""
        plain = cast(dict[str, JsonValue], asdict(self))
        for name in ("hole_s", "leads_s"):
            values = cast(list[float], plain.pop(name))
            plain[name] = cast(JsonValue, spread(values))
        return plain | {"main_jobs_met": self.main_jobs_affected, "worst_wait_s": self.worst_wait_s}


def spread(values: list[float]) -> dict[str, float]:
    """Median, 90th percentile and greatest of a list; nothing of an empty one."""
    if not values:
        return {}
    tenths = quantiles(values, n=10, method="inclusive") if len(values) > 1 else values * 9
    return {"median": median(values), "p90": tenths[8], "max": max(values)}


def observation(events: Iterable[Event], since: float = 0.0, until: float = float("inf")) -> Observation:
    """Folds what happened from `since` to `until` (Unix seconds). Time when the daemon was away does not count."""
    fold = _Fold(since, until)
    for event in events:
        if event.at > until:
            break
        fold.take(event)
    return fold.finish()


class _Fold:
    def __init__(self, since: float, until: float) -> None:
        self.sum = Observation()
        self._since, self._until = since, until
        self._awake = False
        self._last: float | None = None
        self._pool = kinds.PoolCounted()
        self._opened: dict[str, float] = {}
        self._pilots: dict[str, str] = {}  # pilot -> its node
        self._asked: dict[str, float] = {}  # node -> since when it is given up for a main job
        self._jobs_asked: set[str] = set()
        self._jobs_unseen: set[str] = set()

    def take(self, event: Event) -> None:
        self._pass_time(event)
        counts = event.at >= self._since
        match event.payload:
            case kinds.DaemonStarted(look_s=look_s, leave_s=leave_s):
                self.sum.look_s, self.sum.leave_s = look_s, leave_s
                self._opened.clear()
                self._asked.clear()
            case kinds.SlurmUnavailable() if counts:
                self.sum.blind += 1
            case kinds.PoolCounted() as pool:
                self._pool = pool
            case kinds.MainJobsStarted(jobs=jobs) if counts:
                self.sum.main_started += jobs
            case kinds.HolesOpened(nodes=nodes, seen_whole=seen_whole):
                if seen_whole:
                    self._opened.update(dict.fromkeys(nodes, event.at))
                self.sum.holes += len(nodes) if counts else 0
            case kinds.HolesEnded() as ended:
                self._holes_ended(event, ended, counts)
            case kinds.ActionOutcome(action=StartPilot(), done=True) if counts:
                self.sum.stays += 1
                self._pilots[event.pilot or ""] = event.node or ""
            case kinds.ActionIntent(action=LeavePilot() | RecyclePilot() as action) if event.pilot in self._pilots:
                self._asked_to_leave(event, action)
            case kinds.PilotEnded(state=state, preempted=preempted, detail=detail) if event.pilot in self._pilots:
                del self._pilots[event.pilot or ""]
                if preempted:
                    self.sum.unseen += 1
                    self._jobs_unseen.add(detail or "")
                elif state is SlurmState.TIMEOUT:
                    self.sum.ended_by_plan += 1
                else:
                    self.sum.ended_otherwise += 1

    def finish(self) -> Observation:
        self.sum.jobs_unseen = len(self._jobs_unseen - self._jobs_asked)
        self.sum.jobs_asked = len(self._jobs_asked)
        return self.sum

    def _pass_time(self, event: Event) -> None:
        """The time since the event before: observed, unless the daemon was away or its Slurm did not answer."""
        begin = max(self._last if self._last is not None else event.at, self._since)
        if not isinstance(event.payload, kinds.DaemonStarted) and self._awake and event.at > begin:
            seconds = event.at - begin
            self.sum.seconds += seconds
            self.sum.harvested_node_s += self._pool.harvested * seconds
            self.sum.idle_node_s += self._pool.without_main * seconds
        if event.at >= self._since:
            self.sum.begin = self.sum.begin or event.at
            self.sum.end = event.at
        self._awake = not isinstance(event.payload, kinds.DaemonStopped)
        self._last = event.at

    def _asked_to_leave(self, event: Event, action: LeavePilot | RecyclePilot) -> None:
        self._pilots.pop(event.pilot or "", None)
        if action.main_job:
            self.sum.asked += 1
            self._asked[event.node or ""] = event.at
            self._jobs_asked.add(action.main_job)
        elif isinstance(action, LeavePilot) and action.cause is LeaveCause.HOLE_CLOSES:
            self.sum.ended_by_plan += 1
        else:
            self.sum.ended_otherwise += 1

    def _holes_ended(self, event: Event, ended: kinds.HolesEnded, counts: bool) -> None:
        for node in ended.nodes:
            opened = self._opened.pop(node, None)
            asked = self._asked.pop(node, None)
            if not (counts and ended.taken):
                continue
            if opened is not None:
                self.sum.hole_s.append(event.at - opened)
            if asked is not None:
                if event.at - asked > 300.0:  # in vain: no main job took it
                    self.sum.asked_in_vain += 1
                else:
                    self.sum.leads_s.append(event.at - asked)
