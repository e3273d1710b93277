"""What may be wrong with a site, as findings, each with its remedy: `malletrain doctor`.

Each check asks Slurm for one thing and says what it found, also when all is well.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from malletrain.domain.errors import ClusterUnavailable, InvalidInput
from malletrain.slurm.command import Commands
from malletrain.slurm.formats import sdiag, text
from malletrain.slurm.site import held_task_limits, hidden_records, main_doors, qos_limits, site_facts
from malletrain.slurm.site.association_limits import check_association_limits
from malletrain.slurm.site.main_preemption import check_main_partitions
from malletrain.slurm.site.power_saving import check_power
from malletrain.slurm.site.site_config import Finding, Harvest, Level, SiteFacts
from malletrain.wire import munge
from malletrain.wire.errors import WireError

#: Releases that the test-suite runs on, and the oldest whose outputs are read.
OLDEST_RELEASE = (20, 11)

#: Clocks that differ by more make holes and limits wrong.
CLOCK_TOLERANCE_S = 2.0

#: Nodes from which on the doctor advises multi-node pilots: slurmctld tries a blocked main job against every pilot,
#: .4 to 3 ms each at 10,000 nodes (python -m scripts.bench.controller_cycles).
LARGE_CLUSTER_NODES = 1000

#: Fewer held tasks of a job than this are worth a word.
FEW_TASKS = 16

#: One association of an account in `scontrol show assoc_mgr`, and the user id that slurmctld has for its user.
_ASSOCIATION = re.compile(r"\bUserName=([^\s()]+)\((\d+)\)")

#: NO_VAL (slurm.h): the user did not exist where slurmctld looked it up.
_NO_USER_ID = 4294967294


def examine(
    commands: Commands,
    harvest: Harvest,
    now: Callable[[], float],
    max_pilot_s: float = 3600.0,
    preemptible: Collection[str] = (),
    actuator: str = "",
    include: Collection[str] = (),
) -> tuple[Finding, ...]:
    """All findings, the good ones too. When slurmctld does not answer, only that.

    `preemptible`: main partitions whose jobs are meant to be preempted by other main jobs. `actuator`: the socket of
    the process that steers Slurm, where that is another one; its user's rights are looked at then. `include`: lists
    of the nodes that may be harvested, none for all.
    """
    began = now()
    try:
        facts = site_facts.read(commands)
    except hidden_records.RecordsHidden as error:
        return error.findings
    except ClusterUnavailable as error:
        return (
            Finding(
                Level.ERROR, f"Slurm does not answer: {error}", "check `scontrol ping`, SLURM_CONF and munge here"
            ),
        )
    found = [
        _release(facts),
        *_partition(facts, harvest, max_pilot_s),
        *check_main_partitions(facts, harvest.partition, preemptible),
        *check_power(facts, harvest.partition, include),
        _clock(facts, began, now()),
        _munge(facts),
    ]
    rights = partial(_apart, socket=actuator) if actuator else _rights
    doors = partial(_doors, max_pilot_s=max_pilot_s)
    for check in (rights, _user_ids, _privacy, doors, _backfill, _headroom, _fair_share, _weights):
        try:
            found.extend(check(commands, facts, harvest))
        except (ClusterUnavailable, InvalidInput) as error:
            found.append(
                Finding(Level.WARNING, f"could not be checked: {error}", "run the command named here yourself")
            )
    found.extend(_arrays(facts))
    found.extend(_settings(facts))
    return tuple(found)


def _release(facts: SiteFacts) -> Finding:
    said = f"Slurm {facts.version}, cluster {facts.cluster}"
    if facts.release < OLDEST_RELEASE:
        return Finding(Level.ERROR, f"{said}: not a release that is supported", "upgrade to 20.11 or later")
    return Finding(Level.OK, said)


def _partition(facts: SiteFacts, harvest: Harvest, max_pilot_s: float) -> Iterator[Finding]:
    wrong = site_facts.check_harvest_partition(replace(facts, sees_all=True), harvest)  # `_privacy` says that part
    yield from wrong
    mine = facts.partitions.get(harvest.partition)
    if mine is None:
        return
    if not any(finding.level is Level.ERROR for finding in wrong):
        yield Finding(
            Level.OK, f"partition {mine.name}: {len(mine.nodes)} nodes, tier {mine.tier}, gives way to others"
        )
    if len(mine.nodes) >= LARGE_CLUSTER_NODES and harvest.max_nodes == 1:
        yield Finding(
            Level.WARNING,
            f"each pilot holds one of {len(mine.nodes)} nodes, and slurmctld tries a blocked main job against each",
            "remove pilot.max_nodes = 1: beyond pool.max_pilots nodes, pilots then hold several",
        )
    most_s = qos_limits.longest_pilot_s(facts, harvest)
    if most_s is not None and most_s < max_pilot_s:
        key = "MaxTime" if most_s == mine.max_time_s else "the QOS's MaxWall"
        yield Finding(
            Level.WARNING,
            f"{key} of {mine.name} is {most_s / 60:g} min, pilots may ask for {max_pilot_s / 60:g} min",
            f"set pilot.max_minutes = {int(most_s // 60)}, or raise {key}",
        )


def _clock(facts: SiteFacts, began: float, now: float) -> Finding:
    """slurmctld told its time between these two moments: its commands may have taken their time."""
    if facts.asked_at is None:
        return Finding(Level.WARNING, "slurmctld's clock could not be read", "compare `date` on both machines")
    least, most = began - facts.asked_at - 1, now - facts.asked_at  # slurmctld answers in whole seconds
    if least > CLOCK_TOLERANCE_S or most < -CLOCK_TOLERANCE_S:
        ahead = began - facts.asked_at if least > 0 else most
        return Finding(
            Level.ERROR,
            f"the clock here is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} slurmctld's",
            "synchronise both (chrony, ntpd): the ends of holes are absolute times",
        )
    return Finding(Level.OK, "the clock here agrees with slurmctld's")


def _munge(facts: SiteFacts) -> Finding:
    try:
        credential = munge.decode(
            munge.encode(b"malletrain-doctor", facts.munge_socket or None), facts.munge_socket or None
        )
    except WireError as error:
        return Finding(Level.ERROR, f"munge does not work here: {error}", "start munged with the cluster's key")
    if credential.uid != os.getuid():
        return Finding(
            Level.ERROR, "munge vouches for another user than this one", "check munged and user namespaces"
        )
    return Finding(Level.OK, "munge works")


def _apart(commands: Commands, facts: SiteFacts, harvest: Harvest, socket: str) -> Iterator[Finding]:
    """Two processes: the rights are those of the user who made the socket, and the listener's would be too many."""
    try:
        owner = Path(socket).owner()
    except (OSError, KeyError) as error:
        why = "its owner has no name here" if isinstance(error, KeyError) else os.strerror(error.errno or 0)
        yield Finding(
            Level.ERROR,
            f"the actuator's socket {socket} cannot be looked at ({why}): nothing is started",
            "systemctl enable --now malletrain-actuator; run the doctor as the user of malletraind",
        )
        return
    yield from _rights(commands, facts, harvest, owner)
    me = _user_name()
    if me == owner:
        yield Finding(
            Level.ERROR,
            f"{me} runs the listener and the actuator: the two processes have the same rights",
            "run malletrain-actuator as a user of its own (site-configs/systemd/malletrain-actuator.service)",
        )
    elif facts.accounting and me not in (facts.slurm_user, "root"):
        level, coordinated = hidden_records.standing(commands, me)
        if level in ("Administrator", "Operator") or harvest.account in coordinated:
            yield Finding(
                Level.WARNING,
                f"{me}, who listens on the network, has rights in Slurm too: the actuator's suffice",
                f"sacctmgr delete coordinator account={harvest.account} names={me}",
            )
        else:
            yield Finding(Level.OK, f"{me}, who listens on the network, has no rights in Slurm but to look")


def _rights(commands: Commands, facts: SiteFacts, harvest: Harvest, me: str = "") -> Iterator[Finding]:
    me = me or _user_name()
    if me in (facts.slurm_user, "root"):
        yield Finding(
            Level.WARNING,
            f"{me} has every right in Slurm: more than is needed",
            "run the daemon as a user of its own that coordinates the harvest account",
        )
        return
    if not facts.accounting:
        yield Finding(
            Level.WARNING,
            f"without accounting (slurmdbd) {me} can steer jobs of its own only",
            "use `malletraind --user` for one researcher, or set up slurmdbd and a coordinator",
        )
        return
    level, coordinated = hidden_records.standing(commands, me)
    if level in ("Administrator", "Operator"):
        yield Finding(
            Level.WARNING,
            f"{me} is {level.lower()}: that overrides MaxTime and staff holds silently",
            "a coordinator of the harvest account suffices, and cannot touch other jobs",
        )
    elif harvest.account and harvest.account in coordinated:
        yield Finding(Level.OK, f"{me} coordinates account {harvest.account}")
    else:
        yield Finding(
            Level.ERROR,
            f"{me} may not steer pilots of others: it does not coordinate account {harvest.account or '(none)'}",
            f"sacctmgr add coordinator account={harvest.account or 'ACCOUNT'} names={me}",
        )


def _user_ids(commands: Commands, facts: SiteFacts, harvest: Harvest) -> Iterator[Finding]:
    """slurmctld looks users up when sacctmgr names them. One that was made later has no id there, and is refused."""
    if not facts.accounting or not harvest.account:
        return
    answer = commands.ask(["scontrol", "-o", "show", "assoc_mgr", f"accounts={harvest.account}", "flags=assoc"])
    ids = {name: int(uid) for name, uid in _ASSOCIATION.findall(answer)}
    here = {name: _user_id(name) for name in ids}
    late = sorted(name for name, uid in ids.items() if uid == _NO_USER_ID and here[name] is not None)
    missing = sorted(name for name, uid in ids.items() if uid == _NO_USER_ID and here[name] is None)
    other = [
        f"{name} ({uid} there, {here[name]} here)"
        for name, uid in sorted(ids.items())
        if uid != _NO_USER_ID and here[name] not in (None, uid)
    ]
    if late:
        yield Finding(
            Level.ERROR,
            f"slurmctld has no user id for {', '.join(late)} and refuses them (Invalid user id): sacctmgr named them "
            "before they were made",
            "see that they exist on slurmctld's host (`id NAME`), then `scontrol reconfigure` there",
        )
    if other:
        yield Finding(
            Level.ERROR,
            f"user ids differ between slurmctld's host and this one: {', '.join(other)}",
            "give each user the same id on all machines, then `scontrol reconfigure`",
        )
    if missing:
        yield Finding(
            Level.WARNING,
            f"account {harvest.account} has users that do not exist: {', '.join(missing)}",
            "make them on all machines, then `scontrol reconfigure`; or `sacctmgr delete user NAME "
            f"account={harvest.account}`",
        )
    if ids and not (late or other or missing):
        yield Finding(Level.OK, f"slurmctld has the user ids of account {harvest.account}")


def _user_id(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def _privacy(commands: Commands, facts: SiteFacts, harvest: Harvest) -> Iterator[Finding]:
    me = _user_name()
    hidden = hidden_records.hidden(facts)
    sees_all = hidden_records.sees_all(commands, facts, me) if hidden else True
    yield from hidden_records.check_sight(replace(facts, sees_all=sees_all), me)
    if hidden and sees_all:
        yield Finding(Level.OK, f"PrivateData={','.join(hidden)} hides nothing from {me}")


def _doors(commands: Commands, facts: SiteFacts, harvest: Harvest, max_pilot_s: float) -> Iterator[Finding]:
    if facts.accounting and harvest.account:
        of = ["assoc", f"cluster={facts.cluster}", main_doors.ASSOCIATION_FORMAT]  # a slurmdbd may serve several
        known = main_doors.associations(commands.ask(["sacctmgr", "-n", "-P", "show", *of]))
        yield from main_doors.check_main_doors(facts, harvest, known)
        yield from check_association_limits(facts, harvest, known, max_pilot_s)


def _weights(commands: Commands, facts: SiteFacts, harvest: Harvest) -> Iterator[Finding]:
    rows = text.nodes(commands.ask(["scontrol", "-a", "-o", "show", "node"]))
    weights = {row.weight for row in rows if harvest.partition in row.partitions}
    if len(weights) > 1:
        yield Finding(
            Level.WARNING,
            f"nodes of {harvest.partition} have Weight {min(weights)} to {max(weights)}: Slurm places a main job "
            "around pilots, on nodes of a higher Weight, before it preempts any",
            "raise pool.keep_idle; pilots take nodes of the highest Weight first",
        )


def _backfill(commands: Commands, facts: SiteFacts, harvest: Harvest) -> Iterator[Finding]:
    seen = sdiag.parse(commands.ask(["sdiag"]), facts.bf_interval_s)
    plan = seen.plan
    if plan.last_cycle_at is None:
        yield Finding(Level.OK, "backfill has not run since slurmctld started: nothing waits")
    elif plan.depth is not None and plan.queue_length is not None and plan.depth < plan.queue_length:
        yield Finding(
            Level.WARNING,
            f"backfill does not reach the whole queue: depth {plan.depth} of {plan.queue_length} "
            f"(bf_max_job_test={facts.bf_max_job_test}); {harvest.partition} comes last and may never start",
            f"set bf_max_job_test={_round_up(plan.queue_length)} and bf_continue, or "
            f"bf_max_job_part={max(1, facts.bf_max_job_test // 2)} (it caps the main partitions too)",
        )
    else:
        yield Finding(Level.OK, "backfill reaches the whole queue")
    if seen.main_cycle_s is not None and seen.main_cycle_s > 0.5:
        yield Finding(
            Level.WARNING,
            f"slurmctld's main cycle takes {seen.main_cycle_s:.2f} s",
            "lower pool.max_pilots, or set [promise] controller_cycle: fewer and wider pilots cost it less",
        )


def _headroom(commands: Commands, facts: SiteFacts, harvest: Harvest) -> Iterator[Finding]:
    known = held_task_limits.known_jobs(commands)
    share = known / max(1, facts.max_job_count)
    said = f"{known} of at most {facts.max_job_count} jobs (MaxJobCount)"
    if share > 0.8:
        yield Finding(
            Level.ERROR if share > 0.95 else Level.WARNING,
            f"{said}: held pilots count too, and main users' submissions would be refused",
            "raise MaxJobCount in slurm.conf",
        )
    else:
        yield Finding(Level.OK, said)


def _arrays(facts: SiteFacts) -> Iterator[Finding]:
    limits = held_task_limits.limits_of(facts)
    if facts.max_array_size < 2 or limits.max_array_tasks == 0:
        yield Finding(
            Level.ERROR, f"job arrays are off ({limits.why}): pilots are tasks of one", "raise it in slurm.conf"
        )
    elif limits.most_tasks < FEW_TASKS:
        yield Finding(
            Level.WARNING,
            f"a job has at most {limits.most_tasks} held tasks ({limits.why}), and trains on no more nodes",
            "raise it in slurm.conf",
        )


def _fair_share(commands: Commands, facts: SiteFacts, harvest: Harvest) -> Iterator[Finding]:
    if not facts.accounting:
        return
    if not harvest.qos:
        yield Finding(
            Level.WARNING,
            "pilots have no QOS of their own: their owners' fair share is charged for harvested nodes",
            "sacctmgr add qos harvest UsageFactor=0, allow it for the harvest account, set slurm.qos",
        )
        return
    answer = commands.ask(["sacctmgr", "-n", "-P", "show", "qos", harvest.qos, "format=name,usagefactor"]).strip()
    if not answer:
        yield Finding(
            Level.ERROR, f"QOS {harvest.qos} does not exist", f"sacctmgr add qos {harvest.qos} UsageFactor=0"
        )
        return
    factor = answer.splitlines()[0].partition("|")[2].strip()
    if factor and float(factor) != 0:
        yield Finding(
            Level.WARNING,
            f"QOS {harvest.qos} has UsageFactor={factor}: owners' fair share is charged for harvested nodes",
            f"sacctmgr modify qos {harvest.qos} set UsageFactor=0",
        )
    else:
        yield Finding(Level.OK, f"QOS {harvest.qos} costs its users no fair share")


def _settings(facts: SiteFacts) -> Iterator[Finding]:
    yield Finding(
        Level.OK,
        "reservations that begin within pilots' limits need flags=IGNORE_JOBS: pilots leave before they begin",
    )
    if facts.burst_buffer:
        yield Finding(
            Level.WARNING,
            f"burst buffers ({facts.burst_buffer}) are not supported: a main job that stages data in starts when "
            "backfill does not plan it",
            "pilots that ask for one are refused by name; watch preemptions (malletrain_preemptions_total)",
        )
    if facts.licenses:
        yield Finding(Level.OK, f"licences ({facts.licenses[:60]}): pilots that ask for any are refused by name")
    if facts.job_submit:
        yield Finding(
            Level.OK,
            f"job_submit plug-ins ({facts.job_submit}): a task rewritten by one stays held; its owner gets why",
        )
    if "rl_enable" in facts.controller:
        yield Finding(
            Level.WARNING,
            "rl_enable limits requests: the daemon makes up to 5 a look and 4 an action, and waits when told to",
            "exempt its user or host, or leave rl_refill_rate at 10 a second or more",
        )
    if facts.min_job_age_s < 60:
        yield Finding(
            Level.WARNING,
            f"MinJobAge is {facts.min_job_age_s:g} s: ended pilots are forgotten before they are asked about",
            "set MinJobAge=300 (the default)",
        )
    if facts.kill_wait_s > 60:
        yield Finding(
            Level.WARNING,
            f"KillWait is {facts.kill_wait_s:g} s: a stuck pilot holds its node so long after its limit",
            "30 s (the default) suffices",
        )
    if facts.process_tracking.endswith(("/linuxproc", "/pgid")):
        yield Finding(
            Level.WARNING,
            f"{facts.process_tracking}: what a script starts while it is killed is left behind, and Slurm may drain "
            'the node ("Kill task failed")',
            "set ProctrackType=proctrack/cgroup",
        )
    if facts.over_time_limit_s > 300:
        yield Finding(
            Level.WARNING,
            f"OverTimeLimit is {facts.over_time_limit_s / 60:g} min: pilots may outlive their holes by so much",
            "set OverTimeLimit=0 for the harvest partition",
        )
    if facts.has_epilog or facts.has_prolog:
        yield Finding(
            Level.OK, "prolog or epilog are set: each start and end of a pilot costs their time, which is measured"
        )
    if facts.topology.endswith(("/tree", "/block")):
        yield Finding(
            Level.WARNING,
            f"{facts.topology}: Slurm places a job around pilots before it preempts any, on more leaf switches",
            "set pool.keep_leaves = 1; main jobs that need one leaf use --switches=1, and pilots leave one for them",
        )


def _round_up(count: int) -> int:
    """The next round number above twice `count`: queues grow."""
    return -(-2 * count // 100) * 100


def _user_name() -> str:
    return hidden_records.user_name()
