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
    """A limit on jobs of some users and accounts together; on all jobs of the harvest partition where none is named.

    Attributes:
        name: what reasons call it.
        users, accounts: a job counts if its user or its account is named.
        most_nodes, least_nodes: a cap, and a guaranteed share, which is given as far as the group wants it.
        available: of something that each node draws (watts, licences, ...), so much is there.
        per_node: what a node of a job draws.
    """

    name: str
    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    most_nodes: int | None = None
    least_nodes: int | None = None
    available: float | None = None
    per_node: float = 1.0

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
    """What the site promises; None: nothing of that kind.

    Attributes:
        p95_s: 95 % of main jobs start at most so much later than without pilots (seconds).
        cycle_ratio: slurmctld's main cycle takes at most so many times as long as without pilots; the number of
            pilots that this allows is learnt, up to `most_pilots`.
        harmless_cycles: also cycles that harm nobody are within it, however short the ones without pilots are.
    """

    p95_s: float | None = None
    cycle_ratio: float | None = None
    most_pilots: int = 5000
    harmless_cycles: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """A site's rules for the harvest.

    Attributes:
        harvest_partition: where pilots run; jobs of every other partition are the main queue.
        harvest_account: the account of pilots; jobs of others in the harvest partition are left alone. Empty: any.
        takes_back: jobs in the harvest partition that are no pilots are ended (`decide.reconcile`); a daemon that
            serves one user alone leaves them.
        horizon_s: how far ahead sizing looks (T of the gain formula).
        objective: what sizing is best for; `alpha`: fairness over speed-ups, 0 is throughput (`sizing.objective`).
        account_weights: multiply the weights of their jobs; 1 for those that are not named.
        account_shares: parts of the node time that accounts should have, for `fair`; 1 where not named.
        max_weight: most that users may give a job of theirs; operators may give more.
        limits: caps, guaranteed shares and resources of groups of jobs; `user_share`: most of the nodes for one user
            while others want some, as a part.
        budgets: node-seconds of accounts for each day, week or month (`decide.limits`).
        max_wait_s: a job that has had no node for so long comes before the others' gain, for `turn_s`; 0: never.
        keep_idle: nodes that stay free, or are made free again, for `srun -I`, hetjobs, reservations and bursts.
        keep_why, cap_why: why `keep_idle` and `max_pilots` are what they are, where the site's promise
            says it; else empty. Pilots beyond a cap with a reason leave; beyond another one none
            starts.
        promise: what the site promises its main queue (`decide.queue_promise`); None: nothing.
        keep_leaves: leaf switches that stay free as a whole, of those that no main job is on; their nodes count in
            `keep_idle`.
        max_pilots: most pilots at once, those of one Slurm task counted as one: their number is what costs the
            controller.
        max_nodes: most nodes that one Slurm task holds, a pilot on each, with holes of equal ends; how many it does
            follows from how many pilots there may be (`malletrain.decide.multi_node_pilots`).
        max_pilot_s: longest time limit of a pilot.
        margin_s: a pilot's limit ends so long before its hole does: exit, KillWait and epilog.
        exit_s: a node is free again so long after its pilot's end (epilog), until that has been measured; None: what
            `margin_s` holds is all.
        free_s: a node is free so long after its pilot's end, by Slurm's own times; None: not measured yet.
        min_hole_s: a shorter hole is left alone: Slurm's limits are whole minutes.
        leave_lead_s: a worker is asked to leave so long before its limit runs out.
        leave_patience_s: a worker that was asked to leave is recycled after so long regardless.
        join_s: a pilot on which no worker has joined gives its node back after so long; 0: never.
        idle_s: a live job that has committed no step for so long on its nodes gives them back; 0: never.
        max_faults: most faults of one job in an hour (`loop.trackers.harm_signals`), above which it gets no nodes for
            `set_aside_s`; a user's jobs together have twice as many.
        usual_leave_s: what leaving usually takes, where it is only reckoned with (`--observe`).
        unknown_s: longest limit of a pilot that starts while Slurm's plan is old and main jobs wait.
        start_patience_s: a released pilot that Slurm has not started by then goes back to the held array.
        claim_patience_s: free nodes are kept so long for a main job that could start on them; after that
            something else holds the job up, and the nodes are harvested again.
        claim_again_s: so long after its first claim such a job may claim anew.
        begin_lead_s: nodes are given to a heterogeneous job that Slurm has put off so long before it may begin.
        max_starts: most pilots, or tasks of several, started at one look; 0: any number. Each takes the controller
            some milliseconds.
        max_queue: so many waiting main jobs are looked at, the best first: no more than Slurm's backfill reaches.
        exit_patience_s: pilots of a job that is over are cancelled after so long.
        max_top_up: most held tasks that a job is topped up to: they count against MaxJobCount.
        max_failures: so many pilots in a row may end before their worker is ready; then the job has failed.
        class_features: features of nodes that make a class of their own (`memory`: so does memory), beside GRES and
            processors.
        probing: how much is spent on learning how jobs scale.
        include_nodes, exclude_nodes: names; empty `include_nodes` means every node of the partition.
    """

    harvest_partition: str = "harvest"
    harvest_account: str = ""
    takes_back: bool = True
    horizon_s: float = 300.0
    objective: Objective = Objective.THROUGHPUT
    alpha: float = 0.0
    account_weights: Mapping[str, float] = field(default_factory=dict)
    account_shares: Mapping[str, float] = field(default_factory=dict)
    max_weight: float = 1.0
    limits: tuple[SiteLimit, ...] = ()
    user_share: float = 1.0
    budgets: tuple[AccountBudget, ...] = ()
    max_wait_s: float = 1800.0
    turn_s: float = 600.0
    keep_idle: int = 0
    keep_why: str = ""
    cap_why: str = ""
    promise: MainPromise | None = None
    keep_leaves: int = 0
    max_pilots: int = 200
    max_nodes: int = 1
    max_pilot_s: float = 3600.0
    margin_s: float = 30.0
    exit_s: float | None = None
    free_s: float | None = None
    min_hole_s: float = 90.0
    leave_lead_s: float = 20.0
    leave_patience_s: float = 15.0
    join_s: float = 0.0
    idle_s: float = 0.0
    max_faults: int = 3
    set_aside_s: float = 1800.0
    usual_leave_s: float = 2.0
    unknown_s: float = 600.0
    start_patience_s: float = 90.0
    claim_patience_s: float = 90.0
    claim_again_s: float = 1800.0
    begin_lead_s: float = 45.0
    max_starts: int = 0
    max_queue: int = 500
    exit_patience_s: float = 30.0
    max_top_up: int = 50
    max_failures: int = 4
    class_features: frozenset[str] = frozenset()
    probing: ProbeRules = field(default_factory=ProbeRules)
    include_nodes: frozenset[str] = frozenset()
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
