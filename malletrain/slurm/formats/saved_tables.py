"""Tables that people saved: of `sinfo` and `squeue` with `-o` and `|` between the columns, below the heading.

Columns are known by their headings. Default tables part columns by blanks, which names and reasons hold too, and cut
words off: they are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from malletrain.domain.errors import InvalidInput
from malletrain.slurm.formats import hostlist, scalars
from malletrain.slurm.formats.records import JOB_TEXTS, JOB_TIMES, JobRecord, NodeRecord


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

#: What can be read for certain.
_SAVE = "`sinfo --json`, `squeue --json`, sinfo -N -o '%N|%T|%R|%c|%m' or squeue -o '%i|%T|%P|%u|%D|%N|%r'"

#: A heading stands at most so many lines below what a login prints.
MAX_LINES_BEFORE_HEADING = 20

Row = dict[str, str]


def nodes(text: str, where: str) -> list[NodeRecord]:
    """The nodes of a `sinfo` table. A row may stand for many nodes, a node in several rows. Raises `InvalidInput`:
    there is no heading with nodes and states, or a row that cannot be read."""
    rows: list[NodeRecord] = []
    for line, row in _rows(text, where, _NODE_HEADINGS, ("state", "nodes")):
        if not row["nodes"] or not row["state"]:
            raise InvalidInput(f"{where}:{line}", "no nodes or no state in this row")
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
    """The jobs of a `squeue` table; fields whose column is not there stay empty. Raises `InvalidInput`: there
    is no heading with job ids and states, or a row that cannot be read."""
    return [_job(row, f"{where}:{line}") for line, row in _rows(text, where, _JOB_HEADINGS, ("state", "id"))]


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


def _rows(text: str, where: str, headings: dict[str, str], needed: Sequence[str]) -> list[tuple[int, Row]]:
    """(line, row) for each line below the heading: sites and logins print theirs above it."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip(" |")]
    for at, (_, line) in enumerate(lines[:MAX_LINES_BEFORE_HEADING]):
        known = [headings.get(cell.upper()) for cell in _cells(line)]
        if set(needed) <= set(known):
            return [(number, _row(row, known, f"{where}:{number}")) for number, row in lines[at + 1 :]]
    raise InvalidInput(where, f"no heading with {' and '.join(needed)} between |; save {_SAVE}")


def _row(line: str, known: Sequence[str | None], where: str) -> Row:
    cells = _cells(line)
    if len(cells) == len(known) + 1 and not cells[-1]:  # rows that end with the separator
        cells.pop()
    if len(cells) != len(known):
        cut = "cut off, or a name holds '|' or a line break"
        raise InvalidInput(where, f"{len(cells)} columns, not {len(known)}: {cut}; save {_SAVE}")
    return {name: cell for name, cell in zip(known, cells, strict=True) if name is not None}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")]


def _is_job_id(cell: str) -> bool:
    head = cell.replace("+", "_").partition("_")[0]
    return head.isascii() and head.isdigit() and 0 < len(head) < 11
