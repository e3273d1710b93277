"""Limits of the pilots' account, of those above it, or of its users, under which no pilot starts (sacctmgr(1)): Slurm
leaves each pending (AssocMaxJobsLimit, AssocGrpCpuLimit and the like)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from malletrain.slurm.formats import scalars
from malletrain.slurm.site.main_doors import Association
from malletrain.slurm.site.qos_limits import are_enforced, judged, limits_of_pilots
from malletrain.slurm.site.site_config import Finding, Harvest, Level, SiteFacts

#: What a QOS calls the limit that goes before an association's.
_OF_QOS = {"MaxJobs": "MaxJobsPU", "MaxSubmit": "MaxSubmitJobsPU"}


def check_association_limits(
    facts: SiteFacts, harvest: Harvest, known: Iterable[Association], max_pilot_s: float
) -> Iterator[Finding]:
    """The limits under which pilots do not start: no QOS sets another, which would go first."""
    if not harvest.account or not are_enforced(facts):
        return
    nodes, by_qos = facts.of_partition(harvest.partition), limits_of_pilots(facts, harvest)
    for each, key, value in _limits(harvest, [a for a in known if a.partition in ("", harvest.partition)]):
        if _OF_QOS.get(key, key) in by_qos:
            continue
        whose = f"user {each.user} of account {each.account}" if each.user else f"account {each.account}"
        modify = f"sacctmgr modify user {each.user} where" if each.user else "sacctmgr modify account"
        modify += f" account={each.account}" if each.user else f" {each.account}"
        found = list(judged(key, value, nodes, whose, modify))
        if not found and key == "MaxWall" and 0 < (most_s := scalars.duration(value) or 0.0) < max_pilot_s:
            what = (
                f"{whose} has MaxWall={value}: longer pilots do not start, and may ask for {max_pilot_s / 60:g} min"
            )
            remedy = f"set pilot.max_minutes = {int(most_s // 60)}, or {modify} set MaxWall=-1"
            found = [Finding(Level.WARNING, what, remedy)]
        yield from (replace(finding, level=Level.WARNING) if each.user else finding for finding in found)


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
