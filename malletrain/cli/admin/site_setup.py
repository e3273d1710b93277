"""What a site's Slurm needs for harvesting, and how it is taken back: the edit of slurm.conf and sacctmgr's commands.
Pure."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from malletrain.domain.errors import InvalidInput
from malletrain.slurm.formats import hostlist
from malletrain.slurm.site.power_saving import costly_nodes
from malletrain.slurm.site.site_facts import SiteFacts

BEGIN, END = "# malletrain begin", "# malletrain end"

#: At the end of each line of the site's own that was changed.
_CHANGED = "# malletrain"

#: In front of each line of the site's own that counts no more.
_REPLACED = "#malletrain# "

_PARTITION = re.compile(r"\s*PartitionName=(\S+)", re.IGNORECASE)
_PREEMPT_MODE = re.compile(r"\bPreemptMode=(\S+)", re.IGNORECASE)
_ALLOW = re.compile(r"\bAllowAccounts=(?!ALL\b)", re.IGNORECASE)
_DENY = re.compile(r"\bDenyAccounts=(\S+)", re.IGNORECASE)
_ONLY = re.compile(r"\bAllowAccounts=(\S+)")
_GLOBAL = re.compile(r"\s*Preempt(Type|Mode)=(\S+)", re.IGNORECASE)

_GUIDE = "docs/how-to/admin-slurm.md says what to do by hand"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be set up. `nodes`: of the harvest partition, as Slurm writes them."""

    partition: str = "harvest"
    nodes: str = "ALL"
    account: str = "harvest"
    qos: str = "harvest"
    daemon_user: str = "malletrain"
    users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Accounts:
    """What sacctmgr has. `users`: the accounts of each user; `defaults`: each user's default account."""

    qos: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    coordinators: frozenset[str] = frozenset()
    users: Mapping[str, frozenset[str]] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)


def without_costly_nodes(facts: SiteFacts) -> str:
    """All nodes but those of a cloud and those that Slurm powers down when they are idle. Raises `InvalidInput`:
    there are no others."""
    every = frozenset[str]().union(*(partition.nodes for partition in facts.partitions.values()))
    costly = frozenset[str]().union(*(costly_nodes(facts, name) for name in facts.partitions))
    if not costly:
        return "ALL"
    if costly == every:
        why = "every node is a cloud node or powered down when idle: name those to harvest, here and in pool.include"
        raise InvalidInput("--nodes", why)
    return hostlist.folded(every - costly)


def with_harvest(text: str, wanted: Wanted, partitions: Collection[str], accounting: bool) -> str:
    """slurm.conf with a harvest partition that every other one preempts, while main partitions do not preempt each
    other; as it is where it has it already. `partitions`: those that Slurm has now. Raises `InvalidInput`: Slurm
    preempts already, or partitions stand in another file."""
    if BEGIN in text:
        return text
    if wanted.partition in partitions:
        raise InvalidInput(
            f"partition {wanted.partition}", "is there already, and `malletrain setup` did not make it"
        )
    lines, seen, begun = [], set(), False
    for line in text.splitlines():
        found = _PARTITION.match(line)
        code, hash_sign, comment = line.partition("#")
        if found or begun:
            begun = code.rstrip().endswith("\\")
            mode = _PREEMPT_MODE.search(code)
            if mode and mode[1].upper() != "OFF":
                raise InvalidInput("slurm.conf", f"{found[1] if found else 'a partition'} has {mode[0]}: {_GUIDE}")
            if found:
                seen.add(found[1])
            if not mode and not begun:
                line = f"{code.rstrip()} PreemptMode=OFF {hash_sign}{comment}".rstrip() + f" {_CHANGED}"
        elif setting := _GLOBAL.match(line):
            if setting[2].lower() not in ("preempt/none", "off"):
                raise InvalidInput("slurm.conf", f"Slurm preempts already ({setting[0].strip()}): {_GUIDE}")
            line = _REPLACED + line
        lines.append(line)
    if elsewhere := sorted(set(partitions) - seen):
        raise InvalidInput("slurm.conf", f"partition {', '.join(elsewhere)} is defined in an included file: {_GUIDE}")
    only = f" AllowAccounts={wanted.account}" if accounting and wanted.account else ""
    lines += [
        BEGIN,
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        f"PartitionName={wanted.partition} Nodes={wanted.nodes} Default=NO State=UP MaxTime=01:00:00 PriorityTier=0 "
        f"PriorityJobFactor=1 PreemptMode=REQUEUE GraceTime=10 OverSubscribe=EXCLUSIVE{only}",
        END,
    ]
    return "\n".join(lines) + "\n"


def with_main_doors_shut(text: str, wanted: Wanted) -> str:
    """slurm.conf whose main partitions take no jobs of the pilots' account, which would run there free of charge.

    A partition that lists whom it admits is left alone: the doctor says where this account is one of them. Raises
    `InvalidInput`: a partition denies other accounts already."""
    lines = text.splitlines()
    for first, last in _main_partitions(lines):
        record = " ".join(line.partition("#")[0] for line in lines[first : last + 1])
        denied = _DENY.search(record)
        if denied and wanted.account not in denied[1].split(","):
            raise InvalidInput(
                "slurm.conf", f"{record.split()[0]} has {denied[0]}: add {wanted.account} to it by hand"
            )
        if not denied and not _ALLOW.search(record):
            lines[last] = _denying(lines[last], wanted.account)
    return "\n".join(lines) + ("\n" if text.endswith("\n") else "")


def _main_partitions(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The first and the last line of each; not of DEFAULT, which counts for the pilots' partition too."""
    first, inside = -1, False
    for number, line in enumerate(lines):
        inside = (inside or line.strip() == BEGIN) and line.strip() != END
        found = _PARTITION.match(line)
        if found and not inside and found[1].upper() != "DEFAULT":
            first = number
        if first >= 0 and not line.partition("#")[0].rstrip().endswith("\\"):
            yield first, number
            first = -1


def _denying(line: str, account: str) -> str:
    """The line with DenyAccounts: before a PreemptMode=OFF of ours, else behind all."""
    code, hash_sign, comment = line.removesuffix(f" {_CHANGED}").partition("#")
    ours = " PreemptMode=OFF" if line.endswith(f" {_CHANGED}") and code.rstrip().endswith(" PreemptMode=OFF") else ""
    code = f"{code.rstrip().removesuffix(ours)} DenyAccounts={account}{ours}"
    return f"{code} {hash_sign}{comment}".rstrip() + f" {_CHANGED}"


def without_harvest(text: str) -> str:
    """slurm.conf as it was before `with_harvest` and `with_main_doors_shut`, with what was changed since."""
    lines, inside = [], False
    account = _ONLY.search(text.partition(BEGIN)[2])
    denied = f"( DenyAccounts={re.escape(account[1])})?" if account else ""
    for line in text.splitlines():
        if line.strip() == BEGIN:
            inside = True
        elif line.strip() == END:
            inside = False
        elif not inside:
            if line.endswith(f" {_CHANGED}"):
                code, hash_sign, comment = line.removesuffix(f" {_CHANGED}").partition("#")
                code = re.sub(rf"{denied}( PreemptMode=OFF)?\s*\Z", "", code)
                line = f"{code} {hash_sign}{comment}".rstrip()
            lines.append(line.removeprefix(_REPLACED))
    return "\n".join(lines) + ("\n" if text.endswith("\n") else "")


def grants(wanted: Wanted, known: Accounts) -> list[list[str]]:
    """sacctmgr's commands for what is not there yet: QOS, account, users and the coordinator."""
    found = []
    if wanted.qos and wanted.qos not in known.qos:
        found.append(["add", "qos", wanted.qos, "UsageFactor=0", "Priority=0"])
    if wanted.account not in known.accounts:
        qos = [f"QOS={wanted.qos}", f"DefaultQOS={wanted.qos}"] if wanted.qos else []
        found.append(["add", "account", wanted.account, "Description=malleable training", *qos])
    found += [
        ["add", "user", f"name={user}", f"account={wanted.account}"]
        for user in dict.fromkeys((wanted.daemon_user, *wanted.users))
        if wanted.account not in known.users.get(user, ())
    ]
    if wanted.daemon_user not in known.coordinators:
        found.append(["add", "coordinator", f"account={wanted.account}", f"names={wanted.daemon_user}"])
    return [["sacctmgr", "-i", *words] for words in found]


def takings(wanted: Wanted, known: Accounts) -> list[list[str]]:
    """sacctmgr's commands that take account and QOS back, in an order that it accepts: no user may have them as their
    default by then. A user who has no other account goes with it."""
    found: list[list[str]] = []
    if wanted.account in known.accounts:
        for user, accounts in sorted(known.users.items()):
            if known.defaults.get(user) != wanted.account:
                continue
            others = sorted(accounts - {wanted.account})
            if others:
                found.append(["modify", "user", user, "set", f"DefaultAccount={others[0]}"])
            else:
                found.append(["delete", "user", f"name={user}"])
        found.append(["delete", "account", wanted.account])
    if wanted.qos in known.qos:
        found.append(["delete", "qos", wanted.qos])
    return [["sacctmgr", "-i", *words] for words in found]


def shut_out(wanted: Wanted, known: Accounts, enforced: bool) -> str:
    """Whose main jobs would run in the pilots' account, which main partitions then refuse, and the remedy; or "".

    `enforced`: who has no account may not submit at all (AccountingStorageEnforce).
    """
    for user, default in sorted(known.defaults.items()):
        others = sorted(known.users[user] - {wanted.account})
        if others and default == wanted.account and user != wanted.daemon_user:
            return (
                f"main jobs of {user} run in account {wanted.account} unless they name another: "
                f"sacctmgr modify user {user} set DefaultAccount={others[0]}"
            )
    for user in wanted.users:
        if not enforced and not known.users.get(user, frozenset()) - {wanted.account}:
            return f"{user} has no account for main jobs: sacctmgr add user {user} account=ACCOUNT"
    return ""


def accounts_from(qos: str, accounts: str, users: str, account: str) -> Accounts:
    """What `sacctmgr -n -P show` prints: `qos format=name`, `account withcoord format=account,coordinators`, `user
    withassoc format=user,account,defaultaccount`."""
    rows = [line.strip().partition("|") for line in accounts.splitlines()]
    coordinators = {part for name, _, those in rows if name == account for part in those.split(",") if part}
    of: dict[str, frozenset[str]] = {}
    defaults = {}
    for line in users.splitlines():
        user, its_account, default = [*line.strip().split("|"), "", ""][:3]
        of[user] = of.get(user, frozenset()) | {its_account}
        defaults[user] = default
    every_qos = frozenset(line.strip() for line in qos.splitlines())
    return Accounts(every_qos, frozenset(name for name, _, _ in rows), frozenset(coordinators), of, defaults)
