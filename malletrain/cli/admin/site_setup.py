"""What a site's Slurm needs for harvesting, and how it is taken back: the edit of slurm.conf and sacctmgr's commands.
Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from malletrain.domain.errors import InvalidInput

BEGIN, END = "# malletrain begin", "# malletrain end"

#: At the end of each line of the site's own that was changed.
_CHANGED = "# malletrain"

#: In front of each line of the site's own that counts no more.
_REPLACED = "#malletrain# "

_PARTITION = re.compile(r"\s*PartitionName=(\S+)", re.IGNORECASE)
_PREEMPT_MODE = re.compile(r"\bPreemptMode=(\S+)", re.IGNORECASE)
_GLOBAL = re.compile(r"\s*Preempt(Type|Mode)=(\S+)", re.IGNORECASE)

_GUIDE = "docs/how-to/admin-preemption.md says what to do by hand"


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


def with_harvest(text: str, wanted: Wanted, partitions: Collection[str], accounting: bool) -> str:
    """slurm.conf with a harvest partition that every other one preempts, while main partitions do not preempt each
    other. `partitions`: those that Slurm has now. Text that has it already is given back as it is.

    Raises:
        InvalidInput: Slurm preempts already, or partitions stand in another file.
    """
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
        raise InvalidInput("slurm.conf", f"partition {', '.join(elsewhere)} stands in another file: {_GUIDE}")
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


def without_harvest(text: str) -> str:
    """slurm.conf as it was before `with_harvest`, with whatever was changed in it since."""
    lines, inside = [], False
    for line in text.splitlines():
        if line.strip() == BEGIN:
            inside = True
        elif line.strip() == END:
            inside = False
        elif not inside:
            if line.endswith(f" {_CHANGED}") and _PREEMPT_MODE.search(line):
                line = re.sub(r" PreemptMode=OFF ?(?=#|$)", " ", line.removesuffix(f" {_CHANGED}")).rstrip()
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


def accounts_from(qos: str, accounts: str, users: str, account: str) -> Accounts:
    """What `sacctmgr -n -P show` prints: `qos format=name`, `account withcoord format=account,coordinators`, `user
    withassoc format=user,account,defaultaccount`."""
    coordinators: set[str] = set()
    names = set()
    for line in accounts.splitlines():
        name, _, those = line.strip().partition("|")
        names.add(name)
        if name == account:
            coordinators.update(part for part in those.split(",") if part)
    of: dict[str, set[str]] = {}
    defaults = {}
    for line in users.splitlines():
        user, its_account, default = _three(line.strip().split("|"))
        of.setdefault(user, set()).add(its_account)
        defaults[user] = default
    return Accounts(
        frozenset(line.strip() for line in qos.splitlines()),
        frozenset(names),
        frozenset(coordinators),
        {user: frozenset(each) for user, each in of.items()},
        defaults,
    )


def _three(words: Sequence[str]) -> tuple[str, str, str]:
    user, account, default = [*words, "", "", ""][:3]
    return user, account, default
