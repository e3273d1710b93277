"""The JSON of sinfo, squeue, scontrol and slurmrestd, of every release, as rows.

Until 22.05 numbers and states are plain (`"state": "idle", "state_flags": ["DRAIN"]`); later a number may be
`{"set": true, "infinite": false, "number": 5}` and a state a list (`["IDLE", "DRAIN"]`). From 23.11 on `sinfo --json`
is grouped: an entry stands for all nodes of one state in one partition.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from malletrain.domain.errors import InvalidInput
from malletrain.domain.snapshot import Reservation
from malletrain.slurm.formats import hostlist, scalars
from malletrain.slurm.formats.records import JOB_TEXTS, JOB_TIMES, JobRecord, NodeRecord, identity

Object = Mapping[str, Any]


def load(text: str, where: str) -> Object:
    """The document in `text`. Raises `InvalidInput`: not JSON, not an object, or an answer that is an error."""
    try:
        document = json.loads(text, strict=False)  # a name may hold a tab, and some releases write it as it is
    except (json.JSONDecodeError, RecursionError) as error:
        place = f"{where}:{error.lineno}" if isinstance(error, json.JSONDecodeError) else where
        raise InvalidInput(place, "not JSON, or cut off") from error
    if not isinstance(document, dict):
        raise InvalidInput(where, f"an object was expected, not {type(document).__name__}")
    return document


def nodes(document: Object, where: str) -> list[NodeRecord]:
    """`sinfo --json`, `scontrol show node --json`, or slurmrestd's nodes. Raises `InvalidInput`: no list of nodes in
    it, or one without a name or state."""
    if "sinfo" in document:
        return [row for entry in _objects(document, "sinfo", where) for row in _group(entry, where)]
    return [_node(entry, where) for entry in _objects(document, "nodes", where)]


def jobs(document: Object, where: str) -> list[JobRecord]:
    """`squeue --json`, `scontrol show job --json`, or slurmrestd's jobs. Raises `InvalidInput`: no list of jobs in
    it, or one without an id or state."""
    return [_job(entry, where) for entry in _objects(document, "jobs", where)]


def reservations(document: Object, where: str) -> list[Reservation]:
    """`scontrol show reservation --json`, or slurmrestd's reservations. Raises `InvalidInput`: no list of
    reservations in it, or one without a name or start."""
    rows = []
    for entry in _objects(document, "reservations", where):
        name, start = _text(entry.get("name")), number(entry.get("start_time"))
        if not name or not start:
            raise InvalidInput(where, "a reservation without a name or start")
        end = number(entry.get("end_time"))
        rows.append(
            Reservation(
                name=name,
                start=float(start),
                end=float(end) if end else float("inf"),
                nodes=hostlist.expand(_text(entry.get("node_list")), f"reservation {name}"),
                flags=frozenset(_names(entry.get("flags"))),
                users=_names(entry.get("users")),
                accounts=_names(entry.get("accounts")),
            )
        )
    return rows


def number(value: object) -> float | None:
    """A number of either shape; None when it is not set, infinite, or none."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value) if abs(value) < 1e18 else None
    if isinstance(value, dict):
        return number(value.get("number")) if value.get("set") and not value.get("infinite") else None
    return None


def _node(entry: Object, where: str) -> NodeRecord:
    name = _text(entry.get("name"))
    # Before 23.02 the base state stands apart from its flags.
    state = "+".join([*_names(entry.get("state")), *_names(entry.get("state_flags"))])
    if not name or not state:
        raise InvalidInput(where, f"a node without a name or state ({name[:40]!r})")
    return NodeRecord(
        name=name,
        state=state,
        partitions=_names(entry.get("partitions")),
        cpus=_count(entry.get("cpus")),
        cpus_alloc=_count(entry.get("alloc_cpus")),
        memory_mib=_count(entry.get("real_memory")),
        gres=_text(entry.get("gres")),
        features=_names(entry.get("active_features")) or _names(entry.get("features")),
        weight=_count(entry.get("weight"), 1),
        reason=_text(entry.get("reason")),
    )


def _group(entry: Object, where: str) -> Iterator[NodeRecord]:
    names = _object(entry, "nodes").get("nodes")
    state = "+".join(_names(_object(entry, "node").get("state")))
    partition = entry.get("partition")
    label = _text(partition.get("name")) if isinstance(partition, dict) else _text(partition)
    cpus, memory = _object(entry, "cpus"), _object(entry, "memory")
    gres, weight = _object(entry, "gres"), _object(entry, "weight")
    reason = entry.get("reason")
    if not isinstance(names, list) or not state:
        raise InvalidInput(where, "a group without nodes or state")
    for item in names:
        for name in hostlist.expand(_text(item), where):
            yield NodeRecord(
                name=name,
                state=state,
                partitions=(label,) if label else (),
                cpus=_count(cpus.get("maximum")),
                # The count is of the whole group: it speaks for its nodes only where it is none or one node's.
                cpus_alloc=_count(cpus.get("allocated")) if len(names) == 1 else 0,
                memory_mib=_count(memory.get("maximum")),
                gres=_text(gres.get("total")),
                features=_names(_object(entry, "features").get("active")),
                weight=_count(weight.get("maximum"), 1),
                reason=_text(reason.get("description")) if isinstance(reason, dict) else _text(reason),
            )


def _job(entry: Object, where: str) -> JobRecord:
    raw = number(entry.get("job_id"))
    state = ",".join(_names(entry.get("job_state")))
    if raw is None or raw < 1 or not state:
        raise InvalidInput(where, "a job without an id or state")
    array, het, offset = (_count(entry.get(key)) for key in ("array_job_id", "het_job_id", "het_job_offset"))
    task, tasks = number(entry.get("array_task_id")), _text(entry.get("array_task_string"))
    which = identity(int(raw), array, None if task is None else int(task), tasks, het, offset)
    texts: dict[str, Any] = {name: _text(entry.get(key)) for name, (_, key, _) in JOB_TEXTS.items()}
    times: dict[str, Any] = {name: number(entry.get(name)) or None for name in JOB_TIMES}
    limit = number(entry.get("time_limit"))
    return JobRecord(
        **which | texts | times,
        state=state,
        user=_text(entry.get("user_name")) or str(_count(entry.get("user_id"))),
        account=_text(entry.get("account")),
        name=_text(entry.get("name")),
        node_count=max(1, _count(entry.get("node_count"), 1)),
        time_limit_s=None if limit is None else limit * 60,  # minutes
        priority=_count(entry.get("priority")),
        memory_mib=int(number(entry.get("memory_per_node")) or number(entry.get("memory_per_cpu")) or 0),
    )


def _objects(document: Object, key: str, where: str) -> Sequence[Object]:
    found = document.get(key)
    errors = [_text(error.get("description") or error.get("error")) for error in _errors(document)]
    if found is None or (errors and not found):  # slurmrestd answers an error with an empty list
        raise InvalidInput(where, "; ".join(text for text in errors if text)[:200] or f"no list of {key} in it")
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise InvalidInput(where, f"{key} is not a list of objects")
    return found


def _errors(document: Object) -> Sequence[Object]:
    found = document.get("errors")
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _object(entry: Object, key: str) -> Object:
    found = entry.get(key)
    return found if isinstance(found, dict) else {}


def _count(value: object, default: int = 0) -> int:
    found = number(value)
    return default if found is None else int(found)


def _text(value: object) -> str:
    return scalars.text_or_empty(value) if isinstance(value, str) else ""


def _names(value: object) -> tuple[str, ...]:
    """A list of words, given as a list or between commas."""
    if isinstance(value, str):
        return tuple(part for part in value.split(",") if part and part not in scalars.ABSENT)
    if isinstance(value, list):
        return tuple(part for part in value if isinstance(part, str) and part)
    return ()
