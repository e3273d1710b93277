"""Slurm's spellings of single values: times, time limits, array expressions, numbers. All durations in seconds."""

from __future__ import annotations

import calendar
import re
import time
from functools import lru_cache

from malletrain.domain.errors import InvalidInput

#: What Slurm prints for "no value".
ABSENT = frozenset(
    {
        "",
        "(null)",
        "N/A",
        "n/a",
        "None",
        "NONE",
        "none",
        "Unknown",
        "UNKNOWN",
        "INVALID",
        "NOT_SET",
        "Partition_Limit",
    }
)
_ENDLESS = frozenset({"UNLIMITED", "INFINITE", "infinite", "unlimited"})

#: A task list longer than this is no job array of any site (MaxArraySize is at most 4,000,001).
MAX_TASKS = 4_000_001

_DURATION = re.compile(r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d{1,2}))?(?::(\d{1,2}))?(?:\.\d+)?\Z")
_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:\.\d+)?)?\Z")
_EPOCH = re.compile(r"\d{1,12}(?:\.\d+)?\Z")
_TASKS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?(?::(\d{1,9}))?\Z")
_FIRST_NUMBER = re.compile(r"-?\d+")
_MEMORY = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([KMGTP]?)c?\Z")
_MEBIBYTES = {"K": 2**-10, "": 1, "M": 1, "G": 2**10, "T": 2**20, "P": 2**30}


def mebibytes(value: str) -> int:
    """A size of memory, `4000M`, `2.44G` or `4000`, rounded down; 0 where it is none.

    squeue rounds to two digits behind the point, so a size may be half a percent off.
    """
    match = _MEMORY.match(value.strip())
    return int(float(match[1]) * _MEBIBYTES[match[2]]) if match else 0


def text_or_empty(value: str) -> str:
    """`value`, or nothing where Slurm prints one of its words for it."""
    value = value.strip()
    return "" if value in ABSENT else value


@lru_cache(maxsize=8192)
def moment(value: str) -> float | None:
    """A time as Unix seconds: what SLURM_TIME_FORMAT=%s prints, or ISO form in the local zone. None: not known.
    Raises `InvalidInput`: neither a time nor one of Slurm's words for none."""
    value = value.strip()
    if value in ABSENT:
        return None
    if _EPOCH.match(value):
        seconds = float(value)
        return seconds if seconds > 0 else None
    match = _ISO.match(value)
    if match is None:
        raise InvalidInput("time", f"{value[:60]!r} is not a time; unset SLURM_TIME_FORMAT and ask Slurm again")
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups())
    if year < 1971:
        return None
    if not 1 <= month <= 12 or not 1 <= day <= calendar.monthrange(year, month)[1] or hour > 24 or minute > 59:
        raise InvalidInput("time", f"{value[:60]!r} is not a time")
    try:
        # -1: the zone's own rules say whether summer time was in force.
        return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
    except (OverflowError, ValueError) as error:
        raise InvalidInput("time", f"{value[:60]!r} is not a time") from error


@lru_cache(maxsize=4096)
def duration(value: str) -> float | None:
    """A time limit in seconds: `1-02:03:04`, `02:03:04`, `03:04`, `1-02`, `1-02:03`. None: unlimited or not set.

    A lone number counts minutes, as in sbatch(1). Raises `InvalidInput`: not a duration."""
    value = value.strip()
    if value in ABSENT or value in _ENDLESS:
        return None
    match = _DURATION.match(value)
    if match is None:
        raise InvalidInput("time limit", f"{value[:60]!r} is not a duration")
    first, second, third = (int(part or 0) for part in match.groups()[1:])
    if match[1] is not None or match[4] is not None:  # [days-]hours[:minutes[:seconds]]
        return float(int(match[1] or 0) * 86400 + first * 3600 + second * 60 + third)
    return float(first * 60 + second)


def number(value: str, default: int = 0) -> int:
    """The first whole number in `value` (`1-1`, `16 sec`, `4`), or `default` where there is none."""
    match = _FIRST_NUMBER.search(value)
    if match is None or len(match[0]) > 18:
        return default
    return int(match[0])


@lru_cache(maxsize=4096)
def tasks(expression: str) -> tuple[int, ...]:
    """The tasks of an array expression: `0-9`, `1,3,5-7`, `0-30:10`, with a `%4` (how many at once) ignored. Raises
    `InvalidInput`: not an array expression, cut off by Slurm (`...`), or of millions of tasks."""
    found: list[int] = []
    body = expression.strip().strip("[]").partition("%")[0]
    for part in body.split(","):
        match = _TASKS.match(part)
        if match is None:
            hint = "; set SLURM_BITSTR_LEN=0" if "..." in part else ""
            raise InvalidInput("job array", f"{expression[:60]!r} is not a list of tasks{hint}")
        low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if high < low or step < 1 or high - low >= MAX_TASKS or len(found) > MAX_TASKS:
            raise InvalidInput("job array", f"{expression[:60]!r} is not a list of tasks")
        found.extend(range(low, high + 1, step))
    return tuple(found)


def count_tasks(expression: str) -> int:
    """How many tasks an array expression stands for; for one that Slurm cut off (`...`), at least so many."""
    try:
        return len(tasks(expression))
    except InvalidInput:
        whole = [part for part in expression.strip("[]").partition("%")[0].split(",") if "." not in part]
        try:
            return max(1, sum(len(tasks(part)) for part in whole))
        except InvalidInput:
            return 1
