"""What a decision is made of: the situation, the inputs that no step changes, and the draft that its steps fill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from malletrain.decide.demand import DecisionCache
from malletrain.decide.limits import NodeTimeSpent
from malletrain.decide.multi_node_pilots import with_co_allocated
from malletrain.decide.rules import Rules
from malletrain.decide.yielding import YieldPlan
from malletrain.domain.decision import Action, CancelTasks, Decision, Hole, Refusal, StartPilot, TopUp
from malletrain.domain.event import ProbeBegun, ProbeEnded
from malletrain.domain.job import JobView, Pilot
from malletrain.domain.snapshot import Snapshot
from malletrain.learn.advisor import JobKnowledge
from malletrain.learn.stragglers import Straggler
from malletrain.sizing.policy import Policy


@dataclass(frozen=True, slots=True)
class DoubtfulStarts:
    """A job of which no start has begun since one did not. `begun`: its pilots that ran then, so as many may; `why`
    in words; `rests`: it is not to be tried with more now."""

    begun: int
    why: str
    rests: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a decision reads of the world.

    Attributes:
        over_since: when jobs that are over ended.
        yielded: what main jobs were given at the last look.
        paused: why nothing new may start (the breaker), or ''.
        crowded: why no more held tasks may be submitted, or ''.
        drained: nodes that operators keep pilots off.
        used: node-seconds by account, old ones fading.
        spent: what budgets are held against.
        known: what was learnt of each job that is profiled.
        open_holes: since when holes are open, where wide pilots go by that.
        resting: nodes and jobs (`job 7`) on which pilots did not start lately, with the reason.
        supply: equally likely numbers of nodes to come, where jobs have deadlines.
        slow: by job, workers that hold up the others.
        set_aside: jobs that get no nodes for a while, with the reason.
        doubtful: jobs whose last starts did not begin: they take nothing from others.
        up_since: since when the daemon has been there to hear workers, by one clock (Unix seconds).
        avoided: by job, nodes on which its workers were slow, with the reason; other jobs may have them.
        resting_on: by job, nodes on which its pilots did not start lately, with the reason.
    """

    snapshot: Snapshot
    views: Mapping[int, JobView]
    now: float
    over_since: Mapping[int, float] = field(default_factory=dict)
    yielded: YieldPlan = field(default_factory=YieldPlan)
    paused: str = ""
    crowded: str = ""
    drained: frozenset[str] = frozenset()
    used: Mapping[str, float] = field(default_factory=dict)
    spent: NodeTimeSpent = field(default_factory=NodeTimeSpent)
    known: Mapping[int, JobKnowledge] = field(default_factory=dict)
    open_holes: Mapping[str, float] = field(default_factory=dict)
    resting: Mapping[str, str] = field(default_factory=dict)
    supply: tuple[int, ...] = ()
    slow: Mapping[int, tuple[Straggler, ...]] = field(default_factory=dict)
    avoided: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    resting_on: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    set_aside: Mapping[int, str] = field(default_factory=dict)
    doubtful: Mapping[int, DoubtfulStarts] = field(default_factory=dict)
    up_since: float = 0.0


#: A probe of a job begins or ends, and why.
ProbeEvent = tuple[int, ProbeBegun | ProbeEnded, str]


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision, and what the next one must remember: what main jobs were given. `advice`: for each job, what
    would be measured next."""

    decision: Decision
    yielded: YieldPlan
    probes: tuple[ProbeEvent, ...] = ()
    advice: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What every step of one decision reads and none changes.

    Attributes:
        live: the jobs that are not over, by id.
        held: the nodes of all their pilots.
    """

    situation: Situation
    policy: Policy
    rules: Rules
    cache: DecisionCache
    live: Mapping[int, JobView]
    held: frozenset[str]

    @staticmethod
    def of(situation: Situation, policy: Policy, rules: Rules, cache: DecisionCache) -> Inputs:
        """The inputs of a decision on `situation`; the cache takes its snapshot in."""
        cache.look(situation.snapshot)
        live = {j: v for j, v in situation.views.items() if not v.phase.is_over}
        cache.forget_all_but(live)
        held = frozenset(pilot.node for view in live.values() for pilot in view.active)
        return Inputs(situation, policy, rules, cache, live, held)

    @property
    def now(self) -> float:
        return self.situation.now

    @property
    def snapshot(self) -> Snapshot:
        return self.situation.snapshot


@dataclass(frozen=True, slots=True)
class Unfit:
    """Nodes that a job cannot have of those that are shared out, and why: it asks for what they lack, or its pilots
    did not start there lately."""

    nodes: frozenset[str]
    why: str


@dataclass(slots=True)
class Draft:
    """One decision in the making. Each step reads what the steps before it have filled in.

    Attributes:
        actions, refusals: so far, in the order in which they are to be done and shown.
        given_up: pilots that some action ends or moves.
        holes: of nodes that are free or that pilots hold.
        horizon_s: how far sizing looks ahead.
        yielding: what main jobs are given.
        staying: the pilots of each job that stay.
        free: holes that may be started on, best first.
        coming: nodes that one pilot is leaving for another.
        replacements: starts in place of stragglers; they come before all others.
        width, narrowest: how many nodes a pilot that starts now holds at most, and at least.
        nodes: how many nodes there are to share.
        unfit: by job, those of them that it cannot have.
    """

    horizon_s: float
    actions: list[Action] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    given_up: set[str] = field(default_factory=set)
    holes: Mapping[str, Hole] = field(default_factory=dict)
    yielding: YieldPlan = field(default_factory=YieldPlan)
    staying: dict[int, Sequence[Pilot]] = field(default_factory=dict)
    free: list[Hole] = field(default_factory=list)
    coming: frozenset[str] = frozenset()
    replacements: Sequence[StartPilot] = ()
    width: int = 1
    narrowest: int = 1
    nodes: int = 0
    unfit: Mapping[int, Unfit] = field(default_factory=dict)

    def give_up(self, actions: Iterable[Action], inputs: Inputs) -> None:
        """Take in actions that end pilots, each with the others of its task; the rest of the pilots stay."""
        found = with_co_allocated(actions, inputs.situation.views)
        self.actions += found
        self.given_up.update(pilot for action in found for pilot in pilots_of(action))
        gone = self.given_up
        self.staying = {j: [p for p in view.staying if p.id not in gone] for j, view in inputs.live.items()}


def pilots_of(action: Action) -> tuple[str, ...]:
    """The pilots that an action touches."""
    if isinstance(action, CancelTasks):
        return action.pilots
    return () if isinstance(action, TopUp) else (action.pilot,)
