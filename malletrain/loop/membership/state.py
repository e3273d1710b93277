"""The values of membership: workers, jobs, and checks under way."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from malletrain.loop.membership.next_world import JobTerms, LastWorlds, TakenWorld
from malletrain.wire.messages import Directive, Plan, Seat


@dataclass(slots=True)
class MembershipSettings:
    """Time limits, in seconds. A change counts from the next call of membership on."""

    prepare_s: float = 5.0  #: from a plan to asking its members to check in, if they have not taken it
    arrive_s: float = 5.0  #: from a switch until all members must have reported it, before the next change
    gather_s: float = 0.2  #: how long a newcomer waits for others that warm up
    check_in_s: float = 2.0  #: to answer a check
    reconnect_s: float = 5.0  #: to poll again after a dropped connection or an answered poll
    adopt_s: float = 60.0  #: to say hello after the daemon restarted
    return_s: float = 5.0  #: to notice that the daemon is back
    warm_up_s: float = 600.0  #: from hello to warm
    silence_s: float = 120.0  #: between two signs of life
    fence_s: float = 120.0  #: for the nodes of workers to be given back that may train where they are not heard
    stop_s: float = 15.0  #: at a measurement size without a window, before profiling on the way up is given up


class Phase(StrEnum):
    """The phases of a worker's life."""

    JOINING = "joining"
    WARM = "warm"
    SERVING = "serving"
    LEFT = "left"
    LOST = "lost"

    @property
    def lives(self) -> bool:
        return self in (Phase.JOINING, Phase.WARM, Phase.SERVING)


@dataclass(slots=True)
class Worker:
    """One process in one run of a pilot. Times are of `Clock.elapsed`."""

    id: str
    job: int
    pilot: str
    restart: int  #: Slurm's restart count of the pilot's task
    node: str  #: "" until it has said hello itself
    uid: int
    joined_at: float
    last_seen: float
    phase: Phase = Phase.JOINING
    address: str = ""
    warm_at: float | None = None
    leaving_since: float | None = None
    leave_reason: str = ""
    lost_at: float | None = None  #: given up then, unless it is heard before
    unheard: bool = False  #: known from others only, since the daemon restarted
    at: Plan | None = None  #: the one that it last said it is in
    answered_at: float | None = None  #: since when it has no poll open, after its first
    dropped: bool = False  #: its connection broke, and it was not heard since
    lost_how: str = ""
    silent: bool = False  #: lost for its silence alone: it may train on where the daemon is not heard
    may_return: bool = False  #: so were all of its world, which it may bring back
    end: str | None = None
    top_up: int = 0
    stuck_at: str = ""  #: where it makes no step, as it says
    directive: Directive = field(default_factory=lambda: Directive(0))

    @property
    def seat(self) -> Seat:
        return Seat(self.id, self.address)


@dataclass(slots=True)
class Check:
    """Members that were asked to check in, their answers, and whether the world is known to be broken."""

    number: int
    deadline: float
    broken: bool
    entered: bool  #: someone waits in the outstanding plan's world already: without any of it, that is broken
    reason: str
    asked: tuple[str, ...]
    whole: dict[str, int] = field(default_factory=dict)  #: worker -> step
    answered: set[str] = field(default_factory=set)
    fenced_at: float | None = None  #: since when nodes of a silent majority are taken back


@dataclass(slots=True)
class JobMembership:
    """One job's workers and world, its outstanding plan, its check under way, and its progress."""

    id: int
    terms: JobTerms
    generation: int  #: the highest number given
    reserved: int  #: the highest that may be given: a later daemon gives none up to this one
    before: LastWorlds = field(default_factory=LastWorlds)  #: those before the daemon started
    taken: TakenWorld | None = None  #: the newest that has trained, before the daemon started too
    workers: dict[str, Worker] = field(default_factory=dict)  #: by name; lost and departed ones until forgotten
    void_before: int = 0  #: generations that are broken, as far as is known: all older ones
    world: Plan | None = None
    pending: Plan | None = None
    ask_again_at: float = 0.0  #: whether the members of `pending` are there
    build_tries: int = 0  #: how often the group of a plan could not be made, since the last world was taken
    build_again_at: float | None = None  #: when `pending` is published anew for that
    build_reason: str = ""
    published: dict[int, Plan] = field(default_factory=dict)  #: newer than `world`
    published_at: dict[int, float] = field(default_factory=dict)  #: when (`Clock.elapsed`), of the newest plans
    arrived: set[str] = field(default_factory=set)  #: members that train in `world`, as they say
    arriving_since: float = 0.0
    check: Check | None = None
    checks: int = 0
    step: int = 0
    figures: set[str] = field(default_factory=set)  #: names of what its script reports
    failed_at: int | None = None  #: the step at which a script raised last
    #: How newcomers failed last (in words without numbers), how many in a row, and when the last one did.
    alike: tuple[str, int, float] = ("", 0, 0.0)
    too_alike: str = ""  #: how they failed, where that is why the job is to keep its size
    stuck_reports: int = 0  #: how often the journal says where a worker makes no step
    losses: int = 0  #: how many workers have been lost, or have left by no plan
    climbs: bool = False  #: its world grows in stages, to be measured
    seen: dict[int, float] = field(default_factory=dict)  #: samples/s of the stages so far
    #: By pilot: since when a script may run there in a world that is over, and is not heard.
    apart_since: dict[str, float] = field(default_factory=dict)
    #: Since when nodes of workers are taken back that hold the state, and are not heard.
    fenced_at: float | None = None
    fenced: set[str] = field(default_factory=set)  #: their pilots
    checker: tuple[str, str] = ("", "")  #: the worker beside which its script is checked, and the script's digest
    checked: set[str] = field(default_factory=set)  #: digests of its script that were checked
    compared: bool = False  #: whether a step of it has been made in two worlds (`Plan.tried`)
    over: str | None = None  #: why it ended
    over_since: float = 0.0

    def trained(self, plan: Plan) -> None:
        """Records that the world of this plan has trained, and makes it the present one."""
        self.world = plan
        self.taken = TakenWorld(plan.generation, frozenset(seat.pilot for seat in plan.members))

    def living(self) -> list[Worker]:
        """The workers that have neither left nor been lost, oldest first."""
        return [each for each in self.workers.values() if each.phase.lives]

    def all_live(self, plan: Plan) -> bool:
        """Whether every member of a plan lives."""
        return all(self.workers[name].phase.lives for name in plan.workers)

    def trains(self, name: str) -> bool:
        """Whether the worker is a member of the world that trains now."""
        return self.world is not None and self.world.has(name)

    def is_planned(self, name: str) -> bool:
        """Whether the worker has a seat in the world or in the outstanding plan."""
        return any(plan is not None and plan.has(name) for plan in (self.world, self.pending))
