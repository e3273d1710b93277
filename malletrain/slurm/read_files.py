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
from malletrain.domain.snapshot import Reservation, Snapshot
from malletrain.slurm.formats import json_shapes, normalise, saved_tables, text
from malletrain.slurm.formats.records import JobRecord, NodeRecord

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
    nodes = _nodes(nodes_file)
    jobs = _jobs(found["squeue"]) if found["squeue"] else []
    reservations = _reservations(found["reservations"]) if found["reservations"] else []
    for name in ("squeue", "reservations"):
        if found[name] is None:
            warnings.add("no such file, its part is empty", name)
    used = [path for path in (nodes_file, found["squeue"], found["reservations"]) if path]
    updated = [at for path in used if _is_json(path) and (at := json_shapes.updated_at(_load(path))) is not None]
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


def _nodes(path: Path) -> list[NodeRecord]:
    if _is_json(path):
        return json_shapes.nodes(_load(path), str(path))
    content = _printed(path)
    if "NodeName=" in content:
        return _naming(path, lambda: text.nodes(content))
    return saved_tables.nodes(content, str(path))


def _jobs(path: Path) -> list[JobRecord]:
    if _is_json(path):
        return json_shapes.jobs(_load(path), str(path))
    content = _printed(path)
    if content.lstrip().startswith("JobId="):
        return _naming(path, lambda: text.jobs(content))
    return saved_tables.jobs(content, str(path))


def _reservations(path: Path) -> list[Reservation]:
    if _is_json(path):
        return json_shapes.reservations(_load(path), str(path))
    content = _printed(path)
    return _naming(path, lambda: text.reservations(content))


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


def _naming(path: Path, parse: Callable[[], list[Row]]) -> list[Row]:
    try:
        return parse()
    except InvalidInput as error:
        raise InvalidInput(str(path), f"{error.where}: {error.what}") from error


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
