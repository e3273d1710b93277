"""Rows of `sacct -P` and `sacctmgr -P`: columns by header, any delimiter, names that hold the delimiter."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from malletrain.domain.errors import InvalidInput
from malletrain.replay.traces.source import Lines

#: Columns whose text is the user's: it may hold the delimiter and line breaks.
FREE_TEXT = re.compile(
    r"jobname|\w*comment|submitline|workdir|reason|wckey|extra|std(in|out|err)|container|constraints|licenses"
)

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
    """Yields each record by the lower-case names of its columns; one that the log lacks is "".

    A row with more delimiters than columns holds them in free text: columns before all such text are counted from the
    left, those behind it from the right. Where another column stands between two of them, the row is skipped.
    """

    def __init__(self, lines: Lines, required: Collection[str]) -> None:
        self.lines, self.tally, self.required = lines, lines.tally, required
        self.delimiter = "|"
        self.names: list[str] = []
        self.free: list[int] = []

    def __iter__(self) -> Iterator[Mapping[str, str]]:
        begun: list[str] = []  # lines of a record that a line break in a free text has cut
        begun_at = 0
        for line in self.lines:
            if not self.names or (line[:1].isalpha() and self._is_header(line)):
                if self.names:
                    self.tally.skip("another header", self.lines.number)
                if line.strip():
                    self._read_header(line)
                begun = []
                continue
            fields = line.split(self.delimiter)
            may_begin = self._may_begin(fields)
            if begun and may_begin and len(fields) >= len(self.names):
                self.tally.skip("too few fields", begun_at)
                begun = []
            if not begun:
                if not line.strip():
                    continue
                if not may_begin:  # what a line break in its last column had cut off a record, or rubbish
                    self.tally.skip("not the begin of a record", self.lines.number)
                    continue
                begun_at = self.lines.number
            begun.append(line)
            fields = "\n".join(begun).split(self.delimiter)
            if len(fields) >= len(self.names):
                begun = []
                record = self._row(fields)
                if record is None:
                    self.tally.skip("more separators than columns", self.lines.number)
                else:
                    yield record
            elif len(begun) > 1_000:  # though a record may hold line breaks
                self.tally.skip("too few fields", begun_at)
                begun = []
        if begun:
            self.tally.skip("too few fields", begun_at)

    def _read_header(self, line: str) -> None:
        parsed = header_of(line)
        missing = [name for name in self.required if parsed is None or name not in parsed[1]]
        if parsed is None or missing:
            raise InvalidInput(
                self.lines.where,
                f"the header lacks {', '.join(missing)}; `malletrain replay --how` prints the command that gives all",
            )
        self.delimiter, self.names = parsed
        self.free = [i for i, name in enumerate(self.names) if FREE_TEXT.fullmatch(name)]

    def _is_header(self, line: str) -> bool:
        """Whether logs put together begin anew here, be it with other columns or another delimiter."""
        parsed = header_of(line)
        return parsed is not None and set(self.required) <= set(parsed[1])

    def _may_begin(self, fields: list[str]) -> bool:
        """Whether a line can begin a record: its job id looks like one, or lies beyond its end."""
        at = self.names.index("jobid") if "jobid" in self.names else len(fields)
        return at >= len(fields) or fields[at].strip()[:1].isdigit()

    def _row(self, fields: list[str]) -> Mapping[str, str] | None:
        names, extra = self.names, len(fields) - len(self.names)
        if extra == 1 and not fields[-1]:  # the trailing delimiter of `sacct -p`
            extra = 0
        if extra:
            first, last = (self.free[0], self.free[-1]) if self.free else (0, -1)
            if not self.free or last - first + 1 > len(self.free):
                return None
            names = [*names[:first], *names[last + 1 :]]
            fields = [*fields[:first], *fields[last + 1 + extra :]]
        found = ((name, text.strip()) for name, text in zip(names, fields, strict=False))
        return defaultdict(str, found)
