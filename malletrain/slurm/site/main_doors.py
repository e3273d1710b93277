"""Whether main jobs can run in the account or QOS of the pilots: free of charge, and ahead of others, since that
account's share is unused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from malletrain.slurm.site import qos_limits
from malletrain.slurm.site.site_config import Finding, Harvest, Level, PartitionFacts, SiteFacts


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


#: Limits of an association; those that begin with Max are printed with what the account above sets.
LIMITS = (
    "GrpJobs", "GrpSubmit", "MaxJobs", "MaxSubmit", "MaxWall", "GrpTRES", "MaxTRES", "MaxTRESPerNode", "MaxTRESMins",
    "GrpTRESRunMins",
)  # fmt: skip

#: What is asked of `sacctmgr -n -P show assoc`.
ASSOCIATION_FORMAT = "format=account,user,qos,partition,parentname," + ",".join(LIMITS)


def associations(answer: str) -> list[Association]:
    """The rows of `sacctmgr -n -P show assoc` with ASSOCIATION_FORMAT."""
    found = []
    for line in answer.splitlines():
        account, user, qos, partition, parent, *limits = [*line.split("|"), *[""] * 5][: 5 + len(LIMITS)]
        if line.count("|") >= 3:
            listed = frozenset(name.strip().lstrip("+") for name in qos.split(",") if name.strip())
            found.append(Association(account, user, listed, partition, parent, qos_limits.parse(limits, LIMITS)))
    return found


def check_main_doors(facts: SiteFacts, harvest: Harvest, known: Iterable[Association]) -> Iterator[Finding]:
    """Main partitions that admit the pilots' account or QOS, and what else these may be used for."""
    if not facts.accounting or not harvest.account:
        return
    known = list(known)
    found = [
        *_account_in_main(facts, harvest, known),
        *_qos_in_main(facts, harvest, known),
        *_other_qos(facts, harvest, known),
    ]
    yield from found
    if not found:
        yield Finding(Level.OK, f"no main job runs in account {harvest.account}")


def _account_in_main(facts: SiteFacts, harvest: Harvest, known: list[Association]) -> Iterator[Finding]:
    account = harvest.account
    mine = [each for each in known if each.account == account]
    users = [each for each in mine if each.user] or mine
    if "associations" not in facts.words.get("AccountingStorageEnforce", ""):
        users = []  # Slurm looks at none
    admitting = [
        p
        for p in facts.main_partitions(harvest.partition)
        if p.admits("Accounts", account) and (not users or any(each.may_run_in(p) for each in users))
    ]
    for listed in (False, True):
        names = ", ".join(p.name for p in admitting if (p.allow_accounts not in ("ALL", "")) is listed)
        if names:
            yield Finding(
                Level.ERROR,
                f"anybody in account {account} may run main jobs in {names}, free of charge and ahead of others",
                f"take {account} out of AllowAccounts of {names}"
                if listed
                else f"add DenyAccounts={account} to partition {names} in slurm.conf and run `scontrol reconfigure`: "
                "`malletrain setup` does",
            )


def _qos_in_main(facts: SiteFacts, harvest: Harvest, known: list[Association]) -> Iterator[Finding]:
    """A job may name the QOS of its own account only, whatever AccountingStorageEnforce says (22.05)."""
    names = ", ".join(p.name for p in facts.main_partitions(harvest.partition) if p.admits("Qos", harvest.qos))
    others = sorted({a.account for a in known if a.account != harvest.account and harvest.qos in a.qos})
    if harvest.qos and names and others:
        yield Finding(
            Level.ERROR,
            f"account {', '.join(others)} has QOS {harvest.qos} too: its main jobs may run free of charge in {names}",
            f"sacctmgr modify account {','.join(others)} set qos-={harvest.qos} (and its users), or "
            f"DenyQos={harvest.qos} on partition {names}",
        )


def _other_qos(facts: SiteFacts, harvest: Harvest, known: list[Association]) -> Iterator[Finding]:
    """Jobs in the harvest partition with a QOS of main jobs."""
    mine = facts.partitions.get(harvest.partition)
    found = {name for a in known if a.account == harvest.account for name in a.qos} - {harvest.qos}
    admitted = sorted(name for name in found if mine is not None and mine.admits("Qos", name))
    if harvest.qos and admitted:
        by_qos = facts.preempt_type.endswith("/qos")
        yield Finding(
            Level.ERROR if by_qos else Level.WARNING,
            f"account {harvest.account} has QOS {', '.join(admitted)} too: its jobs in {harvest.partition} may have "
            "the priority of main jobs" + (", and are not preempted" if by_qos else ""),
            f"sacctmgr modify account {harvest.account} set qos={harvest.qos}, or AllowQos={harvest.qos} on "
            f"partition {harvest.partition}",
        )
