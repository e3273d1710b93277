"""Tables that people saved: `sinfo` and `squeue` in any of their formats, with a heading or without.

With a heading, columns are known by name. Without one, the state's column and the nodes' (or the job ids') are found
by what all of their values look like; the others are left unread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from malletrain.domain.errors import InvalidInput
from malletrain.slurm.formats import hostlist, scalars
from malletrain.slurm.formats.records import JobRecord, NodeRecord
from malletrain.slurm.formats.states import JOB_WORDS, node_state

#: Headings of sinfo and squeue (their -o, -O and default formats) by what they mean here.
_NODE_HEADINGS = {
    "NODELIST": "nodes", "HOSTNAMES": "nodes", "NODEHOST": "nodes", "STATE": "state", "STATELONG": "state",
    "STATECOMPACT": "state", "STATECOMPLETE": "state", "PARTITION": "partition", "CPUS": "cpus", "MEMORY": "memory",
    "WEIGHT": "weight", "GRES": "gres", "ACTIVE_FEATURES": "features", "AVAIL_FEATURES": "features",
    "REASON": "reason", "CPUS(A/I/O/T)": "usage",
}  # fmt: skip
_JOB_HEADINGS = {
    "JOBID": "id", "JOBARRAYID": "id", "ARRAY_JOB_ID": "array", "PARTITION": "partition", "NAME": "name",
    "USER": "user", "ST": "state", "STATE": "state", "NODES": "count", "NUM_NODES": "count", "REASON": "reason",
    "NODELIST": "nodes", "NODELIST(REASON)": "nodes_or_reason", "TIME_LIMIT": "limit", "TIMELIMIT": "limit",
    "START_TIME": "start", "END_TIME": "end", "SUBMIT_TIME": "submit", "SCHEDNODES": "planned", "ACCOUNT": "account",
    "QOS": "qos", "PRIORITY": "priority", "DEPENDENCY": "dependency", "EXC_NODES": "excluded",
    "REQ_NODES": "required", "FEATURES": "features", "TRES_PER_NODE": "gres",
}  # fmt: skip

Row = dict[str, str]


def nodes(text: str, where: str) -> list[NodeRecord]:
    """The nodes of a `sinfo` table. A row may stand for many nodes, a node in several rows.

    Raises:
        InvalidInput: no column of states, or none of nodes, is recognised.
    """
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
    """The jobs of a `squeue` table; fields whose column is not there stay empty.

    Raises:
        InvalidInput: no column of job ids, or none of states, is recognised.
    """
    return [
        _job(row, f"{where}:{line}")
        for line, row in _rows(text, where, _JOB_HEADINGS, {"state": _is_job_state, "id": _is_job_id})
    ]


def _job(row: Row, where: str) -> JobRecord:
    identity, state = row.get("id", ""), row.get("state", "")
    if not _is_job_id(identity) or not state:
        raise InvalidInput(where, f"no job id or no state in this row ({identity[:40]!r})")
    array, _, rest = identity.partition("_")
    nodes, reason = row.get("nodes", ""), row.get("reason", "")
    either = row.get("nodes_or_reason", "")
    if either.startswith("("):
        reason = either.strip("()")
    elif either:
        nodes = either
    return JobRecord(
        id=identity,
        raw_id=scalars.number(identity),
        state=state,
        user=row.get("user", ""),
        account=scalars.text_or_empty(row.get("account", "")),
        partition=row.get("partition", ""),
        qos=scalars.text_or_empty(row.get("qos", "")),
        reason=scalars.text_or_empty(reason),
        name=row.get("name", ""),
        node_count=max(1, scalars.number(row.get("count", ""), 1)),
        array_id=int(array) if rest else None,
        tasks=rest.strip("[]") if rest.startswith("[") else "",
        het_id=scalars.number(identity) if "+" in identity else None,
        time_limit_s=_try(scalars.duration, row.get("limit", "")),
        submit_time=_try(scalars.moment, row.get("submit", "")),
        start_time=_try(scalars.moment, row.get("start", "")),
        end_time=_try(scalars.moment, row.get("end", "")),
        nodes=scalars.text_or_empty(nodes),
        planned_nodes=scalars.text_or_empty(row.get("planned", "")),
        required_nodes=scalars.text_or_empty(row.get("required", "")),
        excluded_nodes=scalars.text_or_empty(row.get("excluded", "")),
        features=scalars.text_or_empty(row.get("features", "")),
        gres=scalars.text_or_empty(row.get("gres", "")),
        dependency=scalars.text_or_empty(row.get("dependency", "")),
        priority=scalars.number(row.get("priority", "")) if row.get("priority", "").isdigit() else 0,
    )


def _try(read: Callable[[str], float | None], value: str) -> float | None:
    """A value that nothing rests on in a table that somebody saved: unreadable is unknown."""
    try:
        return read(value)
    except InvalidInput:
        return None


def _rows(
    text: str, where: str, headings: dict[str, str], looks: dict[str, Callable[[str], bool]]
) -> list[tuple[int, Row]]:
    """(line, row) for each line but the heading."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip(" |,#\t")]
    if lines and lines[0][1].startswith(("Mon ", "Tue ", "Wed ", "Thu ", "Fri ", "Sat ", "Sun ")):
        lines = lines[1:]  # `squeue -l` and `sinfo -l` begin with the time
    if not lines:
        return []
    separator = _separator(lines[0][1])
    first = _cells(lines[0][1], separator)
    columns = [headings.get(cell.upper()) for cell in first]
    required = set(looks)
    if required <= set(columns) or ("state" in columns and len(required & set(columns)) >= 1 and None not in first):
        known: Sequence[str | None] = columns
        body = lines[1:]
        if separator is None:
            return _by_position(lines[0][1], body, headings)
    else:
        body = lines
        known = _guess([_cells(line, separator) for _, line in body], looks, where)
    rows = []
    for number, line in body:
        cells = _cells(line, separator)
        rows.append((number, {name: cell for name, cell in zip(known, cells, strict=False) if name is not None}))
    return rows


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


def _by_position(heading: str, body: list[tuple[int, str]], headings: dict[str, str]) -> list[tuple[int, Row]]:
    """Columns of blanks: a cell belongs to the heading that it lies under; names hold blanks, empty cells exist."""
    spans: list[tuple[int, int, str | None]] = []
    at = 0
    for title in heading.split():
        start = heading.index(title, at)
        at = start + len(title)
        spans.append((start, at, headings.get(title.upper())))
    rows = []
    for number, line in body:
        row: Row = {}
        words: list[tuple[int, int, str]] = []
        at = 0
        for cell in line.split():
            start = line.index(cell, at)
            at = start + len(cell)
            words.append((start, at, cell))
        if len(words) == len(spans):  # the usual case; wide cells shift those after them
            row = {name: cell for (_, _, name), (_, _, cell) in zip(spans, words, strict=True) if name}
        else:
            last = spans[-1][0]
            for start, end, cell in words:
                best = min(spans, key=lambda span, s=start, e=end: max(span[0] - e, s - span[1], 0))  # type: ignore[misc]
                name = spans[-1][2] if start >= last else best[2]
                if name:
                    row[name] = f"{row[name]} {cell}" if name in row else cell
        rows.append((number, row))
    return rows


def _guess(rows: list[list[str]], looks: dict[str, Callable[[str], bool]], where: str) -> list[str | None]:
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
    return bool(words) and words[0].upper() in JOB_WORDS


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
