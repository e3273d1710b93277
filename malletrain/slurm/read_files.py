"""A snapshot from a folder of saved outputs: what `malletrain snapshot --from DIR` reads.

Files, whichever are there: `scontrol-show-node`, `sinfo`, `squeue`, `reservations`; each `.txt` or `.json`, of the
commands or of slurmrestd, of any release, also `.gz`. `scontrol-show-node` goes before `sinfo`, which shows less.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from malletrain.domain.errors import InvalidInput
from malletrain.domain.snapshot import Snapshot
from malletrain.slurm.formats import json_shapes, normalise, saved_tables, text

#: Unpacked files larger than this are refused.
MAX_FILE_BYTES = 512 * 1024 * 1024

#: Slurm's commands write so to standard error.
_ERROR = re.compile(r"(?:scontrol|sinfo|squeue|slurm\w*)(?: error)?: ")
#: With -M they name the cluster of the rows below.
_CLUSTER = re.compile(r"CLUSTER: (\S+)")

Row = TypeVar("Row")

_ENDINGS = (".txt", ".json", ".txt.gz", ".json.gz")


def snapshot(folder: Path, *, task_by_task: str | None = None) -> Snapshot:
    """The snapshot of the outputs in `folder`, taken at the latest time in the JSON, else at the newest file's.
    Raises `InvalidInput`: no folder, no file about nodes, or one that cannot be read; with file and line where known.
    """
    if not folder.is_dir():
        raise InvalidInput(str(folder), "is not a folder")
    found = {name: _find(folder, name) for name in ("scontrol-show-node", "sinfo", "squeue", "reservations")}
    nodes_file = found["scontrol-show-node"] or found["sinfo"]
    if nodes_file is None:
        raise InvalidInput(str(folder), "no scontrol-show-node or sinfo (.txt, .json, .gz) in it")
    warnings = normalise.Warnings()
    queue, reserved = found["squeue"], found["reservations"]
    nodes = _rows(nodes_file, json_shapes.nodes, text.nodes, saved_tables.nodes, r"(?s).*?NodeName=")
    jobs = _rows(queue, json_shapes.jobs, text.jobs, saved_tables.jobs, r"\s*JobId=") if queue else []
    reservations = _rows(reserved, json_shapes.reservations, text.reservations) if reserved else []
    for name in ("squeue", "reservations"):
        if found[name] is None:
            warnings.add("no such file, its part is empty", name)
    used = [path for path in (nodes_file, queue, reserved) if path]
    # When slurmctld last changed what it shows, which is about when it was asked (24.05 and later).
    said = [json_shapes.number(_load(path).get("last_update")) for path in used if _is_json(path)]
    updated = [at for at in said if at]
    return normalise.snapshot(
        max(updated) if updated else max(path.stat().st_mtime for path in used),
        nodes,
        jobs,
        reservations,
        task_by_task=task_by_task,
        warnings=warnings,
    )


def _find(folder: Path, name: str) -> Path | None:
    present = [path for ending in _ENDINGS if (path := folder / (name + ending)).is_file()]
    if len(present) > 1:
        raise InvalidInput(str(folder), f"both {present[0].name} and {present[1].name}: keep one")
    return present[0] if present else None


def _rows(
    path: Path,
    of_json: Callable[[json_shapes.Object, str], list[Row]],
    of_records: Callable[[str], list[Row]],
    of_table: Callable[[str, str], list[Row]] | None = None,
    is_records: str = "",
) -> list[Row]:
    """What a file holds, by its form: JSON, scontrol's records (which match `is_records`), or a table."""
    if _is_json(path):
        return of_json(_load(path), str(path))
    content = _printed(path)
    if of_table is not None and not re.match(is_records, content):
        return of_table(content, str(path))
    try:
        return of_records(content)
    except InvalidInput as error:
        raise InvalidInput(str(path), f"{error.where}: {error.what}") from error


def _load(path: Path) -> json_shapes.Object:
    return json_shapes.load(_printed(path), str(path))


def _printed(path: Path) -> str:
    """The content of a file without the errors that Slurm printed beside it; these lines are left empty. Raises
    `InvalidInput`: as `read`; nothing but an error; or the outputs of two clusters."""
    lines = read(path).split("\n")
    errors = {at: line for at, line in enumerate(lines) if _ERROR.match(line)}
    named = {at: found[1] for at, line in enumerate(lines) if (found := _CLUSTER.match(line))}
    clusters = dict.fromkeys(named.values())
    if len(clusters) > 1:
        several = f"holds clusters {', '.join(clusters)}"
        raise InvalidInput(str(path), f"{several}: save the output of one cluster (-M NAME)")
    if errors and not any(line.strip() for at, line in enumerate(lines) if at not in errors):
        at, line = next(iter(errors.items()))
        raise InvalidInput(f"{path}:{at + 1}", f"holds nothing but {line[:200]!r}")
    return "\n".join("" if at in errors or at in named else line for at, line in enumerate(lines))


def _is_json(path: Path) -> bool:
    return ".json" in path.suffixes


def read(path: Path) -> str:
    """The text of a plain or .gz file, bytes that are no UTF-8 replaced. Raises `InvalidInput`: it cannot be opened
    or unpacked, or is larger than `MAX_FILE_BYTES`."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(str(path), f"cannot be read ({error})") from error
    if len(content) > MAX_FILE_BYTES:
        raise InvalidInput(str(path), f"is larger than {MAX_FILE_BYTES // 2**20} MiB")
    return content.decode("utf-8-sig", "replace")
