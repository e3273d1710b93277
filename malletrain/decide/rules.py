"""What a site allows: plain values that every decision is given. Durations in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from malletrain.domain.job import JobView
from malletrain.learn.advisor import ProbeRules
from malletrain.sizing.objective import Objective


@dataclass(frozen=True, slots=True)
class SiteLimit:
    """A limit on jobs of some users and accounts together; on all jobs of the harvest where none is named."""

    name: str  #: what reasons call it
    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    most_nodes: int | None = None
    least_nodes: int | None = None  #: a guaranteed share, given as far as the group wants it
    available: float | None = None  #: of something that each node draws (watts, licences, ...), so much is there
    per_node: float = 1.0  #: what a node of a job draws

    def covers(self, view: JobView) -> bool:
        """Whether the job counts."""
        everyone = not self.users and not self.accounts
        return everyone or view.job.user in self.users or view.job.account in self.accounts


class Period(StrEnum):
    """How long a budget lasts before it is there anew."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"

    def begin(self, now: float) -> float:
        """When the period that `now` is in began (Unix seconds)."""
        day = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if self is Period.WEEK:
            day -= timedelta(days=day.weekday())
        return (day.replace(day=1) if self is Period.MONTH else day).timestamp()

    def end(self, now: float) -> float:
        """When the next one begins."""
        days = {Period.DAY: 1, Period.WEEK: 7, Period.MONTH: 32}[self]
        later = datetime.fromtimestamp(self.begin(now), UTC) + timedelta(days=days)
        return self.begin(later.timestamp())


@dataclass(frozen=True, slots=True)
class AccountBudget:
    """`node_s` node-seconds a period for the jobs of `accounts` together. `name` is what reasons call it."""

    name: str
    accounts: frozenset[str]
    node_s: float
    period: Period


@dataclass(frozen=True, slots=True)
class MainPromise:
    """What the site promises its main queue; None: nothing of that kind."""

    p95_s: float | None = None  #: 95 % of main jobs start at most so much later than without pilots
    #: slurmctld's main cycle takes at most so many times as long as without pilots; how many these may be is learnt.
    cycle_ratio: float | None = None
    most_pilots: int = 5000  #: at most, whatever is learnt
    harmless_cycles: bool = False  #: also cycles that harm nobody are within it, whatever those without pilots take


@dataclass(frozen=True, slots=True)
class Rules:
    """A site's rules for the harvest."""

    harvest_partition: str = "harvest"  #: where pilots run; jobs of every other partition are the main queue
    harvest_account: str = ""  #: of pilots; jobs of others in the harvest partition are left alone. Empty: any
    takes_back: bool = True  #: jobs in the harvest partition that are no pilots are ended
    horizon_s: float = 300.0  #: how far ahead sizing looks (T of the gain formula)
    objective: Objective = Objective.THROUGHPUT
    alpha: float = 0.0  #: fairness over speed-ups; 0 is throughput
    account_weights: Mapping[str, float] = field(default_factory=dict)  #: multiply the weights of their jobs
    account_shares: Mapping[str, float] = field(default_factory=dict)  #: what fair use is measured by
    max_weight: float = 1.0  #: most that owners may give a job of theirs; operators may give more
    limits: tuple[SiteLimit, ...] = ()
    user_share: float = 1.0  #: most of the nodes for one user while others want some, as a part
    budgets: tuple[AccountBudget, ...] = ()
    max_wait_s: float = 1800.0  #: who has had no node for so long comes before others, for `turn_s`; 0: never
    turn_s: float = 600.0
    keep_idle: int = 0  #: nodes that stay free, or are made free again, for `srun -I`, hetjobs and bursts
    keep_why: str = ""  #: why `keep_idle` is what it is, where the site's promise says it
    cap_why: str = ""  #: of `max_pilots`; pilots beyond a cap with a reason leave, beyond another one none starts
    promise: MainPromise | None = None
    keep_leaves: int = 0  #: leaf switches without a main job that stay free as a whole; they count in `keep_idle`
    max_pilots: int = 200  #: those of one Slurm task counted as one: their number is what costs the controller
    max_nodes: int = 1  #: most nodes that one Slurm task holds, a pilot on each
    max_pilot_s: float = 3600.0  #: longest time limit of a pilot
    margin_s: float = 30.0  #: a pilot's limit ends so long before its hole does: exit, KillWait and epilog
    #: A node is free so long after its pilot's end (epilog), until that is measured; None: `margin_s` has all.
    exit_s: float | None = None
    free_s: float | None = None  #: the same by Slurm's own times; None: not measured yet
    min_hole_s: float = 90.0  #: a shorter hole is left alone: Slurm's limits are whole minutes
    leave_lead_s: float = 20.0  #: a worker is asked to leave so long before its limit runs out
    leave_patience_s: float = 15.0  #: a worker that was asked to leave is recycled after so long regardless
    join_s: float = 0.0  #: a pilot on which no worker has joined gives its node back after so long; 0: never
    idle_s: float = 0.0  #: so does a live job that has committed no step for so long on its nodes; 0: never
    #: Most faults of one job in an hour; beyond, it has no nodes for `set_aside_s`. A user's jobs: twice as many.
    max_faults: int = 3
    set_aside_s: float = 1800.0
    usual_leave_s: float = 2.0  #: what leaving usually takes, where it is only reckoned with (`--observe`)
    unknown_s: float = 600.0  #: longest limit of a pilot that starts while Slurm's plan is old and main jobs wait
    start_patience_s: float = 90.0  #: a released pilot that Slurm has not started by then is held again
    #: Free nodes are kept so long for a main job that could start on them: something else holds it up then. After
    #: `claim_again_s` it may claim anew.
    claim_patience_s: float = 90.0
    claim_again_s: float = 1800.0
    begin_lead_s: float = 45.0  #: a hetjob that Slurm has put off is given nodes so long before it may begin
    max_starts: int = 0  #: most tasks started at one look, each some milliseconds of the controller's; 0: any number
    max_queue: int = 500  #: so many waiting main jobs are looked at, the best first: as far as backfill reaches
    exit_patience_s: float = 30.0  #: pilots of a job that is over are cancelled after so long
    max_top_up: int = 50  #: most held tasks that a job is topped up to: they count against MaxJobCount
    max_failures: int = 4  #: so many pilots in a row may end before their worker is ready; then the job has failed
    #: Features of nodes that make a class of their own (`memory`: so does memory), beside GRES and processors.
    class_features: frozenset[str] = frozenset()
    probing: ProbeRules = field(default_factory=ProbeRules)  #: how much is spent on learning how jobs scale
    include_nodes: frozenset[str] = frozenset()  #: by name; empty: every node of the partition
    exclude_nodes: frozenset[str] = frozenset()

    def with_exits(self, measured_s: float | None) -> Rules:
        """These rules with a margin in which a node is free again after its pilot has ended, too."""
        if self.exit_s is None:
            return self
        exit_s = self.exit_s if measured_s is None else measured_s
        return replace(self, margin_s=self.margin_s + exit_s, min_hole_s=self.min_hole_s + exit_s)

    def may_harvest(self, node: str) -> bool:
        """Whether the site lets this node be harvested at all."""
        return node not in self.exclude_nodes and (not self.include_nodes or node in self.include_nodes)
