"""A sizing problem as JSON text: what `malletrain plan` reads.

    {"horizon_s": 300, "nodes": 64, "value": "elastic", "alpha": 0,
     "jobs": [{"id": "a", "current": 4, "min": 1, "max": 16, "sizes": [1, 2, 4, 8, 16], "weight": 1,
               "grow_s": 1, "shrink_s": 1, "activate_s": 5, "interval_s": 600, "remaining_samples": 1e6,
               "throughput": {"1": 100.0, "4": 380.0}}],
     "constraints": [{"name": "alice", "coefficients": {"a": 1}, "upper": 8}]}

Only `horizon_s`, `nodes`, `jobs` and a job's `id`, `max` and `throughput` must be given. Throughput is in samples/s,
linear between given sizes and from (0, 0), constant beyond the last. `interval_s`: mean seconds between two changes
of the job, over which a stall has to pay in place of the horizon.

For policies that use them:

- `elastic_batch`, `goodput`: a job's `batches`, {"32": {"1": 100.0, ..}} (throughput by batch), and `noise_scale`;
- `auto`, `exact`, `milp`: the problem's `classes`, {"a100": 32, "v100": 32} (they add up to `nodes`), and a job's
  `on_classes`, {"curves": {"a100": {"1": 90, ..}, ..}, "current": {"a100": 4}, "min": {"v100": 2}, "spans": false}
  (throughput by class; classes that are not named it does not take; `spans`: several at once, shares by speed);
- `matching`, and those: `classes`, and a job's `synchronous`, {"step_samples": 256, "exchange_s": 0.1, "class_rates":
  {"a100": 90, "v100": 40}};
- `budget`: the problem's `budgets`, [{"name": "account x", "jobs": ["a"], "node_s": 3600}]; also `left`, {"a": 1e6}
  (samples that jobs have left), and, where it must last, `seconds` and what comes meanwhile: `arriving`,
  [{"throughput": {"1": 1, ..}, "work_s": 3600, "per_s": 1e-4, "weight": 1}] (speed-ups, seconds on one node, jobs/s);
- `deadline`: a job's `due`, {"seconds": 7200, "samples": 1e6}.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import partial
from typing import Any, TypeVar

from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import Curve
from malletrain.sizing.problem import (
    ArrivingWork,
    Due,
    JobDemand,
    JobId,
    LinearLimit,
    NodeBudget,
    OnClasses,
    Problem,
    Synchronous,
)

#: Longer texts are refused before they are read: ten thousand jobs with 100 points each fit twice.
MAX_TEXT_BYTES = 64 * 2**20
MAX_JOBS = 100_000

#: Fields that a decision alone fills.
_INNER = {"bonus", "locked", "doubt", "must_run", "equal_shares"}

#: What makes a value of what stands at a place in the file: (where, data) -> value.
Reader = Callable[[str, Any], Any]
T = TypeVar("T")


def parse(text: str) -> tuple[Problem, tuple[str, ...]]:
    """The problem, and fields that were not understood.
    Raises InvalidInput: naming the field."""
    if len(text) > MAX_TEXT_BYTES:
        raise InvalidInput("problem", f"is longer than {MAX_TEXT_BYTES} characters")
    try:
        data = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_doubles)
    except RecursionError:
        raise InvalidInput("problem", "is nested too deeply") from None
    except InvalidInput:
        raise
    except ValueError as error:
        raise InvalidInput("problem", f"is not JSON: {error}") from None
    unknown: list[str] = []
    ids: dict[str, JobId] = {}
    readers: dict[str, Reader] = {
        "jobs": partial(_jobs, ids, unknown),
        "constraints": _each(partial(_constraint, ids, unknown)),
        "budgets": _each(partial(_budget, ids, unknown)),
        "classes": _object,
    }
    return _made(Problem, readers, unknown, "", data), tuple(unknown)


def _made(made: Callable[..., T], readers: Mapping[str, Reader], unknown: list[str], where: str, data: Any) -> T:
    """A dataclass of an object's fields, in their order: each read by its reader, or as it stands. A field `curve`
    is called `throughput`; null is as good as nothing where there is a reader."""
    here, table = where or "problem", _object(where or "problem", data)
    names = {"throughput" if f.name == "curve" else f.name: f for f in fields(made) if f.name not in _INNER}  # type: ignore[arg-type]
    unknown += [f"{here}: {key}" for key in table if key not in names]
    values = {}
    for key, field in names.items():
        if table.get(key) is None and field.default is MISSING and field.default_factory is MISSING:
            raise InvalidInput(here, f"{key} is missing")
        if key in readers and table.get(key) is not None:
            values[field.name] = readers[key](f"{where}.{key}" if where else key, table[key])
        elif key in table and key not in readers:
            values[field.name] = table[key]
    try:
        return made(**values)
    except InvalidInput as error:
        if error.where.startswith(where):
            raise
        raise InvalidInput(f"{where}: {error.where}", error.what) from None


def _each(read: Reader) -> Reader:
    """Reads each entry of a list."""
    return lambda where, data: tuple(read(f"{where}[{i}]", each) for i, each in enumerate(_list(where, data)))


def _jobs(ids: dict[str, JobId], unknown: list[str], where: str, data: Any) -> tuple[JobDemand, ...]:
    """The jobs; fills `ids`, by which others name them."""
    if len(_list(where, data)) > MAX_JOBS:
        raise InvalidInput(where, f"holds {len(data)} jobs, at most {MAX_JOBS} are taken")
    synchronous: dict[str, Reader] = {"class_rates": _object}
    on_classes: dict[str, Reader] = {"curves": _curves, "current": _object, "min": _object, "spans": _flag}
    readers: dict[str, Reader] = {
        "sizes": lambda where, data: tuple(_list(where, data)),
        "throughput": _curve,
        "batches": _batches,
        "synchronous": partial(_made, Synchronous, synchronous, unknown),
        "on_classes": partial(_made, OnClasses, on_classes, unknown),
        "due": partial(_made, Due, {}, unknown),
    }
    usual = {"current": 0, "min": 1}
    demands = []
    for i, each in enumerate(data):
        here = f"{where}[{i}]"
        demand = _made(JobDemand, readers, unknown, here, usual | _object(here, each))
        if str(demand.id) in ids:
            raise InvalidInput(f"{here}.id", f"{demand.id!r} is used twice")
        ids[str(demand.id)] = demand.id
        demands.append(demand)
    return tuple(demands)


def _flag(where: str, data: Any) -> bool:
    if not isinstance(data, bool):
        raise InvalidInput(where, f"must be true or false, not {data!r}")
    return data


def _key(where: str, text: str) -> int:
    """A whole number that is a key of an object."""
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidInput(where, "the key must be a whole number")
    return int(text)


def _curve(where: str, data: Any) -> Curve:
    points = []
    for text, rate in _object(where, data).items():
        here = f"{where}[{text!r}]"
        nodes = _key(here, text)
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not math.isfinite(rate) or rate < 0:
            raise InvalidInput(here, f"must be a rate of at least 0 samples/s, not {rate!r}")
        if nodes > 0:
            points.append((nodes, float(rate)))
        elif rate:
            raise InvalidInput(here, f"no nodes train nothing, not {rate!r}")
    if not points:
        raise InvalidInput(where, "holds no size above 0")
    return Curve(tuple(sorted(points)))


def _curves(where: str, data: Any) -> dict[str, Curve]:
    return {name: _curve(f"{where}[{name!r}]", rates) for name, rates in _object(where, data).items()}


def _batches(where: str, data: Any) -> tuple[tuple[int, Curve], ...]:
    found = [(_key(f"{where}[{b!r}]", b), curve) for b, curve in _curves(where, data).items()]
    return tuple(sorted(found, key=lambda option: option[0]))


def _budget(ids: Mapping[str, JobId], unknown: list[str], where: str, data: Any) -> NodeBudget:
    def jobs(here: str, named: Any) -> frozenset[JobId]:
        return frozenset(_job(here, str(job), ids) for job in _list(here, named))

    def left(here: str, work: Any) -> dict[JobId, Any]:
        named = [str(job) for job in data["jobs"]]
        for job in _object(here, work):
            if job not in named:
                raise InvalidInput(here, f"names {job!r}, which is not among its jobs")
        return {ids[job]: seconds for job, seconds in work.items()}

    arriving = _each(partial(_made, ArrivingWork, {"throughput": _curve}, unknown))
    readers: dict[str, Reader] = {"name": lambda _, name: str(name), "jobs": jobs, "left": left, "arriving": arriving}
    return _made(NodeBudget, readers, unknown, where, {"name": where} | _object(where, data))


def _job(where: str, name: str, ids: Mapping[str, JobId]) -> JobId:
    if name not in ids:
        raise InvalidInput(where, f"names the unknown job {name!r}")
    return ids[name]


def _constraint(ids: Mapping[str, JobId], unknown: list[str], where: str, data: Any) -> LinearLimit:
    limit = {"name": where} | _object(where, data)
    if not isinstance(limit["name"], str):
        raise InvalidInput(f"{where}.name", f"must be a text, not {limit['name']!r}")

    def coefficients(here: str, data: Any) -> dict[JobId, Any]:
        return {_job(here, job, ids): a for job, a in _object(here, data).items()}

    readers: dict[str, Reader] = {"coefficients": coefficients, "upper": _bound, "lower": _bound}
    return _made(LinearLimit, readers, unknown, where, limit)


def _bound(where: str, data: Any) -> float:
    if isinstance(data, bool) or not isinstance(data, int | float):
        raise InvalidInput(where, f"must be a number, not {data!r}")
    return float(data)


def _object(where: str, data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise InvalidInput(where, f"must be an object, not {type(data).__name__}")
    return data


def _list(where: str, data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise InvalidInput(where, f"must be a list, not {type(data).__name__}")
    return data


def _no_constant(name: str) -> float:
    raise InvalidInput("problem", f"{name} is not a number in JSON")


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise InvalidInput("problem", f"{key!r} is given twice in one object")
            seen.add(key)
    return data
