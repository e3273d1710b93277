"""What `scontrol show ...` prints as text, on one line a record (`-o`) or on several.

Some values may hold anything (a job's name, a reason), so fields are looked up by key. The first occurrence counts:
free text comes last in every record but a job's, and nothing that decides reads a job from here (see squeue.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from malletrain.domain.errors import InvalidInput
from malletrain.domain.event import utc
from malletrain.domain.snapshot import Reservation
from malletrain.slurm.formats import hostlist, scalars
from malletrain.slurm.formats.records import JOB_TEXTS, JOB_TIMES, JobRecord, NodeRecord, identity

_CONFIG_LINE = re.compile(r"([A-Za-z][\w\[\]/:]*)\s*=\s?(.*)\Z")
_NEXT_KEY = re.compile(r"\s+[A-Z][\w/:&-]*=")

#: How scontrol names tasks before an error.
_TASK_ERROR = re.compile(r"(?<![0-9_])(\d+)_(?:(\d+)|\[([0-9,\-]+)\]): ([^;\n]*)")

_STATE = re.compile(r" State=(\S+)")
_SET_AT = re.compile(r"(?<=@)\d{1,11}(?=\]$)")  # in Unix seconds, since the daemon asks for times so

#: Text that Slurm prints, with exit status 0, where there is nothing to show.
_NOTHING = ("No reservations in the system", "No nodes in the system", "No jobs in the system")


def records(text: str, first_key: str) -> Iterator[str]:
    """The records of an answer, each on one line, a space before each key. `first_key` begins a record. Raises
    `InvalidInput`: text before the first record: an error that Slurm printed, or another command's output."""
    begin = first_key + "="
    record: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith(begin):
            if record:
                yield " " + " ".join(record)
            record = [stripped]
        elif not stripped or stripped.startswith(_NOTHING):
            continue
        elif record:
            record.append(stripped)
        else:
            raise InvalidInput(f"scontrol show ({first_key})", f"unexpected text {stripped[:80]!r}")
    if record:
        yield " " + " ".join(record)


def word(record: str, key: str) -> str:
    """The value of `key` up to the next space; empty when there is no such key or Slurm says so (`(null)`)."""
    value = record.partition(f" {key}=")[2].partition(" ")[0]
    return "" if value in scalars.ABSENT else value


def _state(record: str) -> str:
    """A node's state as it stands: `UNKNOWN` is one (of nodes that a restarted slurmctld has not heard of yet)."""
    found = _STATE.search(record)
    return found[1] if found else ""


def phrase(record: str, key: str) -> str:
    """The value of `key` up to the next key: for values that hold spaces."""
    value = record.partition(f" {key}=")[2]
    return scalars.text_or_empty(_NEXT_KEY.split(value, maxsplit=1)[0])


def nodes(text: str, known: dict[str, NodeRecord] | None = None) -> list[NodeRecord]:
    """`scontrol show node [-o]`. Raises `InvalidInput`: a record without a name or a state: half an answer.

    `known`: the rows of the answer before, by their record; it is left with those of this one. Most are the same at
    the next tick: slurmctld hears of a node's load every SlurmdTimeout/3 (100 s)."""
    before = {} if known is None else known
    found = [(record, before.get(record) or _node(record)) for record in records(text, "NodeName")]
    if known is not None:
        known.clear()
        known.update(found)
    return [row for _, row in found]


def _node(record: str) -> NodeRecord:
    name, state = word(record, "NodeName"), _state(record)
    if not name or not state:
        raise InvalidInput("scontrol show node", f"a node without a name or a state: {record.strip()[:80]!r}")
    return NodeRecord(
        name=name,
        state=state,
        partitions=_names(word(record, "Partitions")),
        cpus=scalars.number(word(record, "CPUTot")),
        cpus_alloc=scalars.number(word(record, "CPUAlloc")),
        memory_mib=scalars.number(word(record, "RealMemory")),
        gres=word(record, "Gres"),
        features=_names(word(record, "ActiveFeatures") or word(record, "AvailableFeatures")),
        weight=scalars.number(word(record, "Weight"), 1),
        reason=_SET_AT.sub(lambda at: utc(int(at[0])), phrase(record, "Reason")) if " Reason=" in record else "",
    )


def jobs(text: str) -> list[JobRecord]:
    """`scontrol show job [-o]`, as saved by somebody. A name that holds ` Key=` may hide that key: see the top.
    Raises `InvalidInput`: a record without an id or a state."""
    rows = []
    for record in records(text, "JobId"):
        raw, state = word(record, "JobId"), word(record, "JobState")
        if not raw.isdigit() or not state:
            raise InvalidInput("scontrol show job", f"a job without an id or a state: {record.strip()[:80]!r}")
        task = word(record, "ArrayTaskId")
        array, het, offset = (scalars.number(word(record, key)) for key in ("ArrayJobId", "HetJobId", "HetJobOffset"))
        one, several = (int(task), "") if task.isdigit() else (None, task)
        which = identity(int(raw), array, one, several, het, offset)
        texts: dict[str, Any] = {name: word(record, key) for name, (key, *_) in JOB_TEXTS.items()}
        times: dict[str, Any] = {name: scalars.moment(phrase(record, key)) for name, key in JOB_TIMES.items()}
        rows.append(
            JobRecord(
                **which | texts | times,
                state=state,
                user=word(record, "UserId").partition("(")[0],
                account=word(record, "Account"),
                name=phrase(record, "JobName"),
                node_count=max(1, scalars.number(word(record, "NumNodes"), 1)),
                time_limit_s=scalars.duration(word(record, "TimeLimit")),
                priority=scalars.number(word(record, "Priority")),
                memory_mib=scalars.mebibytes(word(record, "MinMemoryNode") or word(record, "MinMemoryCPU")),
            )
        )
    return rows


def reservations(text: str) -> list[Reservation]:
    """`scontrol show reservation [-o]`. Raises `InvalidInput`: a reservation without a name or a start."""
    rows = []
    for record in records(text, "ReservationName"):
        name, start = word(record, "ReservationName"), scalars.moment(phrase(record, "StartTime"))
        if not name or start is None:
            raise InvalidInput("scontrol show reservation", f"no name or start: {record.strip()[:80]!r}")
        end = scalars.moment(phrase(record, "EndTime"))
        rows.append(
            Reservation(
                name=name,
                start=start,
                # An endless reservation has an end decades from now.
                end=float("inf") if end is None else end,
                nodes=hostlist.expand(word(record, "Nodes"), f"reservation {name}"),
                flags=frozenset(_names(word(record, "Flags").upper())),
                users=_names(word(record, "Users")),
                accounts=_names(word(record, "Accounts")),
            )
        )
    return rows


def leaf_of_each(printed: str) -> dict[str, str]:
    """`scontrol show topology`: the leaf of each node. A leaf is a switch of level 0, or a block; a node of several
    leaves is in the first. Empty where Slurm has no topology ("No topology information available"). Raises
    `InvalidInput`: a leaf whose nodes cannot be read."""
    found: dict[str, str] = {}
    for line in printed.splitlines():
        record = f" {line.strip()}"
        if name := word(record, "SwitchName" if word(record, "Level") == "0" else "BlockName"):
            for node in hostlist.expand(word(record, "Nodes"), f"scontrol show topology ({name})"):
                found.setdefault(node, name)
    return found


def partitions(text: str) -> dict[str, Mapping[str, str]]:
    """`scontrol show partition [-o]`: the words of each partition, by name."""
    found: dict[str, Mapping[str, str]] = {}
    for record in records(text, "PartitionName"):
        fields = dict(part.partition("=")[::2] for part in record.split() if "=" in part)
        found[fields["PartitionName"]] = fields
    return found


def config(text: str) -> dict[str, str]:
    """`scontrol show config`: its `Key = value` lines, Slurm's nothings as empty text."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = _CONFIG_LINE.match(line)
        if match is not None:
            found.setdefault(match[1], scalars.text_or_empty(match[2]))
    return found


def task_errors(error: str) -> dict[str, str]:
    """The error of each task that is named in scontrol's words: `7_3: Invalid job id specified`, or, from 26.05 on,
    `7_[3,5]: Job has already finished`."""
    found: dict[str, str] = {}
    for array, task, several, why in _TASK_ERROR.findall(error):
        try:
            numbers = scalars.tasks(several) if several else (int(task),)
        except InvalidInput:
            continue  # not a list of tasks
        found |= {f"{array}_{number}": why.strip() for number in numbers}
    return found


@lru_cache(maxsize=4096)
def _names(value: str) -> tuple[str, ...]:
    return tuple(part for part in value.split(",") if part)
