"""Tables that people saved: `sinfo` and `squeue` in any of their formats, with a heading or without.

With a heading, columns are known by name. Without one, the state's column and the nodes' (or the job ids') are found
by what all of their values look like; the others are left unread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from statistics import mode
from typing import Any

from malletrain.domain.errors import InvalidInput
from malletrain.domain.snapshot import SlurmState
from malletrain.slurm.formats import hostlist, scalars
from malletrain.slurm.formats.records import JOB_TEXTS, JOB_TIMES, JobRecord, NodeRecord
from malletrain.slurm.formats.states import job_state, meaning, node_state


def _headings(those: Mapping[str, str], own: str) -> dict[str, str]:
    """What each heading means: `those` by their meaning, and the names `own`, which are their own headings."""
    named = {heading: meaning for meaning, words in those.items() for heading in words.split()}
    return named | {name.upper(): name for name in own.split()}


#: Headings of sinfo and squeue (their -o, -O and default formats).
_NODE_HEADINGS = _headings(
    {
        "nodes": "NODELIST HOSTNAMES NODEHOST",
        "state": "STATELONG STATECOMPACT STATECOMPLETE",
        "features": "ACTIVE_FEATURES AVAIL_FEATURES",
        "usage": "CPUS(A/I/O/T)",
    },
    own="state partition cpus memory weight gres reason",
)
_JOB_HEADINGS = _headings(
    {
        "id": "JOBID JOBARRAYID",
        "state": "ST",
        "count": "NODES NUM_NODES",
        "nodes": "NODELIST",
        "nodes_or_reason": "NODELIST(REASON)",
        "limit": "TIME_LIMIT TIMELIMIT",
        "planned_nodes": "SCHEDNODES",
        "excluded_nodes": "EXC_NODES",
        "required_nodes": "REQ_NODES",
        "gres": "TRES_PER_NODE",
        "folder": "WORK_DIR",
    },
    own="partition name user state reason start_time end_time submit_time account qos priority dependency features "
    "comment command",
)

#: Columns of text in which the separator may stand.
_FREE_TEXT = frozenset({"name", "comment", "command", "folder", "reason", "nodes_or_reason", "features"})
#: Where the separator is a comma, in these, too.
_LISTS = frozenset({"nodes", "planned_nodes", "required_nodes", "excluded_nodes", "gres", "dependency"})

#: A heading stands at most so many lines below what a login prints.
MAX_LINES_BEFORE_HEADING = 20
#: Headings are cut to their column's width, as TIME_LIMI is by squeue -l; one that is shorter is not completed.
MIN_HEADING_LETTERS = 8

_WORD = re.compile(r"(?<!\S)\([^()]*\)(?=\s*$)|\S+")

Row = dict[str, str]
#: What the cells of a column look like, for the columns that must be there.
Looks = Mapping[str, Callable[[str], bool]]


def nodes(text: str, where: str) -> list[NodeRecord]:
    """The nodes of a `sinfo` table. A row may stand for many nodes, a node in several rows. Raises `InvalidInput`: no
    column of states, or none of nodes, is recognised."""
    rows: list[NodeRecord] = []
    for line, row in _rows(text, where, _NODE_HEADINGS, {"state": _is_node_state, "nodes": _is_node_list}):
        state = row.get("state", "")
        if "nodes" not in row or not state:
            raise InvalidInput(f"{where}:{line}", "no nodes or no state in this row; save `sinfo` or `sinfo -N -l`")
        label = row.get("partition", "").rstrip("*")
        usage = row.get("usage", "").split("/")
        rows.extend(
            NodeRecord(
                name=name,
                state=state,
                partitions=(label,) if label else (),
                cpus=scalars.number(usage[3] if len(usage) == 4 else row.get("cpus", "")),
                cpus_alloc=scalars.number(usage[0]) if len(usage) == 4 else 0,
                memory_mib=scalars.number(row.get("memory", "")),
                gres=scalars.text_or_empty(row.get("gres", "")),
                features=tuple(part for part in scalars.text_or_empty(row.get("features", "")).split(",") if part),
                weight=scalars.number(row.get("weight", ""), 1),
                reason=scalars.text_or_empty(row.get("reason", "")),
            )
            for name in hostlist.expand(row["nodes"], f"{where}:{line}")
        )
    return rows


def jobs(text: str, where: str) -> list[JobRecord]:
    """The jobs of a `squeue` table; fields whose column is not there stay empty. Raises `InvalidInput`: no column of
    job ids, or none of states, is recognised."""
    return [
        _job(row, f"{where}:{line}")
        for line, row in _rows(text, where, _JOB_HEADINGS, {"state": _is_job_state, "id": _is_job_id})
    ]


def _job(row: Row, where: str) -> JobRecord:
    identity, state = row.get("id", ""), row.get("state", "")
    if not _is_job_id(identity) or not state:
        raise InvalidInput(where, f"no job id or no state in this row ({identity[:40]!r})")
    array, _, rest = identity.partition("_")
    either = row.get("nodes_or_reason", "")
    if either.startswith("("):
        row["reason"] = either.strip("()")
    elif either:
        row["nodes"] = either
    texts: dict[str, Any] = {name: scalars.text_or_empty(row.get(name, "")) for name in ("account", *JOB_TEXTS)}
    try:
        limit = scalars.duration(row.get("limit", ""))
    except InvalidInput:
        limit = None  # nothing rests on that of a table that somebody saved
    try:
        times: dict[str, Any] = {name: scalars.moment(row.get(name, "")) for name in JOB_TIMES}
    except InvalidInput as error:
        raise InvalidInput(where, error.what) from error
    return JobRecord(
        **texts | times,
        id=identity,
        raw_id=scalars.number(identity),
        state=state,
        user=row.get("user", ""),
        name=row.get("name", ""),
        node_count=max(1, scalars.number(row.get("count", ""), 1)),
        array_id=int(array) if rest else None,
        tasks=rest.strip("[]") if rest.startswith("[") else "",
        het_id=scalars.number(identity) if "+" in identity else None,
        time_limit_s=limit,
        priority=scalars.number(row.get("priority", "")) if row.get("priority", "").isdigit() else 0,
    )


def _rows(text: str, where: str, headings: dict[str, str], looks: Looks) -> list[tuple[int, Row]]:
    """(line, row) for each line below the heading; all lines where there is none."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip(" |,#\t")]
    at = _heading(lines, headings, looks)
    if at is None:
        return _without_heading(lines, looks, where)
    heading, body = lines[at][1], lines[at + 1 :]
    separator = _separator(heading)
    if separator is None:
        return _by_position(heading, body, headings, looks)
    known = [_meant(cell, headings) for cell in _cells(heading, separator)]
    return [
        (number, _row(_cells(line, separator), known, separator, looks, f"{where}:{number}")) for number, line in body
    ]


def _heading(lines: Sequence[tuple[int, str]], headings: dict[str, str], looks: Looks) -> int | None:
    """Which of the lines is the heading: sites and logins print theirs above it."""
    for at, (_, line) in enumerate(lines[:MAX_LINES_BEFORE_HEADING]):
        columns = {_meant(cell, headings) for cell in _cells(line, _separator(line))}
        if looks.keys() <= columns or (at == 0 and "state" in columns):
            return at
    return None


def _meant(title: str, headings: dict[str, str]) -> str | None:
    return meaning(headings, title.upper(), MIN_HEADING_LETTERS)


def _without_heading(lines: list[tuple[int, str]], looks: Looks, where: str) -> list[tuple[int, Row]]:
    if lines and lines[0][1].startswith(("Mon ", "Tue ", "Wed ", "Thu ", "Fri ", "Sat ", "Sun ")):
        lines = lines[1:]  # `squeue -l` and `sinfo -l` begin with the time
    if not lines:
        return []
    separator = _separator(lines[0][1])
    cells = {number: _cells(line, separator) for number, line in lines}
    if separator is not None:
        usual = mode(len(row) for row in cells.values())
        for number, row in cells.items():
            if len(row) != usual:
                raise InvalidInput(f"{where}:{number}", _uneven(len(row), usual, separator))
    known = _guess(list(cells.values()), looks, f"{where}:{lines[0][0]}")
    return [(number, _named(row, known)) for number, row in cells.items()]


def _named(cells: Sequence[str], known: Sequence[str | None]) -> Row:
    return {name: cell for name, cell in zip(known, cells, strict=False) if name is not None}


def _row(cells: list[str], known: Sequence[str | None], separator: str, looks: Looks, where: str) -> Row:
    """The row of these cells. Where there are too many, a text holds the separator; one reading must make sense."""
    if len(cells) == len(known) + 1 and not cells[-1]:  # rows that end with the separator
        cells.pop()
    more = len(cells) - len(known)
    if more == 0:
        return _named(cells, known)
    free = _FREE_TEXT | _LISTS if separator == "," else _FREE_TEXT
    readings: list[Row] = []
    for at, name in enumerate(known):
        if more > 0 and name in free and (name != "nodes_or_reason" or cells[at].startswith("(")):
            row = _named([*cells[:at], separator.join(cells[at : at + more + 1]), *cells[at + more + 1 :]], known)
            if _plausible(row, looks) and row not in readings:
                readings.append(row)
    if len(readings) != 1:
        raise InvalidInput(where, _uneven(len(cells), len(known), separator))
    return readings[0]


def _uneven(found: int, wanted: int, separator: str) -> str:
    return (
        f"{found} columns, not {wanted}: cut off, or a name holds {separator!r} or a line break; "
        "save the command's own format, or --json"
    )


def _plausible(row: Row, looks: Looks) -> bool:
    return all(is_such(row.get(name, "")) for name, is_such in looks.items())


def _separator(line: str) -> str | None:
    """What parts the columns of this line; None: blanks."""
    for candidate in ("|#", "|", "\t", ";"):
        if candidate in line:
            return candidate
    outside = "".join(part.partition("[")[0] for part in line.split("]"))
    return "," if "," in outside and " " not in line.strip() else None


def _cells(line: str, separator: str | None) -> list[str]:
    if separator == ",":
        cells, depth, cell = [], 0, ""
        for char in line.strip():
            depth += (char == "[") - (char == "]")
            if char == "," and depth <= 0:
                cells.append(cell)
                cell = ""
            else:
                cell += char
        return [*cells, cell]
    return [cell.strip() for cell in line.split(separator)] if separator else line.split()


def _by_position(
    heading: str, body: Sequence[tuple[int, str]], headings: dict[str, str], looks: Looks
) -> list[tuple[int, Row]]:
    """Columns of blanks: a cell belongs to the heading that it lies under; names hold blanks, empty cells exist."""
    spans = [(start, end, _meant(title, headings)) for start, end, title in _words(heading)]
    rows = []
    for number, line in body:
        words = _words(line)
        readings = [_under(words, spans)]
        if len(words) == len(spans):  # the usual case; wide cells shift those after them
            readings.insert(0, _named([cell for _, _, cell in words], [name for _, _, name in spans]))
        rows.append((number, next((row for row in readings if _plausible(row, looks)), readings[0])))
    return rows


def _words(line: str) -> list[tuple[int, int, str]]:
    """Begin, end and text of each word; `(ReqNodeNotAvail, Reserved for maintenance)` at the end is one."""
    return [(found.start(), found.end(), found[0]) for found in _WORD.finditer(line)]


def _under(words: Sequence[tuple[int, int, str]], spans: Sequence[tuple[int, int, str | None]]) -> Row:
    row: Row = {}
    last = spans[-1][0]
    for start, end, cell in words:
        best = min(spans, key=lambda span, s=start, e=end: max(span[0] - e, s - span[1], 0))  # type: ignore[misc]
        name = spans[-1][2] if start >= last else best[2]
        if name:
            row[name] = f"{row[name]} {cell}" if name in row else cell
    return row


def _guess(rows: list[list[str]], looks: Looks, where: str) -> list[str | None]:
    width = min(len(cells) for cells in rows)
    known: list[str | None] = [None] * width
    # Names of nodes bear numbers; names of partitions look like node lists otherwise.
    numbered = [sum(any(c.isdigit() for c in cells[at]) for cells in rows) * 2 > len(rows) for at in range(width)]
    for name, is_such in looks.items():
        for column in range(width):
            if name == "nodes" and not numbered[column]:
                continue
            if known[column] is None and all(is_such(cells[column]) for cells in rows):
                known[column] = name
                break
        else:
            raise InvalidInput(
                where, f"no column of {name} can be recognised; save the command's own format, or --json"
            )
    return known


def _is_node_state(cell: str) -> bool:
    return bool(cell) and not cell.isdigit() and not node_state(cell).unknown


def _is_job_state(cell: str) -> bool:
    words = cell.split()
    return bool(words) and job_state(words[0]) is not SlurmState.UNKNOWN


def _is_job_id(cell: str) -> bool:
    head = cell.replace("+", "_").partition("_")[0]
    return head.isascii() and head.isdigit() and 0 < len(head) < 11


def _is_node_list(cell: str) -> bool:
    if not cell or not any(char.isalpha() for char in cell) or "/" in cell or cell in hostlist.EMPTY:
        return False
    try:
        hostlist.size(cell)
    except InvalidInput:
        return False
    return all(char.isalnum() or char in "_.-[]," for char in cell)
