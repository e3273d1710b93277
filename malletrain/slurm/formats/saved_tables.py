"""Tables that people saved: `sinfo` and `squeue` in any of their formats, whose columns the heading names.

A row that does not fit its heading is refused by its line: JSON (`--json`) is the form that nothing can spoil.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from malletrain.domain.errors import InvalidInput
from malletrain.domain.snapshot import SlurmState
from malletrain.slurm.formats import hostlist, scalars
from malletrain.slurm.formats.records import JOB_TEXTS, JOB_TIMES, JobRecord, NodeRecord
from malletrain.slurm.formats.states import job_state


def _by_heading(spellings: Mapping[str, str]) -> dict[str, str]:
    return {heading: meaning for meaning, those in spellings.items() for heading in those.split()}


#: What the headings of sinfo and squeue (their -o, -O and default formats) mean here.
_NODE_HEADINGS = _by_heading(
    {
        "nodes": "NODELIST HOSTNAMES NODEHOST",
        "state": "STATE STATELONG STATECOMPACT",
        "partition": "PARTITION",
        "cpus": "CPUS",
        "usage": "CPUS(A/I/O/T)",
        "memory": "MEMORY",
        "weight": "WEIGHT",
        "gres": "GRES",
        "features": "ACTIVE_FEATURES AVAIL_FEATURES",
        "reason": "REASON",
    }
)
_JOB_HEADINGS = _by_heading(
    {
        "id": "JOBID JOBARRAYID",
        "state": "ST STATE",
        "nodes": "NODELIST",
        "nodes_or_reason": "NODELIST(REASON)",
        "count": "NODES NUM_NODES",
        "limit": "TIME_LIMIT TIMELIMIT",
        "planned_nodes": "SCHEDNODES",
        "excluded_nodes": "EXC_NODES",
        "required_nodes": "REQ_NODES",
        "gres": "TRES_PER_NODE",
        **{
            name: name.upper()
            for name in (
                "partition",
                "name",
                "user",
                "reason",
                "account",
                "qos",
                "priority",
                "dependency",
                "features",
            )
        },
        **{name: name.upper() for name in JOB_TIMES},
    }
)

#: A heading stands at most so many lines below what a login prints.
MAX_LINES_BEFORE_HEADING = 20
#: Headings are cut to their column's width, as TIME_LIMI is by squeue -l; one that is shorter is not completed.
MIN_HEADING_LETTERS = 8

_WORD = re.compile(r"(?<!\S)\([^()]*\)(?=\s*$)|\S+")

Row = dict[str, str]


def nodes(text: str, where: str) -> list[NodeRecord]:
    """The nodes of a `sinfo` table. A row may stand for many nodes, a node in several rows. Raises `InvalidInput`: no
    heading has columns of states and nodes, or a row does not fit it."""
    rows: list[NodeRecord] = []
    for line, row in _rows(text, where, _NODE_HEADINGS, {"state", "nodes"}):
        if not row.get("nodes") or not row.get("state"):
            raise InvalidInput(f"{where}:{line}", "no nodes or no state in this row; save `sinfo` or `sinfo -N -l`")
        label = row.get("partition", "").rstrip("*")
        usage = row.get("usage", "").split("/")
        rows.extend(
            NodeRecord(
                name=name,
                state=row["state"],
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
    """The jobs of a `squeue` table; fields whose column is not there stay empty. Raises `InvalidInput`: no heading
    has columns of job ids and states, or a row does not fit it."""
    return [_job(row, f"{where}:{line}") for line, row in _rows(text, where, _JOB_HEADINGS, {"state", "id"})]


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


def _is_job_id(cell: str) -> bool:
    head = cell.replace("+", "_").partition("_")[0]
    return head.isascii() and head.isdigit() and 0 < len(head) < 11


def _rows(text: str, where: str, headings: Mapping[str, str], needed: set[str]) -> list[tuple[int, Row]]:
    """(line, row) for each line below the heading: sites and logins print theirs above it."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip(" |,#\t")]
    for at, (_, heading) in enumerate(lines[:MAX_LINES_BEFORE_HEADING]):
        separator = next((each for each in ("|", "\t", ";", ",") if each in heading), None)
        cells = _cells(heading, separator)
        known = [_meant(cell, headings) for cell in cells]
        if not needed <= set(known):
            continue
        if separator is None:
            return [(number, _by_position(heading, line, known)) for number, line in lines[at + 1 :]]
        return [
            (number, _by_separator(_cells(line, separator), known, separator, f"{where}:{number}"))
            for number, line in lines[at + 1 :]
        ]
    if lines:
        what = f"no heading names columns of {' and '.join(sorted(needed))}"
        raise InvalidInput(f"{where}:{lines[0][0]}", f"{what}: save the table with its heading (no -h), or --json")
    return []


def _cells(line: str, separator: str | None) -> list[str]:
    return [cell.strip() for cell in line.split(separator)]


def _meant(title: str, headings: Mapping[str, str]) -> str | None:
    title = title.upper()
    if title in headings or len(title) < MIN_HEADING_LETTERS:
        return headings.get(title)
    meant = {meaning for whole, meaning in headings.items() if whole.startswith(title)}
    return meant.pop() if len(meant) == 1 else None


def _by_separator(cells: list[str], known: Sequence[str | None], separator: str, where: str) -> Row:
    if len(cells) == len(known) + 1 and not cells[-1]:  # rows that end with the separator
        cells.pop()
    if len(cells) != len(known):
        raise InvalidInput(
            where,
            f"{len(cells)} columns, not {len(known)}: cut off, or a name or list holds {separator!r}; save --json",
        )
    return _named(cells, known)


def _named(cells: Sequence[str], known: Sequence[str | None]) -> Row:
    return {name: cell for name, cell in zip(known, cells, strict=True) if name is not None}


def _by_position(heading: str, line: str, known: Sequence[str | None]) -> Row:
    """Columns of blanks: a cell belongs to the heading that it lies under; names hold blanks, empty cells exist."""
    titles, words = _words(heading), _words(line)
    under: Row = {}
    for start, end, cell in words:
        distances = [max(begin - end, start - stop, 0) for begin, stop, _ in titles]
        name = known[-1] if start >= titles[-1][0] else known[distances.index(min(distances))]
        if name:
            under[name] = f"{under[name]} {cell}" if name in under else cell
    if len(words) != len(titles):
        return under
    # The usual case, in which wide cells may shift those after them; or a name of two words beside an empty cell.
    in_order = _named([cell for _, _, cell in words], known)
    return under if "id" in known and _has_state(under) and not _has_state(in_order) else in_order


def _has_state(row: Row) -> bool:
    return job_state(row.get("state", "")) is not SlurmState.UNKNOWN


def _words(line: str) -> list[tuple[int, int, str]]:
    """Begin, end and text of each word; `(ReqNodeNotAvail, Reserved for maintenance)` at the end is one."""
    return [(found.start(), found.end(), found[0]) for found in _WORD.finditer(line)]
