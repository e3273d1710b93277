"""What a site's Slurm needs for harvesting, and how it is taken back: the edit of slurm.conf and sacctmgr's commands.
Pure."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from malletrain.domain.errors import InvalidInput
from malletrain.slurm.formats import hostlist
from malletrain.slurm.site.power_saving import costly_nodes
from malletrain.slurm.site.site_facts import QosFacts, SiteFacts

BEGIN, END = "# malletrain begin", "# malletrain end"

#: How the block begins where preemption is set up by it.
OWN = f"{BEGIN}\nPreemptType="

#: What main partitions have that say nothing else follows it. It stands before the first of them.
_MAIN = "PartitionName=DEFAULT"

#: In front of each line of the site's own that counts no more.
_REPLACED = "#malletrain# "

_PARTITION = re.compile(r"^[ \t]*PartitionName=(\S+)", re.IGNORECASE | re.MULTILINE)
_PREEMPT_MODE = re.compile(r"\bPreemptMode=(?!OFF(?:\s|$))\S+", re.IGNORECASE)
_DENY = re.compile(r"\bDenyAccounts=(\S+)", re.IGNORECASE)
_GLOBAL = re.compile(r"(?<!\\\n)^[ \t]*Preempt(?:Type|Mode)=(\S+).*$", re.IGNORECASE | re.MULTILINE)
_BLOCK = re.compile(f"^{BEGIN}\n.*?^{END}\n", re.DOTALL | re.MULTILINE)

_GUIDE = "docs/how-to/admin-slurm.md says what to do by hand"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be set up. `nodes`: of the harvest partition, as Slurm writes them. `preempted`: the site preempts
    already, in a way that suits pilots, which stays as it is."""

    partition: str = "harvest"
    nodes: str = "ALL"
    account: str = "harvest"
    qos: str = "harvest"
    daemon_user: str = "malletrain"
    users: tuple[str, ...] = ()
    preempted: bool = False


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
    other, and take no jobs of the pilots' account, which would run there free of charge; as it is where it has all
    that. `partitions`: those that Slurm has now.

    A partition that lists whom it admits goes by its list: the doctor says where this account is one of them. Raises
    `InvalidInput`: Slurm preempts already in another way, or partitions stand in another file or deny other accounts.
    """
    found = _BLOCK.search(text)
    keeps = wanted.preempted and OWN not in text
    own = () if keeps else ("PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE")
    if found and (_MAIN in found[0] or keeps):
        return text
    if wanted.partition in partitions and not found:
        raise InvalidInput(
            f"partition {wanted.partition}", "is there already, and `malletrain setup` did not make it"
        )
    account = wanted.account if accounting else ""
    text = without_harvest(text)  # an earlier release's
    seen = set(_checked_partitions(text, account, keeps))
    if elsewhere := sorted(set(partitions) - seen - {wanted.partition}):
        raise InvalidInput("slurm.conf", f"partition {', '.join(elsewhere)} is defined in an included file: {_GUIDE}")
    for setting in _GLOBAL.finditer(text) if own else ():
        if setting[1].lower() not in ("preempt/none", "off"):
            raise InvalidInput("slurm.conf", f"Slurm preempts already ({setting[0].strip()}): {_GUIDE}")
    text = _GLOBAL.sub(lambda setting: _REPLACED + setting[0], text) if own else text
    defaults = "".join([" PreemptMode=OFF" * bool(own), f" DenyAccounts={account}" if account else ""])
    block = (
        BEGIN,
        *own,
        # Before the defaults: they are not for it.
        f"PartitionName={wanted.partition} Nodes={wanted.nodes} Default=NO State=UP MaxTime=01:00:00 PriorityTier=0 "
        "PriorityJobFactor=1 PreemptMode=REQUEUE GraceTime=10 OverSubscribe=EXCLUSIVE"
        + (f" AllowAccounts={account}" if account else ""),
        *([f"{_MAIN}{defaults}"] if defaults else []),
        END,
    )
    first = _PARTITION.search(text)
    at = first.start() if first else len(text)
    return text[:at] + "\n".join(block) + "\n" + text[at:]


def _checked_partitions(text: str, account: str, preempted: bool) -> Iterator[str]:
    """The names of partitions, each with a record that may stay as it is. Raises `InvalidInput`: one may not."""
    for line in text.replace("\\\n", " ").splitlines():
        record = line.partition("#")[0]
        found, mode, denied = _PARTITION.match(record), _PREEMPT_MODE.search(record), _DENY.search(record)
        if not found:
            continue
        if mode and not preempted:
            raise InvalidInput("slurm.conf", f"{found[1]} has {mode[0]}: {_GUIDE}")
        if account and denied and account not in denied[1].split(","):
            raise InvalidInput("slurm.conf", f"{found[1]} has {denied[0]}: add {account} to it by hand")
        yield found[1]


def without_harvest(text: str) -> str:
    """slurm.conf as it was before `with_harvest`, with what was changed since; also where an earlier release made the
    harvest partition, and marked each line that it changed."""
    block = _BLOCK.search(text)
    account = re.search(r"\bAllowAccounts=(\S+)", block[0]) if block else None
    denied = f"(?: DenyAccounts={re.escape(account[1])})?" if account else ""
    text = _BLOCK.sub("", text)
    text = re.sub(f"^{_REPLACED}", "", text, flags=re.MULTILINE)
    return re.sub(
        rf"^([^#\n]*?){denied}(?: PreemptMode=OFF)?( #.*)? # malletrain$", r"\1\2", text, flags=re.MULTILINE
    )


def listings(wanted: Wanted, qos: Mapping[str, QosFacts], sign: str = "+") -> list[list[str]]:
    """sacctmgr's command by which every other QOS preempts the pilots' (preempt/qos), or with "-" no longer does."""
    others = (name for name, each in qos.items() if (wanted.qos in each.preempts) == (sign == "-"))
    names = ",".join(name for name in others if name != wanted.qos)
    return [["sacctmgr", "-i", "modify", "qos", names, "set", f"preempt{sign}={wanted.qos}"]] if names else []


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
