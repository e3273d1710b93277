"""What may be wrong with a site, as findings, each with its remedy, the good ones too: `malletrain doctor`."""

from __future__ import annotations

import os
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from malletrain.domain.errors import ClusterUnavailable, InvalidInput
from malletrain.slurm.command import Commands
from malletrain.slurm.formats import sdiag
from malletrain.slurm.site import account_checks, held_task_limits, site_facts
from malletrain.slurm.site.partition_checks import check_harvest_partition, longest_pilot_s
from malletrain.slurm.site.power_saving import check_power
from malletrain.slurm.site.site_facts import (
    ERROR,
    OK,
    WARNING,
    Finding,
    Harvest,
    PartitionFacts,
    SiteFacts,
    findings,
)
from malletrain.wire import munge
from malletrain.wire.errors import WireError
from malletrain.wire.munge import user_id, user_name

#: Releases that the test-suite runs on, and the oldest whose outputs are read.
OLDEST_RELEASE = (20, 11)

#: Clocks that differ by more make holes and limits wrong.
CLOCK_TOLERANCE_S = 2.0

#: Fewer held tasks of a job than this are worth a word.
FEW_TASKS = 16

#: One association of an account in `scontrol show assoc_mgr`, and the user id that slurmctld has for its user.
_ASSOCIATION = re.compile(r"\bUserName=([^\s()]+)\((\d+)\)")

#: What Slurm does to a preempted job. GANG alone is time slicing within a partition; OFF is neither.
_EFFECTS = {"CANCEL": "killed", "REQUEUE": "killed and requeued", "SUSPEND": "suspended"}


def examine(
    commands: Commands,
    harvest: Harvest,
    now: Callable[[], float],
    max_pilot_s: float = 3600.0,
    preemptible: Collection[str] = (),
    actuator: str = "",
    include: Collection[str] = (),
    user: str = "",
) -> tuple[Finding, ...]:
    """All findings. When slurmctld does not answer, only that.

    `preemptible`: main partitions whose jobs other main jobs are meant to preempt. `actuator`: the socket of the
    process that steers Slurm, where that is another one. `include`: lists of the nodes that may be harvested. `user`:
    whose rights are looked at, where root asks; by default the caller's.
    """
    began = now()
    try:
        facts = site_facts.read(commands)
    except site_facts.RecordsHidden as error:
        return error.findings
    except ClusterUnavailable as error:
        return (Finding.error(f"Slurm does not answer: {error}", "check `scontrol ping`, SLURM_CONF and munge here"),)
    found = [
        *_release(facts),
        *_partition(facts, harvest, max_pilot_s),
        *check_main_partitions(facts, harvest.partition, preemptible),
        *check_power(facts, harvest.partition, include),
        _clock(facts, began, now()),
        _munge(facts),
    ]
    rights = partial(_apart, socket=actuator) if actuator else partial(_rights, me=user)
    privacy, doors = partial(_privacy, me=user), partial(_doors, max_pilot_s=max_pilot_s)
    for check in (rights, _user_ids, privacy, doors, _backfill, _headroom, _fair_share, _weights):
        try:
            found.extend(check(commands, facts, harvest))
        except (ClusterUnavailable, InvalidInput) as error:
            remedy = f"run `{shlex.join(commands.last)}` yourself"
            if commands.last[0] == "sacctmgr":
                remedy = f"start slurmdbd, or see why it cannot be reached from here; then {remedy}"
            found.append(Finding.warning(f"could not be checked: {error}", remedy))
    return (*found, *_arrays(facts), *_settings(facts))


def _release(facts: SiteFacts) -> Iterator[Finding]:
    said = f"Slurm {facts.version}, cluster {facts.cluster}"
    old = Finding.error(f"{said}: not a release that is supported", "upgrade to 20.11 or later")
    yield Finding.ok(said) if facts.release >= OLDEST_RELEASE else old


def _partition(facts: SiteFacts, harvest: Harvest, max_pilot_s: float) -> Iterator[Finding]:
    wrong = check_harvest_partition(replace(facts, sees_all=True), harvest)  # `_privacy` says that part
    yield from wrong
    mine = facts.partitions.get(harvest.partition)
    if mine is None:
        return
    most_s = longest_pilot_s(facts, harvest)
    key = "MaxTime" if most_s == mine.max_time_s else "the QOS's MaxWall"
    if all(finding.level is not ERROR for finding in wrong):
        yield Finding.ok(f"partition {mine.name}: {len(mine.nodes)} nodes, tier {mine.tier}, gives way to others")
    if most_s is not None and most_s < max_pilot_s:
        yield Finding.warning(
            f"{key} of {mine.name} is {(most_s or 0) / 60:g} min, pilots may ask for {max_pilot_s / 60:g} min",
            f"set pilot.max_minutes = {int((most_s or 0) // 60)}, or raise {key}",
        )


def preemptible_partitions(facts: SiteFacts, harvest: str) -> list[tuple[PartitionFacts, list[PartitionFacts]]]:
    """Main partitions whose jobs another main partition, of a higher PriorityTier, preempts on nodes that both have;
    and those others. A partition without a PreemptMode of its own has the global one (slurm.conf(5)), so a site that
    turns preemption on for its harvest partition turns it on for each that does not say `PreemptMode=OFF`."""
    if not facts.preempt_type.endswith("/partition_prio"):
        return []
    main = facts.main_partitions(harvest)
    found = ((v, [p for p in main if p.tier > v.tier and p.nodes & v.nodes]) for v in main if _effect(v))
    return [(victim, preemptors) for victim, preemptors in found if preemptors]


def check_main_partitions(facts: SiteFacts, harvest: str, deliberate: Collection[str] = ()) -> Iterator[Finding]:
    """Findings about main partitions of which one preempts the other's jobs, but for `deliberate` ones: Slurm does
    not say whether that was so before there was a harvest partition."""
    found = preemptible_partitions(facts, harvest)
    for victim, preemptors in found:
        name = victim.name
        whose = f"are {_effect(victim)} for jobs of " + ", ".join(f"{p.name} (tier {p.tier})" for p in preemptors)
        if name in deliberate:
            said = f"jobs of main partition {name} {whose}: slurm.preemptible_partitions says that they may be"
            yield Finding.ok(said)
        else:
            yield Finding.error(
                f"main jobs preempt each other: jobs of {name} (tier {victim.tier}, PreemptMode="
                f"{victim.preempt_mode}) {whose}",
                f"set PreemptMode=OFF on partition {name} in slurm.conf and run `scontrol reconfigure`; where that "
                "is meant, as on a site that had it before, name it in slurm.preemptible_partitions",
            )
    unknown = sorted(set(deliberate) - {p.name for p in facts.main_partitions(harvest)})
    if unknown:
        yield Finding.warning(
            f"slurm.preemptible_partitions names {', '.join(unknown)}: no main partition",
            "take it out, or correct its name",
        )
    if not found and facts.preempt_type.endswith("/partition_prio"):
        yield Finding.ok("no main job preempts another")


def _effect(partition: PartitionFacts) -> str:
    # Words beside the mode, such as GANG, do not preempt.
    return next((_EFFECTS[word] for word in partition.preempt_mode.split(",") if word in _EFFECTS), "")


def _clock(facts: SiteFacts, began: float, now: float) -> Finding:
    """slurmctld told its time between these two moments: its commands may have taken their time."""
    if facts.asked_at is None:
        return Finding.warning("slurmctld's clock could not be read", "compare `date` on both machines")
    least, most = began - facts.asked_at - 1, now - facts.asked_at  # slurmctld answers in whole seconds
    if least > CLOCK_TOLERANCE_S or most < -CLOCK_TOLERANCE_S:
        ahead = began - facts.asked_at if least > 0 else most
        what = f"the clock here is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} slurmctld's"
        return Finding.error(what, "synchronise both (chrony, ntpd): the ends of holes are absolute times")
    return Finding.ok("the clock here agrees with slurmctld's")


def _munge(facts: SiteFacts) -> Finding:
    socket = facts.munge_socket or None
    try:
        credential = munge.decode(munge.encode(b"malletrain-doctor", socket), socket)
    except WireError as error:
        own = facts.words.get("AuthType", "").endswith("/slurm")  # since 23.11
        key = "one key on all nodes, MalleTrain's own: Slurm here has none" if own else "the cluster's key"
        return Finding.error(f"munge does not work here: {error}", f"start munged with {key}")
    if credential.uid != os.getuid():
        return Finding.error("munge vouches for another user than this one", "check munged and user namespaces")
    return Finding.ok("munge works")


def _apart(commands: Commands, facts: SiteFacts, harvest: Harvest, socket: str) -> Iterator[Finding]:
    """Two processes: the rights are those of the user who made the socket, and the listener's would be too many."""
    try:
        owner = Path(socket).owner()
    except (OSError, KeyError) as error:
        why = "its owner has no name here" if isinstance(error, KeyError) else os.strerror(error.errno or 0)
        what = f"the actuator's socket {socket} cannot be looked at ({why}): nothing is started"
        remedy = "systemctl enable --now malletrain-actuator; run the doctor as the user of malletraind"
        yield Finding.error(what, remedy)
        return
    seeing = replace(facts, private_data=facts.private_data - {"jobs", "reservations"})  # who looks needs these
    yield from _rights(commands, seeing, harvest, owner)
    me = user_name(os.getuid())
    if me == owner:
        what = f"{me} runs the listener and the actuator: the two processes have the same rights"
        remedy = "run malletrain-actuator as a user of its own (site-configs/systemd/malletrain-actuator.service)"
        yield Finding.error(what, remedy)
    elif facts.accounting and me not in (facts.slurm_user, "root"):
        level, coordinated = site_facts.standing(commands, me)
        if _is_excess(level, facts) or harvest.account in coordinated:
            yield Finding.warning(
                f"{me}, who listens on the network, has rights in Slurm too: the actuator's suffice",
                f"sacctmgr delete coordinator account={harvest.account} names={me}",
            )
        else:
            yield Finding.ok(f"{me}, who listens on the network, has no more rights in Slurm than looking takes")


def _rights(commands: Commands, facts: SiteFacts, harvest: Harvest, me: str = "") -> Iterator[Finding]:
    me = me or user_name(os.getuid())
    if me in (facts.slurm_user, "root"):
        remedy = "run the daemon as a user of its own that coordinates the harvest account"
        yield Finding.warning(f"{me} has every right in Slurm: more than is needed", remedy)
        return
    if not facts.accounting:
        remedy = "use `malletraind --user` for one researcher, or set up slurmdbd and a coordinator"
        yield Finding.warning(f"without accounting (slurmdbd) {me} can steer jobs of its own only", remedy)
        return
    level, coordinated = site_facts.standing(commands, me)
    if _is_excess(level, facts):
        enough = "a coordinator of the harvest account suffices, and cannot touch other jobs"
        remedy = "an operator suffices" if facts.hidden else enough
        yield Finding.warning(f"{me} is {level.lower()}: that overrides MaxTime and staff holds silently", remedy)
    elif level == "Operator":
        yield Finding.ok(f"{me} is operator, and PrivateData={','.join(facts.hidden)} asks for it")
    elif harvest.account and harvest.account in coordinated:
        yield Finding.ok(f"{me} coordinates account {harvest.account}")
    else:
        yield Finding.error(
            f"{me} may not steer pilots of others: it does not coordinate account {harvest.account or '(none)'}",
            f"sacctmgr add coordinator account={harvest.account or 'ACCOUNT'} names={me}",
        )


def _is_excess(level: str, facts: SiteFacts) -> bool:
    """Whether a level of rights is more than is needed: what PrivateData hides takes an operator to see."""
    return level == "Administrator" or (level == "Operator" and not facts.hidden)


def _user_ids(commands: Commands, facts: SiteFacts, harvest: Harvest) -> Iterator[Finding]:
    """slurmctld looks users up when sacctmgr names them. One that was made later has no id there, and is refused."""
    if not facts.accounting or not harvest.account:
        return
    answer = commands.ask(["scontrol", "-o", "show", "assoc_mgr", f"accounts={harvest.account}", "flags=assoc"])
    ids = {name: int(uid) for name, uid in sorted(_ASSOCIATION.findall(answer))}
    here = {name: user_id(name) for name in ids}
    unknown = [name for name, uid in ids.items() if uid == 4294967294]  # NO_VAL (slurm.h): it did not exist yet
    late, missing = ([name for name in unknown if (here[name] is None) is none] for none in (False, True))
    differing = ((name, uid, here[name]) for name, uid in ids.items() if name not in unknown)
    other = [f"{name} ({uid} there, {own} here)" for name, uid, own in differing if own not in (None, uid)]
    yield from findings([
        (late, ERROR,
         f"slurmctld has no user id for {', '.join(late)} and refuses them (Invalid user id): sacctmgr named them "
         "before they were made",
         "see that they exist on slurmctld's host (`id NAME`), then `scontrol reconfigure` there"),
        (other, ERROR, f"user ids differ between slurmctld's host and this one: {', '.join(other)}",
         "give each user the same id on all machines, then `scontrol reconfigure`"),
        (missing, WARNING, f"account {harvest.account} has users that do not exist: {', '.join(missing)}",
         "make them on all machines, then `scontrol reconfigure`; or `sacctmgr delete user NAME "
         f"account={harvest.account}`"),
    ])  # fmt: skip
    if ids and not (late or other or missing):
        yield Finding.ok(f"slurmctld has the user ids of account {harvest.account}")


def _privacy(commands: Commands, facts: SiteFacts, harvest: Harvest, me: str = "") -> Iterator[Finding]:
    me = me or user_name(os.getuid())
    sees_all = site_facts.sees_all(commands, facts, me) if facts.hidden else True
    yield from site_facts.check_sight(replace(facts, sees_all=sees_all), me)
    if facts.hidden and sees_all:
        yield Finding.ok(f"PrivateData={','.join(facts.hidden)} hides nothing from {me}")


def _doors(commands: Commands, facts: SiteFacts, harvest: Harvest, max_pilot_s: float) -> Iterator[Finding]:
    if facts.accounting and harvest.account:
        of = ["assoc", f"cluster={facts.cluster}", account_checks.ASSOCIATION_FORMAT]  # a slurmdbd may serve several
        known = account_checks.associations(commands.ask(["sacctmgr", "-n", "-P", "show", *of]))
        yield from account_checks.check_main_doors(facts, harvest, known)
        yield from account_checks.check_association_limits(facts, harvest, known, max_pilot_s)


def _weights(commands: Commands, facts: SiteFacts, harvest: Harvest) -> Iterator[Finding]:
    weights = {node.weight for node in facts.of_partition(harvest.partition)}
    if len(weights) > 1:
        what = (
            f"nodes of {harvest.partition} have Weight {min(weights)} to {max(weights)}: Slurm places a main job "
            "around pilots, on nodes of a higher Weight, before it preempts any"
        )
        yield Finding.warning(what, "raise pool.keep_idle; pilots take nodes of the highest Weight first")


def _backfill(commands: Commands, facts: SiteFacts, harvest: Harvest) -> Iterator[Finding]:
    seen = sdiag.parse(commands.ask(["sdiag"]), facts.bf_interval_s)
    depth, queued = seen.plan.depth or 0, seen.plan.queue_length or 0
    cycle_s = seen.plan.main_cycle_s or 0.0
    if seen.plan.last_cycle_at is None:
        yield Finding.ok("backfill has not run since slurmctld started: nothing waits")
    elif seen.plan.depth is not None and depth < queued:
        yield Finding.warning(
            f"backfill does not reach the whole queue: depth {depth} of {queued} "
            f"(bf_max_job_test={facts.bf_max_job_test}); {harvest.partition} comes last and may never start",
            f"set bf_max_job_test={-(-2 * queued // 100) * 100} and bf_continue, or "  # queues grow
            f"bf_max_job_part={max(1, facts.bf_max_job_test // 2)} (it caps the main partitions too)",
        )
    else:
        yield Finding.ok("backfill reaches the whole queue")
    if cycle_s > 0.5:
        yield Finding.warning(
            f"slurmctld's main cycle takes {cycle_s:.2f} s",
            "lower pool.max_pilots, raise pilot.max_nodes, or set [promise] controller_cycle: fewer and wider pilots "
            "cost it less",
        )


def _headroom(commands: Commands, facts: SiteFacts, harvest: Harvest) -> Iterator[Finding]:
    known = held_task_limits.known_jobs(commands)
    most = held_task_limits.limits_of(facts.words).max_job_count
    share = known / max(1, most)
    said = f"{known} of at most {most} jobs (MaxJobCount)"
    full = f"{said}: held pilots count too, and main users' submissions would be refused"
    near = Finding(ERROR if share > 0.95 else WARNING, full, "raise MaxJobCount in slurm.conf")
    yield near if share > 0.8 else Finding.ok(said)


def _arrays(facts: SiteFacts) -> Iterator[Finding]:
    limits = held_task_limits.limits_of(facts.words)
    if limits.max_array_size < 2 or limits.why == "max_array_tasks=0":
        yield Finding.error(f"job arrays are off ({limits.why}): pilots are tasks of one", "raise it in slurm.conf")
    elif limits.most_tasks < FEW_TASKS:
        yield Finding.warning(
            f"a job has at most {limits.most_tasks} held tasks ({limits.why}), and trains on no more nodes",
            "raise it in slurm.conf",
        )


def _fair_share(commands: Commands, facts: SiteFacts, harvest: Harvest) -> Iterator[Finding]:
    if not facts.accounting:
        return
    qos = harvest.qos
    if not qos:
        yield Finding.warning(
            "pilots have no QOS of their own: their owners' fair share is charged for harvested nodes",
            "sacctmgr add qos harvest UsageFactor=0, allow it for the harvest account, set slurm.qos",
        )
        return
    answer = commands.ask(["sacctmgr", "-n", "-P", "show", "qos", qos, "format=name,usagefactor"]).strip()
    factor = answer.partition("\n")[0].partition("|")[2].strip()
    if not answer:
        yield Finding.error(f"QOS {qos} does not exist", f"sacctmgr add qos {qos} UsageFactor=0")
    elif factor and float(factor) != 0:
        yield Finding.warning(
            f"QOS {qos} has UsageFactor={factor}: owners' fair share is charged for harvested nodes",
            f"sacctmgr modify qos {qos} set UsageFactor=0",
        )
    else:
        yield Finding.ok(f"QOS {qos} costs its users no fair share")


def _settings(facts: SiteFacts) -> Iterator[Finding]:
    words = defaultdict(str, facts.words)
    yield Finding.ok("reservations that begin within pilots' limits need flags=IGNORE_JOBS: pilots leave before that")
    yield from findings([
        (words["BurstBufferType"], WARNING,
         f"burst buffers ({words['BurstBufferType']}) are not supported: a main job that stages data in starts when "
         "backfill does not plan it",
         "pilots that ask for one are refused by name; watch preemptions (malletrain_preemptions_total)"),
        (words["Licenses"], OK,
         f"licences ({words['Licenses'][:60]}): pilots that ask for any are refused by name", ""),
        (words["JobSubmitPlugins"], OK,
         f"job_submit plug-ins ({words['JobSubmitPlugins']}): a task rewritten by one stays held; its owner gets why",
         ""),
        ("rl_enable" in site_facts.parameters(words["SlurmctldParameters"]), WARNING,
         "rl_enable limits requests: the daemon makes up to 5 a look and 4 an action, and waits when told to",
         "exempt its user or host, or leave rl_refill_rate at 10 a second or more"),
        (facts.min_job_age_s < 60, WARNING,
         f"MinJobAge is {facts.min_job_age_s:g} s: ended pilots are forgotten before they are asked about",
         "set MinJobAge=300 (the default)"),
        (facts.kill_wait_s > 60, WARNING,
         f"KillWait is {facts.kill_wait_s:g} s: a stuck pilot holds its node so long after its limit",
         "30 s (the default) suffices"),
        (words["ProctrackType"].endswith(("/linuxproc", "/pgid")), WARNING,
         f"{words['ProctrackType']}: what a script starts while it is killed is left behind, and Slurm may drain the "
         'node ("Kill task failed")', "set ProctrackType=proctrack/cgroup"),
        (facts.over_time_limit_s > 300, WARNING,
         f"OverTimeLimit is {facts.over_time_limit_s / 60:g} min: pilots may outlive their holes by so much",
         "set OverTimeLimit=0 for the harvest partition"),
        (facts.has_epilog or facts.has_prolog, OK,
         "prolog or epilog are set: each start and end of a pilot costs their time, as is measured", ""),
        (words["TopologyPlugin"].endswith(("/tree", "/block")), WARNING,
         f"{words['TopologyPlugin']}: Slurm places a job around pilots before it preempts any, on more leaf switches",
         "set pool.keep_leaves = 1; main jobs that need one leaf use --switches=1, and pilots leave one for them"),
    ])  # fmt: skip
