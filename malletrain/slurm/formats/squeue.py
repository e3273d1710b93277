"""The queue as our own `squeue` calls print it. A user may put any byte into names, comments and, without accounting,
accounts: so each row begins with a mark made up anew for each call, fields that only Slurm writes are parted by the
ASCII unit separator, and free text comes last, behind the mark again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from malletrain.domain.errors import InvalidInput
from malletrain.slurm.formats import scalars
from malletrain.slurm.formats.records import JobRecord

FIELD_SEPARATOR = "\x1f"

#: squeue -o letters (squeue(1), --format; stable since 14.11) by the field that each is, and how it is read.
_COLUMNS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "i": ("id", str),
    "A": ("raw_id", str),
    "F": ("array_id", str),
    "K": ("tasks", scalars.text_or_empty),
    "T": ("state", str),
    "r": ("reason", scalars.text_or_empty),
    "u": ("user", str),
    "P": ("partition", str),
    "q": ("qos", scalars.text_or_empty),
    "D": ("node_count", lambda value: max(1, scalars.number(value, 1))),
    "l": ("time_limit_s", scalars.duration),
    "V": ("submit_time", scalars.moment),
    "S": ("start_time", scalars.moment),
    "e": ("end_time", scalars.moment),
    "N": ("nodes", scalars.text_or_empty),
    "Y": ("planned_nodes", scalars.text_or_empty),
    "n": ("required_nodes", scalars.text_or_empty),
    "x": ("excluded_nodes", scalars.text_or_empty),
    "f": ("features", scalars.text_or_empty),
    "b": ("gres", scalars.text_or_empty),
    "E": ("dependency", scalars.text_or_empty),
    "Q": ("priority", scalars.number),
    "m": ("memory_mib", scalars.mebibytes),
}
#: Account goes last: without accounting it is free text, as a job's name is.
_FREE_TEXT_LETTERS = "aj"
_ID, _STATE = (list(_COLUMNS).index(letter) for letter in "iT")

#: From 26.05 on OverSubscribe no longer says whether a job has its nodes to itself; this column does. Older releases
#: refuse it ("Invalid job format specification").
EXCLUSIVE = "exclusive"


def queue_format(mark: str) -> str:
    """The `-o` argument for `parse_queue`. `mark` is made up anew for each call."""
    fixed = FIELD_SEPARATOR.join(f"%{letter}" for letter in _COLUMNS)
    return f"{mark}{fixed}{mark}" + mark.join(f"%{letter}" for letter in _FREE_TEXT_LETTERS) + mark


def parse_queue(text: str, mark: str) -> list[JobRecord]:
    """The rows that `queue_format(mark)` printed. Raises `InvalidInput`: text outside rows, or a row of the wrong
    shape: half an answer."""
    return [_row(*parts) for parts in _rows(text, mark)]


def parse_changed(text: str, mark: str, known: frozenset[str]) -> tuple[list[JobRecord], frozenset[str]]:
    """As `parse_queue`, but the rows of jobs that are `known` and run come by their ids alone: on a large machine
    these are thousands, and nothing else of them is wanted. Raises `InvalidInput`: as `parse_queue`."""
    changed: list[JobRecord] = []
    running: set[str] = set()
    for fixed, account, name in _rows(text, mark):
        if fixed[_ID] in known and fixed[_STATE] == "RUNNING":
            running.add(fixed[_ID])
        else:
            changed.append(_row(fixed, account, name))
    return changed, frozenset(running)


def _rows(text: str, mark: str) -> Iterator[tuple[list[str], str, str]]:
    """Of each row the fields of `_COLUMNS`, the account and the name."""
    if not text.strip():
        return
    parts = text.split(mark)
    # [before, fixed, free, free, between, fixed, free, free, between, ...]
    period = len(_FREE_TEXT_LETTERS) + 2
    if len(parts) % period != 1 or any(parts[at].strip() for at in range(0, len(parts), period)):
        raise InvalidInput("squeue", f"an answer of the wrong shape, perhaps cut off: {text.strip()[:80]!r}")
    for at in range(1, len(parts), period):
        fixed = parts[at].split(FIELD_SEPARATOR)
        if len(fixed) != len(_COLUMNS):
            raise InvalidInput("squeue", f"a row of {len(fixed)} fields, not {len(_COLUMNS)}: {fixed[:1]!r}")
        yield fixed, parts[at + 1], parts[at + 2]


def _row(fixed: list[str], account: str, name: str) -> JobRecord:
    of = {field: read(value) for (field, read), value in zip(_COLUMNS.values(), fixed, strict=True)}
    raw, task = of["raw_id"], of["tasks"]
    if not raw.isdigit():
        raise InvalidInput("squeue", f"{raw[:40]!r} is not a job id")
    is_range = task and "[" in of["id"]  # of one task too: 7_[1]
    array = int(of["array_id"]) if task and of["array_id"].isdigit() else None
    het = scalars.number(of["id"]) if "+" in of["id"] else None
    of |= {"raw_id": int(raw), "array_id": array, "tasks": task if is_range else "", "het_id": het}
    return JobRecord(**of, account=scalars.text_or_empty(account), name=name)


class TaskRecord(NamedTuple):
    """One task of an array, or the waiting rest of one, as read before it is touched. Times in Unix seconds."""

    id: str
    raw_id: int
    array_id: int | None
    tasks: tuple[int, ...]
    uid: int
    user: str
    partition: str
    qos: str
    account: str
    state: str
    reason: str
    node_count: int
    time_limit_s: float | None
    requeue: bool
    restarts: int
    eligible_time: float | None
    start_time: float | None
    end_time: float | None
    preempt_time: float | None
    exit_code: str
    nodes: str
    dependency: str
    oversubscribe: str
    submit_time: float | None
    priority: int
    required_nodes: str = ""
    licenses: str = ""
    burst_buffer: str = ""
    exclusive: str = ""  #: NODE, USER, NO, ...; empty where Slurm has no such column


def _uid(value: str) -> int:
    if not value.isdigit():
        raise InvalidInput("squeue", f"{value[:40]!r} is no user id")
    return int(value)


#: squeue -O fields of one task, for the check before it is released, and how each is read: in the order of
#: TaskRecord, whose ids come from the first four.
_TASK_COLUMNS: Mapping[str, Callable[[str], Any]] = {
    "jobarrayid": str,
    "jobid": str,
    "arrayjobid": str,
    "arraytaskid": scalars.text_or_empty,
    "userid": _uid,
    "username": str,
    "partition": str,
    "qos": scalars.text_or_empty,
    "account": scalars.text_or_empty,
    "state": str,
    "reason": scalars.text_or_empty,
    "numnodes": scalars.number,
    "timelimit": scalars.duration,
    "requeue": lambda value: value == "1",
    "restartcnt": scalars.number,
    "eligibletime": scalars.moment,
    "starttime": scalars.moment,
    "endtime": scalars.moment,
    "preempttime": scalars.moment,
    "exit_code": str,
    "nodelist": scalars.text_or_empty,
    "dependency": scalars.text_or_empty,
    "oversubscribe": str,
    "submittime": scalars.moment,
    "prioritylong": lambda value: scalars.number(value, -1),
    "reqnodes": scalars.text_or_empty,
    "licenses": scalars.text_or_empty,
    "burstbuffer": scalars.text_or_empty,
}

#: Without the account, which is free text and goes last. Each with width 0, which prints it whole.
TASK_FIELDS = tuple(name for name in _TASK_COLUMNS if name != "account")


def _row_end(mark: str) -> str:
    return f"{mark}\x1d{mark}"


def task_format(mark: str, fields: Sequence[str] = TASK_FIELDS) -> str:
    """The `-O` argument for `parse_tasks`. `fields`: TASK_FIELDS, and EXCLUSIVE where this release has it."""
    return ",".join([*(f"{field}:0{mark}" for field in fields), f"account:0{_row_end(mark)}"])


def parse_tasks(text: str, mark: str, fields: Sequence[str] = TASK_FIELDS) -> list[TaskRecord]:
    """The rows that `task_format(mark, fields)` printed. Raises `InvalidInput`: a row of the wrong shape."""
    *whole, rest = text.split(_row_end(mark))
    if rest.strip():
        raise InvalidInput("squeue", f"an answer of the wrong shape, perhaps cut off: {rest.strip()[:80]!r}")
    return [_task(row, mark, fields) for row in whole]


def _task(row: str, mark: str, fields: Sequence[str]) -> TaskRecord:
    parts = row.split(mark)
    if len(parts) != len(fields) + 1:
        raise InvalidInput("squeue", f"a row of {len(parts)} fields, not {len(fields) + 1}: {row[:80]!r}")
    of = dict(zip((*fields, "account"), (part.strip() for part in parts), strict=True))
    if not of["jobid"].isdigit():
        raise InvalidInput("squeue", f"no job id: {row.strip()[:80]!r}")
    identity, raw, array, task, *rest = (read(of[name]) for name, read in _TASK_COLUMNS.items())
    rest.append(scalars.text_or_empty(of.get(EXCLUSIVE, "")))
    array_id = int(array) if task and array.isdigit() else None
    return TaskRecord(identity, int(raw), array_id, scalars.tasks(task) if task else (), *rest)
