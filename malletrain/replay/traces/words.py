"""Times and node lists as Slurm and the other logs write them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from functools import lru_cache

from malletrain.domain.errors import InvalidInput
from malletrain.slurm.formats import hostlist

#: Words that stand for no time at all (sacct(1)).
NO_TIME = frozenset({"", "unknown", "none", "n/a", "na", "nan", "null", "(null)", "invalid", "-1"})

#: Times outside 1970-2200 are damage, not times.
EARLIEST, LATEST = 0.0, 7_258_118_400.0


#: Turns text into Unix seconds, or None where there is no sound time.
TimeParser = Callable[[str], float | None]


def time_parser(zone: tzinfo = UTC) -> TimeParser:
    """Reads ISO 8601 (also with a blank for the T), with an offset or without, and Unix seconds. A time without an
    offset is local to `zone`. Some answers are kept: logs repeat times."""

    @lru_cache(maxsize=1024)
    def parsed(text: str) -> float | None:
        text = text.strip()
        if text.lower() in NO_TIME:
            return None
        try:
            if text[4:5] == "-":
                moment = datetime.fromisoformat(text)
                seconds = (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()
            else:
                seconds = float(text)
        except (ValueError, OverflowError):
            return None
        return seconds if EARLIEST < seconds < LATEST else None

    return parsed


def is_no_time(text: str) -> bool:
    """Whether the log itself says that there is no such time (`Unknown`), as against an unreadable one."""
    return text.strip().lower() in NO_TIME


#: What sacct(1) prints where a job has no nodes, in any case.
_NO_NODES = frozenset(word.lower() for word in hostlist.EMPTY)
_ONE_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,253}\Z")
#: Longer node lists are not cached: those of a year of large jobs would fill the memory.
_MAX_CACHED_CHARS = 48


def expand(text: str) -> tuple[str, ...] | None:
    """The names in `text`, in order; () where it says that there are none; None where it is no node list, or one of
    more names than a machine has."""
    text = text.strip()
    if _ONE_NAME.match(text) and text.lower() not in _NO_NODES:
        return (text,)
    return _kept(text) if len(text) <= _MAX_CACHED_CHARS and text.count("-") < 2 else _opened(text)


@lru_cache(maxsize=4096)
def _kept(text: str) -> tuple[str, ...] | None:
    return _opened(text)


def _opened(text: str) -> tuple[str, ...] | None:
    if text.lower() in _NO_NODES:
        return ()
    try:
        return hostlist.opened(text)
    except InvalidInput:
        return None
