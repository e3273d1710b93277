"""The node lists of a log, by the reader of Slurm's lists, without an error for each rubbish one."""

from __future__ import annotations

import re
from functools import lru_cache

from malletrain.domain.errors import InvalidInput
from malletrain.slurm.formats import hostlist

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
