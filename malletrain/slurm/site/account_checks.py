"""The account and QOS of the pilots: whether main jobs can run in them, free of charge and ahead of others, since no
use of it counts; and limits of theirs under which no pilot starts (AssocMaxJobsLimit and the like)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from malletrain.slurm.formats import scalars
from malletrain.slurm.site import site_facts
from malletrain.slurm.site.partition_checks import judged, limits_of_pilots
from malletrain.slurm.site.site_facts import ERROR, WARNING, Finding, Harvest, PartitionFacts, SiteFacts

#: Limits of an association; those that begin with Max are printed with what the account above sets.
ASSOCIATION_LIMITS = (
    "GrpJobs",
    "GrpSubmit",
    "MaxJobs",
    "MaxSubmit",
    "MaxWall",
    "GrpTRES",
    "MaxTRES",
    "MaxTRESPerNode",
    "MaxTRESMins",
    "GrpTRESRunMins",
)

#: What is asked of `sacctmgr -n -P show assoc`.
ASSOCIATION_FORMAT = "format=account,user,qos,partition,parentname," + ",".join(ASSOCIATION_LIMITS)

#: What a QOS calls the limit that goes before an association's.
_OF_QOS = {"MaxJobs": "MaxJobsPU", "MaxSubmit": "MaxSubmitJobsPU"}


@dataclass(frozen=True, slots=True)
class Association:
    """One association of an account, the QOS that its jobs may have, and its limits (sacctmgr(1)). `partition`: ""
    for all; `parent`: of an account, the one above."""

    account: str
    user: str
    qos: frozenset[str]
    partition: str = ""
    parent: str = ""
    limits: Mapping[str, str] = field(default_factory=dict)

    def may_run_in(self, partition: PartitionFacts) -> bool:
        """Whether the partition admits its jobs; their account is looked at elsewhere."""
        here = self.partition in ("", partition.name)
        return here and (not self.qos or any(partition.admits("Qos", name) for name in self.qos))


def associations(answer: str) -> list[Association]:
    """The rows of `sacctmgr -n -P show assoc` with ASSOCIATION_FORMAT."""
    found = []
    for line in answer.splitlines():
        account, user, qos, partition, parent, *limits = [*line.split("|"), *[""] * 5][: 5 + len(ASSOCIATION_LIMITS)]
        if line.count("|") >= 3:
            listed = frozenset(name.strip().lstrip("+") for name in qos.split(",") if name.strip())
            own = site_facts.parse_limits(limits, ASSOCIATION_LIMITS)
            found.append(Association(account, user, listed, partition, parent, own))
    return found


def check_main_doors(facts: SiteFacts, harvest: Harvest, known: Iterable[Association]) -> Iterator[Finding]:
    """Main partitions that admit the pilots' account or QOS, and what else these may be used for."""
    account, qos = harvest.account, harvest.qos
    if not facts.accounting or not account:
        return
    known = list(known)
    main, mine = facts.main_partitions(harvest.partition), facts.partitions.get(harvest.partition)
    own = [each for each in known if each.account == account]
    # Where Slurm does not enforce associations it looks at none.
    users = ([each for each in own if each.user] or own) if facts.enforces("associations") else []
    admitting = [
        p for p in main if p.admits("Accounts", account) and (not users or any(each.may_run_in(p) for each in users))
    ]
    opened = ", ".join(p.name for p in admitting if not p.allowed("Accounts"))
    listing = ", ".join(p.name for p in admitting if p.allowed("Accounts"))
    free = f"anybody in account {account} may run main jobs in {{}}, free of charge and ahead of others"
    # A job may name the QOS of its own account only, whatever AccountingStorageEnforce says (22.05).
    of_qos = ", ".join(p.name for p in main if p.admits("Qos", qos))
    others = sorted({a.account for a in known if a.account != account and qos in a.qos})
    more = {name for a in own for name in a.qos} - {qos}
    admitted = sorted(name for name in more if mine is not None and mine.admits("Qos", name))
    by_qos = facts.preempt_type.endswith("/qos")
    found = site_facts.findings([
        (opened, ERROR, free.format(opened),
         f"add DenyAccounts={account} to partition {opened} in slurm.conf and run `scontrol reconfigure`: "
         "`malletrain setup` does"),
        (listing, ERROR, free.format(listing), f"take {account} out of AllowAccounts of {listing}"),
        (qos and of_qos and others, ERROR,
         f"account {', '.join(others)} has QOS {qos} too: its main jobs may run free of charge in {of_qos}",
         f"sacctmgr modify account {','.join(others)} set qos-={qos} (and its users), or DenyQos={qos} on partition "
         f"{of_qos}"),
        (qos and admitted, ERROR if by_qos else WARNING,
         f"account {account} has QOS {', '.join(admitted)} too: its jobs in {harvest.partition} may have the "
         f"priority of main jobs{', and are not preempted' if by_qos else ''}",
         f"sacctmgr modify account {account} set qos={qos}, or AllowQos={qos} on partition {harvest.partition}"),
    ])  # fmt: skip
    yield from list(found) or [Finding.ok(f"no main job runs in account {account}")]


def check_association_limits(
    facts: SiteFacts, harvest: Harvest, known: Iterable[Association], max_pilot_s: float
) -> Iterator[Finding]:
    """The limits under which pilots do not start: no QOS sets another, which would go first."""
    if not harvest.account or not facts.enforces("limits"):
        return
    nodes, by_qos = facts.of_partition(harvest.partition), limits_of_pilots(facts, harvest)
    for each, key, value in _limits(harvest, [a for a in known if a.partition in ("", harvest.partition)]):
        if _OF_QOS.get(key, key) in by_qos:
            continue
        whose = f"user {each.user} of account {each.account}" if each.user else f"account {each.account}"
        modify = f"sacctmgr modify account {each.account}"
        if each.user:
            modify = f"sacctmgr modify user {each.user} where account={each.account}"
        found = list(judged(key, value, nodes, whose, modify))
        if not found and key == "MaxWall" and 0 < (most_s := scalars.duration(value) or 0.0) < max_pilot_s:
            what = f"{whose} has MaxWall={value}: longer pilots, of up to {max_pilot_s / 60:g} min, never start"
            remedy = f"set pilot.max_minutes = {int(most_s // 60)}, or {modify} set MaxWall=-1"
            found = [Finding.warning(what, remedy)]
        yield from (replace(finding, level=WARNING) if each.user else finding for finding in found)


def _limits(harvest: Harvest, known: list[Association]) -> Iterator[tuple[Association, str, str]]:
    """Each limit that counts for pilots, with who sets it: Max of an account counts for users who have no other, Grp
    of all accounts above."""
    accounts = {each.account: each for each in known if not each.user}
    users = [each for each in known if each.user and each.account == harvest.account]
    mine: Mapping[str, str] = accounts[harvest.account].limits if harvest.account in accounts else {}
    for each in _with_those_above(accounts, harvest.account):
        for key, value in sorted(each.limits.items()):
            is_own = each.account == harvest.account
            counts = is_own and (not users or any(user.limits.get(key) == value for user in users))
            if counts or key.startswith("Grp"):
                yield each, key, value
    for each in users:
        for key, value in sorted(each.limits.items()):
            if mine.get(key) != value:
                yield each, key, value


def _with_those_above(accounts: Mapping[str, Association], name: str) -> Iterator[Association]:
    seen: set[str] = set()
    while name in accounts and name not in seen:
        seen.add(name)
        yield accounts[name]
        name = accounts[name].parent
