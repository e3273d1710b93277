"""What a decision is made of: the situation, the inputs that no step changes, and the draft that its steps fill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from malletrain.decide.limits import NodeTimeSpent
from malletrain.decide.multi_node_pilots import with_co_allocated
from malletrain.decide.rules import Rules
from malletrain.decide.yielding import YieldPlan
from malletrain.domain.decision import Action, CancelTasks, Decision, Hole, Refusal, StartPilot, TopUp
from malletrain.domain.job import JobView, Pilot
from malletrain.domain.snapshot import Snapshot
from malletrain.learn.advisor import JobKnowledge
from malletrain.learn.profiling import ProbeEvent
from malletrain.learn.stragglers import Straggler
from malletrain.sizing.constrained import size_within_constraints
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import JobDemand, Problem, Sizes
from malletrain.sizing.values import ValueRowCache


@dataclass(frozen=True, slots=True)
class DoubtfulStarts:
    """A job of which no start has begun since one did not. `begun`: its pilots that ran then, so as many may; `why`
    in words; `rests`: it is not to be tried with more now."""

    begun: int
    why: str
    rests: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a decision reads of the world."""

    snapshot: Snapshot
    views: Mapping[int, JobView]
    now: float
    over_since: Mapping[int, float] = field(default_factory=dict)  #: when jobs that are over ended
    yielded: YieldPlan = field(default_factory=YieldPlan)  #: what main jobs were given at the last look
    paused: str = ""  #: why nothing new may start (the breaker)
    crowded: str = ""  #: why no more held tasks may be submitted
    drained: frozenset[str] = frozenset()  #: nodes that operators keep pilots off
    used: Mapping[str, float] = field(default_factory=dict)  #: node-seconds by account, old ones fading
    spent: NodeTimeSpent = field(default_factory=NodeTimeSpent)
    known: Mapping[int, JobKnowledge] = field(default_factory=dict)  #: of each job that is profiled
    open_holes: Mapping[str, float] = field(default_factory=dict)  #: since when, where pilots are wide
    resting: Mapping[str, str] = field(default_factory=dict)  #: nodes and `job 7` where pilots did not start, and why
    slow: Mapping[int, tuple[Straggler, ...]] = field(default_factory=dict)  #: by job, who holds up the others
    #: By job, nodes on which its workers were slow, or its pilots did not start lately, and why.
    avoided: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    resting_on: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    set_aside: Mapping[int, str] = field(default_factory=dict)  #: jobs that get no nodes for a while, and why
    doubtful: Mapping[int, DoubtfulStarts] = field(default_factory=dict)
    up_since: float = 0.0  #: since when the daemon has been there to hear workers, by one clock (Unix seconds)


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision, and what the next one must remember: what main jobs were given. `advice`: for each job, what
    would be measured next."""

    decision: Decision
    yielded: YieldPlan
    probes: tuple[ProbeEvent, ...] = ()
    advice: Mapping[int, str] = field(default_factory=dict)


@dataclass
class DecisionCache:
    """What was made of each job at the last decision, the snapshot that it saw, and its sizing: most is the same at
    the next. With a cache or without, the answer is the same. Not thread-safe; one loop has one."""

    rows: ValueRowCache = field(default_factory=ValueRowCache)
    snapshot: Snapshot | None = None
    demands: dict[int, tuple[tuple[object, ...], tuple[object, ...], JobDemand]] = field(default_factory=dict)
    _sized: tuple[Policy, Problem, tuple[Sizes, tuple[str, ...]]] | None = None

    def look(self, snapshot: Snapshot) -> None:
        """Take the snapshot in, made ready by what the last one was."""
        self.snapshot = snapshot.after(self.snapshot)

    def sized(self, policy: Policy, problem: Problem) -> tuple[Sizes, tuple[str, ...]]:
        """As `size_within_constraints`: policies are stateless, so an equal problem has the same answer."""
        last = self._sized
        if last is None or last[0] is not policy or last[1] != problem:
            last = self._sized = (policy, problem, size_within_constraints(policy, problem, self.rows))
        return last[2]


@dataclass(frozen=True, slots=True)
class Unfit:
    """Nodes that a job cannot have of those that are shared out, and why: it asks for what they lack, or its pilots
    did not start there lately."""

    nodes: frozenset[str]
    why: str


@dataclass(slots=True)
class Draft:
    """One decision in the making. Each step reads what the steps before it have filled in; none changes what it is
    made of."""

    situation: Situation
    policy: Policy
    rules: Rules
    cache: DecisionCache
    live: Mapping[int, JobView] = field(init=False)  #: the jobs that are not over
    held: frozenset[str] = field(init=False)  #: the nodes of all their pilots
    actions: list[Action] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    ending: set[str] = field(default_factory=set)  #: pilots that some action ends or moves
    holes: Mapping[str, Hole] = field(default_factory=dict)  #: of nodes that are free or that pilots hold
    yielding: YieldPlan = field(default_factory=YieldPlan)
    staying: dict[int, Sequence[Pilot]] = field(default_factory=dict)  #: the pilots of each job
    free: list[Hole] = field(default_factory=list)  #: holes that may be started on, best first
    coming: frozenset[str] = frozenset()  #: nodes that one pilot is leaving for another
    replacements: Sequence[StartPilot] = ()  #: in place of stragglers; they start before all others
    width: int = 1  #: most nodes of a pilot that starts now, and the fewest
    narrowest: int = 1
    unfit: Mapping[int, Unfit] = field(default_factory=dict)  #: by job, nodes that are shared out and it cannot have
    class_of: Mapping[str, str] = field(default_factory=dict)  #: of the nodes that are shared out, if of several
    classes: Mapping[int, Mapping[str, int]] = field(default_factory=dict)  #: by job, its nodes of each

    def __post_init__(self) -> None:
        self.cache.look(self.snapshot)
        self.live = {j: v for j, v in self.situation.views.items() if not v.phase.is_over}
        for over in self.cache.demands.keys() - self.live.keys():
            del self.cache.demands[over]
        self.held = frozenset(pilot.node for view in self.live.values() for pilot in view.active)

    @property
    def now(self) -> float:
        return self.situation.now

    @property
    def snapshot(self) -> Snapshot:
        return self.situation.snapshot

    @property
    def mine(self) -> list[Pilot]:
        """The pilots that stay, of all jobs."""
        return [pilot for pilots in self.staying.values() for pilot in pilots]

    @property
    def nodes(self) -> int:
        """How many there are to share."""
        return sum(map(len, self.staying.values())) + len(self.free) + len(self.coming)

    def barred(self, job: int) -> frozenset[str]:
        """The nodes that the job cannot have."""
        return self.unfit[job].nodes if job in self.unfit else frozenset()

    def refuse(self, subject: str | int, *why: str) -> None:
        """Note that something is not done, where there is a reason. `subject`: a job's number, or a name."""
        name = f"job {subject}" if isinstance(subject, int) else subject
        self.refusals += [Refusal(name, each) for each in why if each]

    def give_up(self, actions: Iterable[Action]) -> None:
        """Take in actions that end pilots, each with the others of its task; the rest of the pilots stay."""
        found = with_co_allocated(actions, self.situation.views)
        self.actions += found
        self.ending.update(pilot for action in found for pilot in pilots_of(action))
        gone = self.ending
        self.staying = {j: [p for p in view.staying if p.id not in gone] for j, view in self.live.items()}


def pilots_of(action: Action) -> tuple[str, ...]:
    """The pilots that an action touches."""
    if isinstance(action, CancelTasks):
        return action.pilots
    return () if isinstance(action, TopUp) else (action.pilot,)
