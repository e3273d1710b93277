"""What a start and a change of size cost, learnt from the journal: of each job, of its application, of the site.

- *start*: what Slurm takes from a pilot's release until it runs; the site's.
- *activation*: from there until the worker is warm.
- *stalls* of the whole world: at growing, at shrinking, at a loss.

What the job has shown counts, else what its application has, else what its user's other jobs have, else what the
site's users have, else what was assumed. What users' workers tell or do is theirs: no stall is longer than the time
in which it was, and of the site each user has one vote (`_by_vote`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from statistics import median, median_high, median_low

from malletrain.domain import event as kinds
from malletrain.domain.decision import RecyclePilot
from malletrain.domain.event import Event
from malletrain.domain.job import ResizeCosts

#: So many of the latest stalls, starts and activations are remembered, of each job, each application, and the site.
KEPT = 64
#: Jobs and applications that are remembered.
_SCOPES_KEPT = 4000

#: Events that `Costs.apply` takes in.
TELLING_COSTS = (kinds.WorkerWarm, kinds.GenerationPublished, kinds.GenerationSwitched)

#: Assumed of jobs that are relaunched at each size, until it was measured: saving, ending, importing, loading. A bare
#: script took 4 to 9 s on a machine of its own (docs/explanation/elastic.md), and parallel file systems and GPUs take
#: more. BFTrainer planned with 18 and 12 s (Liu et al., 2021).
RELAUNCH = ResizeCosts(grow_s=20.0, shrink_s=20.0, loss_s=20.0)

#: Of jobs of independent items, which no change of size touches: a start costs until the first item, a node that is
#: taken the batch that it works on, which counts as nothing here.
INDEPENDENT_ITEMS = ResizeCosts(grow_s=0.0, shrink_s=0.0, loss_s=0.0)

#: Users who have a vote on what the site's changes cost: those that were heard last.
_USERS_KEPT = 500
#: Below so many votes none counts for more than so many times what is assumed, or so many seconds.
_FEW_VOTES, _FEW_VOTES_FACTOR, _FEW_VOTES_S = 3, 10.0, 30.0
#: A world that broke stood still for so long (seconds) before its repair was published, at most.
NOTICED_S = 120.0

Application = tuple[str, str]
Scope = int | Application | str  #: a job, an application, a user


@dataclass
class Shown:
    """What one job, an application or the site has shown."""

    activations: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    #: By job, generation, and whether it grew: "grow", "shrink" or "loss", and for how many seconds the world stood.
    stalls: dict[tuple[int, int, bool], tuple[str, float]] = field(default_factory=dict)
    starts: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))  #: of a user alone

    def usual(self, kind: str) -> float | None:
        """The median of "start", "activate" (of two the upper), or of one kind of stall; None before the first."""
        if kind in ("start", "activate"):
            kept = self.starts if kind == "start" else self.activations
            return median_high(kept) if kept else None
        stalls = [seconds for what, seconds in self.stalls.values() if what == kind]
        return median_high(stalls) if stalls else None


class Costs:
    """Folds starts, activations and stalls. `assumed` is what holds until something was measured."""

    def __init__(self, assumed: ResizeCosts | None = None) -> None:
        self._assumed = assumed or ResizeCosts()
        self._shown: dict[Scope, Shown] = {}
        #: The worlds that each job was given: whether it mends a broken one, and since when it is (Unix seconds).
        self._plans: dict[int, dict[int, tuple[bool, float]]] = {}

    def started(self, seconds: float, user: str = "") -> None:
        """Slurm took so long to start a pilot of a user's."""
        self._of_user(user).starts.append(max(0.0, seconds))

    def apply(self, event: Event, application: Application, started_at: float | None = None) -> None:
        """Take in one event of a job of `application`; `started_at`: since when its pilot runs (Unix seconds)."""
        if event.job is None:
            return
        match event.payload:
            case kinds.WorkerWarm() if started_at is not None and event.at > started_at:
                for shown in self._scopes(event.job, application):
                    shown.activations.append(event.at - started_at)
            case kinds.GenerationPublished(generation=number, switched_by=cause):
                plans = self._plans.setdefault(event.job, {})
                plans[number] = cause == "fault", event.at
                if len(plans) > 16:  # in which nobody has trained yet
                    del plans[min(plans)]
            case kinds.GenerationSwitched() as switched:
                self._switched(event.job, switched, application, event.at)

    def _switched(self, job: int, switched: kinds.GenerationSwitched, application: Application, at: float) -> None:
        number, grew, seconds = switched.generation, switched.grew, switched.pause_s
        broken, since = self._plans.get(job, {}).get(number, (False, at))
        if not (math.isfinite(seconds) and seconds > 0.0):
            return  # nothing stands still in a world that begins
        seconds = min(seconds, max(0.0, at - since) + NOTICED_S)
        for shown in self._scopes(job, application):
            # A script in restart mode tells its pause twice: when it is started, and, if it says so, when it trains.
            key = job, number, grew
            shown.stalls.pop(key, None)
            shown.stalls[key] = "grow" if grew else "loss" if broken else "shrink", seconds
            if len(shown.stalls) > KEPT:
                del shown.stalls[next(iter(shown.stalls))]

    def of(self, job: int, application: Application) -> ResizeCosts:
        """What a change costs the job."""
        near = list(self._known(job, application))
        found = {}
        for kind in ("start", "activate", "grow", "shrink", "loss"):
            assumed: float = getattr(self._assumed, f"{kind}_s")
            nearest = next((usual for shown in near if (usual := shown.usual(kind)) is not None), None)
            found[f"{kind}_s"] = self._by_vote(kind, assumed) if nearest is None else nearest
        return replace(self._assumed, **found)

    def shown_by(self, job: int, application: Application) -> str:
        """Whose changes have shown what they cost the job, in words; "" where that is assumed."""
        words = ("its own", "its application's", "its user's")
        for shown, whose in zip(self._known(job, application), words, strict=True):
            if shown.activations or shown.stalls:
                return whose
        voters = sum(bool(shown.activations or shown.stalls) for shown in self._users())
        return f"{voters} users'" if voters else ""

    def _by_vote(self, kind: str, assumed: float) -> float:
        """What the site's users have shown, each user's median once; of two the lower."""
        votes = [usual for shown in self._users() if (usual := shown.usual(kind)) is not None]
        if not votes:
            return assumed
        middle = median_low(votes)
        few = len(votes) < _FEW_VOTES
        return min(middle, max(_FEW_VOTES_FACTOR * assumed, _FEW_VOTES_S)) if few else middle

    def forget(self, job: int) -> None:
        """The job is over; its application and the site remember."""
        self._shown.pop(job, None)
        self._plans.pop(job, None)

    def _known(self, job: int, application: Application) -> Iterator[Shown]:
        for scope in (job, application, application[0]):
            yield self._shown.get(scope) or Shown()

    def _users(self) -> Iterator[Shown]:
        return (shown for scope, shown in self._shown.items() if isinstance(scope, str))

    def _of_user(self, user: str) -> Shown:
        """What a user has shown; whoever was heard last is last."""
        shown = self._shown.pop(user, None)
        if shown is None:
            shown = Shown()
            users = [scope for scope in self._shown if isinstance(scope, str)]
            for oldest in users[: 1 - _USERS_KEPT]:
                del self._shown[oldest]
        self._shown[user] = shown
        return shown

    def _scopes(self, job: int, application: Application) -> Iterator[Shown]:
        yield self._of_user(application[0])
        for scope in (job, application):
            yield self._shown.setdefault(scope, Shown())
        while len(self._shown) > _SCOPES_KEPT + _USERS_KEPT:
            kept = (job, application)
            del self._shown[next(each for each in self._shown if not isinstance(each, str) and each not in kept)]


#: The latest exits of each user are looked at; a site that changes its epilog is believed after so many.
KEPT_EXITS, KEPT_USERS = 100, 200

#: Of those the 95th percentile counts: a few are held up by other things.
SHARE = 0.95

#: One user's exits count for the site up to so many times, and seconds more than, what is usual for most users: a
#: script may be slow to end.
MOST_TIMES, MOST_MORE_S = 2.0, 10.0

#: Longer ones tell of a node or a daemon that was away.
LONGEST_EXIT_S = 600.0


class ReleaseLatency:
    """Folds the journal: from the order to requeue a pilot to the look that shows it held or gone.

    A pilot that waits in the held array again has left its node, epilog and all; before, Slurm shows it completing.
    """

    def __init__(self) -> None:
        self._ran: set[str] = set()
        self._asked: dict[str, tuple[float, bool]] = {}  # when, and whether their worker leaves with them
        self._free: deque[float] = deque(maxlen=KEPT_EXITS)
        self._took: dict[str, deque[float]] = {}  # by user, who was heard last at the end

    def apply(self, event: Event, user: str = "") -> None:
        """Fold one event, of whatever kind; `user`: whose job it is of."""
        if isinstance(event.payload, kinds.DaemonStarted):
            self._asked.clear()
        if event.pilot is None:
            return
        match event.payload:
            case kinds.PilotStarted():
                self._ran.add(event.pilot)
            case kinds.ActionIntent(action=RecyclePilot(main_job=job, kill=kill)) if event.pilot in self._ran:
                # (One that Slurm has not started leaves nothing behind.)
                self._asked.setdefault(event.pilot, (event.at, bool(job) and not kill))
            case kinds.PilotHeld(left_at=left_at) | kinds.PilotEnded(left_at=left_at):
                self._ran.discard(event.pilot)
                asked_at, with_worker = self._asked.pop(event.pilot, (-math.inf, False))
                if left_at is not None and -1.0 <= left_at - asked_at <= LONGEST_EXIT_S:
                    self._free.append(max(0.0, left_at - asked_at))  # Slurm's are whole seconds
                if not with_worker and 0.0 <= event.at - asked_at <= LONGEST_EXIT_S:
                    took = self._took.pop(user, None) or deque(maxlen=KEPT_EXITS)
                    took.append(event.at - asked_at)
                    self._took[user] = took
                    while len(self._took) > KEPT_USERS:
                        del self._took[next(iter(self._took))]

    def free_s(self) -> float | None:
        """In how many seconds nodes are free again, in the median of the latest, by Slurm's own times; of pilots that
        are taken back with their worker, that included. None before the first."""
        return median(self._free) if self._free else None

    def usual_s(self) -> float | None:
        """Within how many seconds nearly every node was seen free again; None before the first.

        No more than `MOST_TIMES` what it is for most users.
        """
        if not self._took:
            return None
        middle = median_low(map(_nearly_all, self._took.values()))
        everybodys = _nearly_all([each for took in self._took.values() for each in took])
        return min(everybodys, max(MOST_TIMES * middle, middle + MOST_MORE_S))


def _nearly_all(took: Iterable[float]) -> float:
    ordered = sorted(took)
    return ordered[math.ceil(SHARE * len(ordered)) - 1]
