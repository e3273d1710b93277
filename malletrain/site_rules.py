"""From the configuration and Slurm's own settings to the plain values that decisions are given.

The one place: the daemon decides by them, `malletrain replay` replays them, `malletrain doctor` looks at them.
"""

from __future__ import annotations

from malletrain.api.roles import uids_of
from malletrain.config.sections import BudgetSection, Config, LimitSection
from malletrain.decide.rules import AccountBudget, MainPromise, Period, Rules, SiteLimit
from malletrain.domain.errors import InvalidInput
from malletrain.sizing.objective import Objective
from malletrain.sizing.policy import Need, Policy, require_inputs
from malletrain.sizing.registry import policy
from malletrain.slurm.formats.hostlist import node_names
from malletrain.slurm.site.held_task_limits import limits_of
from malletrain.slurm.site.partition_checks import longest_pilot_s
from malletrain.slurm.site.power_saving import costly_nodes
from malletrain.slurm.site.site_facts import Harvest, SiteFacts

#: Beyond this Slurm has had every chance to start a released pilot, whatever the backfill interval says.
LEAST_PATIENCE_S = 20.0

#: A site's epilog may take so long, until it has been measured.
UNKNOWN_EPILOG_S = 60.0

#: A pilot on which no worker has joined gives its node back: imports from a busy file system take a minute.
JOIN_S = 15 * 60.0

#: So does a live job that has committed no step: an evaluation may take long, and half an hour is none.
IDLE_S = 30 * 60.0


def promise_of(config: Config) -> MainPromise | None:
    """What the main queue is promised; None: nothing."""
    promise = config.promise
    harmless = promise.controller_cycle == "auto"
    found = MainPromise(promise.main_delay_p95, promise.cycle_ratio, harmless_cycles=harmless)
    return None if found.p95_s is None and found.cycle_ratio is None else found


def excluded_nodes(config: Config, facts: SiteFacts) -> frozenset[str]:
    """The nodes that are never harvested: those of pool.exclude, and those of a cloud or that Slurm powers down when
    they are idle, unless pool.include names them."""
    included = node_names(config.pool.include, "pool.include")
    return node_names(config.pool.exclude, "pool.exclude") | costly_nodes(facts, config.slurm.partition) - included


def unknown_names(config: Config, facts: SiteFacts | None) -> list[str]:
    """What in the configuration this machine or Slurm does not know, a line each. `facts`: None where Slurm did not
    answer."""
    faults = []
    for user in config.operators:
        try:
            uids_of([user], "operators")
        except InvalidInput as error:
            faults.append(str(error))
    if facts is None:
        return faults
    partition = facts.partitions.get(config.slurm.partition)
    if partition is None:
        there = ", ".join(sorted(facts.partitions)) or "none"
        return [*faults, f"slurm.partition: Slurm has no partition {config.slurm.partition}; there are: {there}"]
    faults += [
        f"slurm.preemptible_partitions: Slurm has no partition {name}"
        for name in config.slurm.preemptible_partitions
        if name not in facts.partitions
    ]
    every = frozenset().union(*(each.nodes for each in facts.partitions.values()))
    for key, lists in (("include", config.pool.include), ("exclude", config.pool.exclude)):
        # A node outside the partition may well be excluded, as long as there is one of that name.
        known = partition.nodes if key == "include" else every
        unknown = sorted(node_names(lists, f"pool.{key}") - known)
        if unknown:
            named = ", ".join(unknown[:5]) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
            where = f"not in partition {partition.name}" if key == "include" else "Slurm has no such node"
            faults.append(f"pool.{key}: {named}: {where}")
    include = node_names(config.pool.include, "pool.include") or partition.nodes
    may = include & partition.nodes - node_names(config.pool.exclude, "pool.exclude")
    if config.pool.keep_idle >= len(may) > 0:
        faults.append(f"pool.keep_idle: {config.pool.keep_idle} leaves nothing to harvest of {len(may)} nodes")
    return faults


def rules_from(config: Config, facts: SiteFacts) -> Rules:
    """The rules of decisions. Times that the file leaves to `auto` come from Slurm:

    - margin: KillWait and OverTimeLimit, which a task that ignores SIGTERM may use up after its limit. A worker
      leaves by the daemon's clock well before the limit, so Slurm's own check every 30 s is not in it.
    - exit: how long nodes take to be free after a pilot's end is measured; no configuration says how long an epilog
      takes, so one that is not known yet is taken for a long one.
    - patience with a start: two backfill cycles, since low tiers start in those only.
    - patience with a leave for a main job: the cycle must find the node empty.
    """
    margin = config.pilot.margin_s
    margin_s = facts.kill_wait_s + facts.over_time_limit_s + 5.0 if margin == "auto" else margin
    most_s = longest_pilot_s(facts, harvest_of(config, facts))
    longest = min(config.pilot.max_minutes * 60.0, float("inf") if most_s is None else most_s)
    leave_lead_s = config.loop.tick_s + 5.0
    fair = config.sizing.objective == Objective.FAIR.value
    return Rules(
        harvest_partition=config.slurm.partition,
        objective=Objective(config.sizing.objective),
        alpha=config.sizing.alpha,
        account_weights={} if fair else config.sizing.account_weights,
        account_shares=config.sizing.account_weights if fair else {},
        limits=tuple(_limit(each) for each in config.sizing.limits),
        user_share=config.sizing.user_share,
        budgets=tuple(_budget(each) for each in config.sizing.budgets),
        class_features=frozenset(config.sizing.class_features),
        keep_idle=config.pool.keep_idle,
        keep_leaves=config.pool.keep_leaves,
        max_pilots=config.pool.max_pilots,
        max_starts=config.starts_at_a_look,
        promise=promise_of(config),
        max_nodes=config.pilot.max_nodes,
        max_pilot_s=longest,
        margin_s=margin_s,
        exit_s=None if margin != "auto" else UNKNOWN_EPILOG_S if facts.has_epilog else 0.0,
        # Less than a minute's limit cannot be given, and the worker leaves `leave_lead_s` before that.
        min_hole_s=60.0 + margin_s + leave_lead_s,
        leave_lead_s=leave_lead_s,
        leave_patience_s=config.pilot.leave_patience_s,
        join_s=JOIN_S,
        idle_s=IDLE_S,
        max_faults=config.breaker.faults_of_job,
        start_patience_s=max(LEAST_PATIENCE_S, 2 * facts.bf_interval_s + 10.0),
        claim_patience_s=3 * facts.bf_interval_s + 10.0,
        max_top_up=min(50, limits_of(facts.words).most_tasks),
        include_nodes=node_names(config.pool.include, "pool.include"),
        exclude_nodes=excluded_nodes(config, facts),
    )


def policy_from(config: Config) -> Policy:
    """The policy that sizes jobs here.
    Raises InvalidInput: it is not known, or needs what no daemon has, or what this configuration lacks."""
    found = policy(config.sizing.policy)
    # Jobs bring their batches, noise scales and deadlines.
    available = {Need.BATCHES, Need.NOISE_SCALE, Need.DEADLINES}
    remedy = "choose another"
    if config.sizing.budgets:
        available.add(Need.BUDGETS)
    elif Need.BUDGETS in found.needs:
        remedy = "add [[sizing.budgets]], or choose another"
    require_inputs(found, available, "sizing.policy", remedy)
    return found


def harvest_of(config: Config, facts: SiteFacts) -> Harvest:
    """Where pilots live, and the bounds of one task there."""
    slurm, partition = config.slurm, facts.partitions.get(config.slurm.partition)
    max_time_s = None if partition is None else partition.max_time_s
    return Harvest(slurm.partition, slurm.account, slurm.qos, max_time_s, config.pilot.max_nodes)


def _budget(budget: BudgetSection) -> AccountBudget:
    return AccountBudget(budget.name, frozenset(budget.accounts), 3600.0 * budget.node_hours, Period(budget.period))


def _limit(limit: LimitSection) -> SiteLimit:
    return SiteLimit(
        name=limit.name,
        users=frozenset(limit.users),
        accounts=frozenset(limit.accounts),
        most_nodes=limit.most_nodes,
        least_nodes=limit.least_nodes,
        available=limit.available,
        per_node=limit.per_node,
    )
