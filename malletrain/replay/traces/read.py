"""Tells a trace's format by its content and reads it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from datetime import UTC, tzinfo
from pathlib import Path
from typing import BinaryIO

from malletrain.domain.errors import InvalidInput
from malletrain.replay.traces.events import is_events_header, read_events
from malletrain.replay.traces.sacct import is_sacct_header, read_sacct
from malletrain.replay.traces.source import ERRORS, Lines, opened, read_chunk
from malletrain.replay.traces.swf import looks_like_swf, read_swf
from malletrain.replay.traces.trace import MAX_NODES, Tally, Trace
from malletrain.replay.traces.words import TimeParser, expand

#: Bytes at the start of a file from which its format is recognised.
HEAD_BYTES = 1 << 16

#: Formats that are refused, by their first bytes.
_NOT_READ = {
    b"\xff\xfe": "text in UTF-16, as PowerShell writes it",
    b"\xfe\xff": "text in UTF-16",
    b"BZh": "compressed by bzip2",
    b"\xfd7zXZ": "compressed by xz",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
    b"PK\x03\x04": "a zip archive",
    b"SQLite format 3": "a database",
    b"\x80": "a Python pickle, which is never opened",
}

_HEADLESS = re.compile(r"\d+(?:_\d+)?(?:\.\w+)?[^\w.]{1,4}[^ ]*[A-Z]{6}")


def read_trace(path: Path, zone: tzinfo = UTC, ignore_partitions: frozenset[str] = frozenset()) -> Trace:
    """Reads node events, SWF or `sacct -P`, plain or gzip; `-` is standard input.

    Times without an offset are local to `zone`. Jobs of `ignore_partitions` (sacct) count as idle time.

    Raises:
        InvalidInput: not one of these formats, damaged, or without a single usable record.
    """
    source, tally = str(path), Tally()
    with opened(path) as raw:
        head = read_chunk(raw, HEAD_BYTES, source)
        for magic, kind in _NOT_READ.items():
            if head.startswith(magic):
                raise InvalidInput(source, f"is {kind}; turn it into plain UTF-8 text or gzip first")
        stream: BinaryIO = io.BufferedReader(_Joined(head, raw), 1 << 18)
        line = ""
        for line in _first_lines(head):
            if line.encode().startswith(ERRORS):
                continue
            lines = Lines(stream, source, tally)
            if is_events_header(line):
                return read_events(lines, tally, TimeParser(zone))
            if is_sacct_header(line):
                return read_sacct(lines, tally, TimeParser(zone), ignore_partitions)
            if looks_like_swf(line):
                return read_swf(lines, tally)
            raise InvalidInput(f"{source}:1", _what_was_expected(line))
    raise InvalidInput(source, f"holds nothing but {line[:200]!r}" if line else "is empty")


def read_machine(path: Path) -> frozenset[str]:
    """The machine's nodes, since a job log names only those that ran one: the output of
    `sinfo --Node --noheader --format='%N'`, of which lines may have more fields, separated by `|`.

    Raises:
        InvalidInput: it cannot be read, or names no node.
    """
    found: set[str] = set()
    with opened(path) as stream:
        lines = Lines(stream, str(path), Tally())
        for line in lines:
            found.update(expand(line.strip().partition("|")[0].strip()) or ())
            if len(found) > MAX_NODES:
                raise InvalidInput(f"{path}:{lines.number}", f"more than {MAX_NODES:,} distinct nodes")
    if not found:
        raise InvalidInput(str(path), "names no node; `malletrain replay --how` prints the sinfo command")
    return frozenset(found)


def _first_lines(head: bytes) -> Iterator[str]:
    for line in head.decode("utf-8", "replace").splitlines():
        if line.strip():
            yield line


def _what_was_expected(line: str) -> str:
    if _HEADLESS.match(line):
        return "looks like sacct without its header line: leave --noheader (-n) out"
    return (
        f"begins with {line[:60]!r}: neither node events (a header time,node,state), nor SWF, nor `sacct -P` with "
        "its header line; `malletrain replay --how` prints the sacct command to run"
    )


class _Joined(io.RawIOBase):
    """The bytes already looked at, then the rest of the stream."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self.head, self.rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self.head[: len(buffer)]
        if data:
            self.head = self.head[len(data) :]
        else:
            data = self.rest.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
