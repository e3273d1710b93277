"""Opens a trace, plain or gzip, and reads it line by line within bounded memory."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from malletrain.domain.errors import InvalidInput
from malletrain.replay.traces.trace import Tally

#: A line of a job log is a few kB; a node list of a 10,000-node job at its worst about 200 kB.
MAX_LINE_BYTES = 4 << 20

#: What Slurm's commands write to standard error begins so; people save it with the rest.
ERRORS = (b"sacct: ", b"sacctmgr: ", b"sinfo: ", b"slurm: ", b"slurmdbd: ")


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of `path`, decompressed where it is gzip; `-` is standard input.
    Raises InvalidInput: there is no such file, it is a folder, or it may not be read."""
    try:
        raw: BinaryIO = sys.stdin.buffer if str(path) == "-" else path.open("rb")
    except OSError as error:
        raise InvalidInput(str(path), f"cannot be read: {error.strerror}") from error
    with raw:
        buffered = io.BufferedReader(raw) if not isinstance(raw, io.BufferedReader) else raw  # type: ignore[type-var]
        if buffered.peek(2)[:2] == b"\x1f\x8b":  # gzip
            with io.BufferedReader(gzip.GzipFile(fileobj=buffered), 1 << 18) as unpacked:
                yield unpacked
        else:
            yield buffered


class Lines:
    """The lines of a stream as text, numbered from 1. Undecodable bytes become U+FFFD; a line longer than
    `MAX_LINE_BYTES` bytes is counted as skipped and never held in memory. `number` is that of the line given last;
    `tally` counts what is left out."""

    def __init__(self, stream: BinaryIO, source: str) -> None:
        self.stream, self.source, self.tally = stream, source, Tally()
        self.number = 0
        self._lines = self._read()

    @property
    def where(self) -> str:
        """File and line, for an error."""
        return f"{self.source}:{self.number}"

    def first(self) -> str:
        """The next line with text, with which the lines then begin; empty where there is none."""
        for line in self._lines:
            if line.strip():
                self._lines = chain([line], self._lines)
                return line
        return ""

    def __iter__(self) -> Iterator[str]:
        return self._lines

    def _read(self) -> Iterator[str]:
        readline = self.stream.readline
        try:
            while raw := readline(MAX_LINE_BYTES + 1):
                self.number += 1
                if len(raw) > MAX_LINE_BYTES:
                    self._leave_out(raw)
                    continue
                if raw.startswith(ERRORS):
                    self.tally.skip("an error of Slurm's command", self.number)
                    continue
                if b"\x00" in raw:
                    self.tally.skip("holds NUL bytes", self.number)
                    continue
                yield raw.decode("utf-8-sig", "replace").rstrip("\r\n")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            where = f"{self.source}:{self.number + 1}"
            raise InvalidInput(where, f"the gzip file is damaged or cut off ({error}); copy it again") from error
        except OSError as error:
            raise InvalidInput(f"{self.source}:{self.number + 1}", f"cannot be read: {error}") from error

    def _leave_out(self, raw: bytes) -> None:
        self.tally.skip(f"longer than {MAX_LINE_BYTES >> 20} MiB", self.number)
        while raw and not raw.endswith(b"\n"):
            raw = self.stream.readline(MAX_LINE_BYTES)
