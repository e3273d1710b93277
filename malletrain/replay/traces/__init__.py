"""Readers of job logs and node events: the formats are told apart by content, and give columns of numbers with an
account of what was skipped."""

from __future__ import annotations

import re
from datetime import UTC, tzinfo
from pathlib import Path

from malletrain.domain.errors import InvalidInput
from malletrain.replay.traces.events import is_events_header, read_events
from malletrain.replay.traces.sacct import is_sacct_header, read_sacct
from malletrain.replay.traces.source import Lines, opened
from malletrain.replay.traces.swf import looks_like_swf, read_swf
from malletrain.replay.traces.trace import MAX_NODES, Account, JobRecords, NodeChanges, Trace
from malletrain.replay.traces.words import expand, time_parser

__all__ = ["Account", "JobRecords", "NodeChanges", "Trace", "read_machine", "read_trace"]

_HEADLESS = re.compile(r"\d+(?:_\d+)?(?:\.\w+)?[^\w.]{1,4}[^ ]*[A-Z]{6}")


def read_trace(path: Path, zone: tzinfo = UTC, ignore_partitions: frozenset[str] = frozenset()) -> Trace:
    """Reads node events, SWF or `sacct -P`, plain or gzip; `-` is standard input.

    Times without an offset are local to `zone`. Jobs of `ignore_partitions` (sacct) count as idle time.
    Raises InvalidInput: not one of these formats, damaged, or without a single usable record."""
    source = str(path)
    with opened(path) as stream:
        lines = Lines(stream, source)
        line = lines.first()
        if is_events_header(line):
            return read_events(lines, time_parser(zone))
        if is_sacct_header(line):
            return read_sacct(lines, time_parser(zone), ignore_partitions)
        if looks_like_swf(line):
            return read_swf(lines)
    if not line:
        raise InvalidInput(source, f"holds nothing that can be read (skipped: {lines.tally.summary()})")
    raise InvalidInput(lines.where, _what_was_expected(line))


def read_machine(path: Path) -> frozenset[str]:
    """The machine's nodes, since a job log names only those that ran one: the output of
    `sinfo --Node --noheader --format='%N'`, of which lines may have more fields, separated by `|`.
    Raises InvalidInput: it cannot be read, or names no node."""
    found: set[str] = set()
    with opened(path) as stream:
        lines = Lines(stream, str(path))
        for line in lines:
            found.update(expand(line.strip().partition("|")[0].strip()) or ())
            if len(found) > MAX_NODES:
                raise InvalidInput(lines.where, f"more than {MAX_NODES:,} distinct nodes")
    if not found:
        raise InvalidInput(str(path), "names no node; `malletrain replay --how` prints the sinfo command")
    return frozenset(found)


def _what_was_expected(line: str) -> str:
    if _HEADLESS.match(line):
        return "looks like sacct without its header line: leave --noheader (-n) out"
    return (
        f"begins with {line[:60]!r}: neither node events (a header time,node,state), nor SWF, nor `sacct -P` with "
        "its header line; `malletrain replay --how` prints the sacct command to run"
    )
