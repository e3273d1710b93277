"""Rows of `sacct -P` and `sacctmgr -P`: columns by header, any delimiter, names that hold the delimiter."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from malletrain.domain.errors import InvalidInput
from malletrain.replay.traces.source import Lines
from malletrain.replay.traces.trace import Tally

#: Columns whose text is the user's: it may hold the delimiter and line breaks.
FREE_TEXT = frozenset(
    {"jobname", "comment", "admincomment", "systemcomment", "submitline", "workdir", "reason", "wckey", "extra",
     "stdout", "stderr", "stdin", "container", "constraints", "licenses"}
)  # fmt: skip

#: A record that holds line breaks is put together from at most so many lines.
MAX_LINES_IN_RECORD = 1_000

_FIRST_FIELD = re.compile(r"\s*([A-Za-z]+)([^A-Za-z0-9]{1,4})(?=[A-Za-z])")


def header_of(line: str) -> tuple[str, list[str]] | None:
    """The delimiter and the lower-case column names, None where the line is no header with at least two columns."""
    line = line.lstrip("\ufeff")
    match = _FIRST_FIELD.match(line)
    if match is None:
        return None
    delimiter = match[2].strip() or match[2]
    names = [name.strip().lower() for name in line.split(delimiter)]
    while names and not names[-1]:  # `sacct -p` ends each line with the delimiter
        names.pop()
    if not all(name.replace("_", "").isalpha() for name in names) or len(names) < 2:
        return None
    return delimiter, names


class Table:
    """Yields each record's wanted fields in the order asked for; a column the log lacks gives "".

    In a row with more delimiters than columns, some free text holds them: each free-text column in turn is taken to
    hold them all, and where the `plausible` readings agree that is the record; else it is counted as skipped.
    """

    def __init__(
        self, lines: Lines, tally: Tally, wanted: tuple[str, ...], required: tuple[str, ...],
        plausible: Callable[[list[str]], bool] = lambda record: True,
    ) -> None:  # fmt: skip
        self.lines, self.tally, self.plausible = lines, tally, plausible
        self.wanted, self.required = wanted, required
        self.delimiter = "|"
        self.names: list[str] = []
        self.picks: list[int] = []
        self.free: list[int] = []

    def __iter__(self) -> Iterator[list[str]]:
        pending: list[str] = []
        pending_line = 0
        for line in self.lines:
            if not self.names:
                if line.strip():
                    self._read_header(line)
                continue
            if line[:1].isalpha() and self._is_header(line):
                self._read_header(line)
                self.tally.skip("another header", self.lines.number)
                pending = []
                continue
            fields = line.split(self.delimiter)
            whole = len(fields) >= len(self.names)
            if pending and (not whole or not self._may_begin(fields)):
                # The line continues a record that a line break in a free text had cut.
                joined = "\n".join([*pending, line]).split(self.delimiter)
                if len(joined) < len(self.names):
                    pending.append(line)
                    if len(pending) > MAX_LINES_IN_RECORD:
                        self.tally.skip("too few fields", pending_line)
                        pending = []
                    continue
                pending = []
                fields = joined
            elif pending:
                self.tally.skip("too few fields", pending_line)
                pending = []
            elif not line.strip():
                continue
            elif not whole:
                if self._may_begin(fields):
                    pending, pending_line = [line], self.lines.number
                else:  # what a line break in its last column had cut off a record, or rubbish
                    self.tally.skip("not the begin of a record", self.lines.number)
                continue
            record = self._pick(fields)
            if record is None:
                self.tally.skip("more separators than columns", self.lines.number)
            else:
                yield record
        if pending:
            self.tally.skip("too few fields", pending_line)

    def _read_header(self, line: str) -> None:
        parsed = header_of(line)
        missing = [name for name in self.required if parsed is None or name not in parsed[1]]
        if parsed is None or missing:
            raise InvalidInput(
                f"{self.lines.source}:{self.lines.number}",
                f"the header lacks {', '.join(missing)}; `malletrain replay --how` prints the command that gives all",
            )
        self.delimiter, self.names = parsed
        place: Mapping[str, int] = {name: i for i, name in reversed(list(enumerate(self.names)))}
        self.picks = [place.get(name, -1) for name in self.wanted]
        self.free = [i for i, name in enumerate(self.names) if name in FREE_TEXT]

    def _is_header(self, line: str) -> bool:
        """Whether logs put together begin anew here, be it with other columns or another delimiter."""
        parsed = header_of(line)
        return parsed is not None and set(self.required) <= set(parsed[1])

    def _may_begin(self, fields: list[str]) -> bool:
        """Whether a line can begin a record: its job id looks like one, or lies beyond its end."""
        at = self.names.index("jobid") if "jobid" in self.names else len(fields)
        return at >= len(fields) or fields[at].strip()[:1].isdigit()

    def _pick(self, fields: list[str]) -> list[str] | None:
        extra = len(fields) - len(self.names)
        if extra == 1 and not fields[-1]:  # the trailing delimiter of `sacct -p`
            extra = 0
        if extra == 0:
            return [fields[i] if i >= 0 else "" for i in self.picks]
        readings: list[list[str]] = []
        for holder in self.free:
            shifted = [
                "" if i in (-1, holder) else fields[i + extra] if i > holder else fields[i] for i in self.picks
            ]
            if shifted not in readings and self.plausible(shifted):
                readings.append(shifted)
        return readings[0] if len(readings) == 1 else None
