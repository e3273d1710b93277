"""A sizing problem as JSON text: what `malletrain plan` reads.

    {"horizon_s": 300, "nodes": 64, "value": "elastic", "alpha": 0,
     "jobs": [{"id": "a", "current": 4, "min": 1, "max": 16, "sizes": [1, 2, 4, 8, 16], "weight": 1,
               "grow_s": 1, "shrink_s": 1, "activate_s": 5, "interval_s": 600, "remaining_samples": 1e6,
               "throughput": {"1": 100.0, "4": 380.0}}],
     "constraints": [{"name": "alice", "coefficients": {"a": 1}, "upper": 8}, {"at_most_resizes": 3}]}

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
- `deadline`: a job's `due`, {"seconds": 7200, "samples": 1e6}, and the problem's `supply`, [40, 52, 64]: equally
  likely numbers of nodes in the time to come, ascending;
- `ladder`: the problem's `lifetimes`, [[60, 64], [600, 20]]: so many of the nodes are there until so many
  seconds from now.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import Curve
from malletrain.sizing.problem import (
    ArrivingWork,
    Constraint,
    Due,
    JobDemand,
    JobId,
    LinearLimit,
    NodeBudget,
    OnClasses,
    Problem,
    ResizeLimit,
    Synchronous,
    Value,
)

#: Longer texts are refused before they are read: ten thousand jobs with 100 points each fit twice.
MAX_TEXT_BYTES = 64 * 2**20
MAX_JOBS = 100_000

_TOP = {"horizon_s", "nodes", "value", "alpha", "jobs", "constraints", "budgets", "classes", "lifetimes", "supply"}
_JOB = {
    "id", "current", "min", "max", "sizes", "weight", "grow_s", "shrink_s", "activate_s", "remaining_samples",
    "throughput", "batches", "noise_scale", "synchronous", "on_classes", "due", "interval_s",
}  # fmt: skip
_DUE = {"seconds", "samples"}
_ON_CLASSES = {"curves", "current", "min", "spans"}
_SYNCHRONOUS = {"step_samples", "exchange_s", "class_rates"}
_BUDGET = {"name", "jobs", "node_s", "left", "seconds", "arriving"}
_ARRIVING = {"throughput", "work_s", "per_s", "weight"}
_LINEAR = {"name", "coefficients", "upper", "lower"}
_RESIZES = {"name", "at_most_resizes"}


def parse(text: str) -> tuple[Problem, tuple[str, ...]]:
    """The problem, and fields that were not understood.

    Raises:
        InvalidInput: naming the field.
    """
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
    top = _object("problem", data)
    unknown = [f"problem: {key}" for key in top if key not in _TOP]
    jobs = _list("jobs", _needed("problem", top, "jobs"))
    if len(jobs) > MAX_JOBS:
        raise InvalidInput("jobs", f"holds {len(jobs)} jobs, at most {MAX_JOBS} are taken")
    demands = tuple(_job(f"jobs[{i}]", _object(f"jobs[{i}]", job), unknown) for i, job in enumerate(jobs))
    by_text: dict[str, JobId] = {}
    for i, demand in enumerate(demands):
        if str(demand.id) in by_text:
            raise InvalidInput(f"jobs[{i}].id", f"{demand.id!r} is used twice")
        by_text[str(demand.id)] = demand.id
    limits = _list("constraints", top.get("constraints") or [])
    value = top.get("value", Value.ELASTIC.value)
    if value not in [v.value for v in Value]:
        raise InvalidInput("value", f"must be one of {', '.join(Value)}, not {value!r}")
    problem = Problem(
        horizon_s=_needed("problem", top, "horizon_s"),
        nodes=_needed("problem", top, "nodes"),
        jobs=demands,
        value=Value(value),
        alpha=top.get("alpha", 0.0),
        constraints=tuple(
            _constraint(f"constraints[{i}]", _object(f"constraints[{i}]", c), by_text, unknown)
            for i, c in enumerate(limits)
        ),
        budgets=tuple(
            _budget(f"budgets[{i}]", _object(f"budgets[{i}]", b), by_text, unknown)
            for i, b in enumerate(_list("budgets", top.get("budgets") or []))
        ),
        classes=_object("classes", top.get("classes") or {}),
        lifetimes=tuple(
            _pair(f"lifetimes[{i}]", p) for i, p in enumerate(_list("lifetimes", top.get("lifetimes") or []))
        ),
        supply=tuple(_list("supply", top.get("supply") or [])),
    )
    return problem, tuple(unknown)


def _job(where: str, job: dict[str, Any], unknown: list[str]) -> JobDemand:
    unknown += [f"{where}: {key}" for key in job if key not in _JOB]
    curve = _curve(f"{where}.throughput", _needed(where, job, "throughput"))
    batches = []
    for batch, rates in _object(f"{where}.batches", job.get("batches") or {}).items():
        here = f"{where}.batches[{batch!r}]"
        batches.append((_key(here, batch), _curve(here, rates)))
    try:
        return JobDemand(
            id=_needed(where, job, "id"),
            current=job.get("current", 0),
            min=job.get("min", 1),
            max=_needed(where, job, "max"),
            sizes=tuple(_list(f"{where}.sizes", job.get("sizes") or [])),
            weight=job.get("weight", 1.0),
            grow_s=job.get("grow_s", 0.0),
            shrink_s=job.get("shrink_s", 0.0),
            activate_s=job.get("activate_s", 0.0),
            curve=curve,
            remaining_samples=job.get("remaining_samples"),
            batches=tuple(sorted(batches, key=lambda option: option[0])),
            noise_scale=job.get("noise_scale"),
            synchronous=_synchronous(f"{where}.synchronous", job.get("synchronous"), unknown),
            on_classes=_on_classes(f"{where}.on_classes", job.get("on_classes"), unknown),
            due=_due(f"{where}.due", job.get("due"), unknown),
            interval_s=job.get("interval_s"),
        )
    except InvalidInput as error:
        if error.where.startswith(where):
            raise
        raise InvalidInput(f"{where}: {error.where}", error.what) from None


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


def _synchronous(where: str, data: Any, unknown: list[str]) -> Synchronous | None:
    if data is None:
        return None
    given = _object(where, data)
    unknown += [f"{where}: {key}" for key in given if key not in _SYNCHRONOUS]
    rates = _object(f"{where}.class_rates", _needed(where, given, "class_rates"))
    return Synchronous(_needed(where, given, "step_samples"), rates, given.get("exchange_s", 0.0))


def _on_classes(where: str, data: Any, unknown: list[str]) -> OnClasses | None:
    if data is None:
        return None
    given = _object(where, data)
    unknown += [f"{where}: {key}" for key in given if key not in _ON_CLASSES]
    curves = _object(f"{where}.curves", given.get("curves") or {})
    spans = given.get("spans", False)
    if not isinstance(spans, bool):
        raise InvalidInput(f"{where}.spans", f"must be true or false, not {spans!r}")
    return OnClasses(
        {name: _curve(f"{where}.curves[{name!r}]", rates) for name, rates in curves.items()},
        _object(f"{where}.current", given.get("current") or {}),
        _object(f"{where}.min", given.get("min") or {}),
        spans,
    )


def _due(where: str, data: Any, unknown: list[str]) -> Due | None:
    if data is None:
        return None
    given = _object(where, data)
    unknown += [f"{where}: {key}" for key in given if key not in _DUE]
    return Due(_needed(where, given, "seconds"), _needed(where, given, "samples"))


def _pair(where: str, data: Any) -> tuple[Any, Any]:
    pair = _list(where, data)
    if len(pair) != 2:
        raise InvalidInput(where, f"must be a pair, not {len(pair)} entries")
    return pair[0], pair[1]


def _budget(where: str, data: dict[str, Any], ids: Mapping[str, JobId], unknown: list[str]) -> NodeBudget:
    unknown += [f"{where}: {key}" for key in data if key not in _BUDGET]
    named = [str(job) for job in _list(f"{where}.jobs", _needed(where, data, "jobs"))]
    for job in named:
        if job not in ids:
            raise InvalidInput(f"{where}.jobs", f"names the unknown job {job!r}")
    left = _object(f"{where}.left", data.get("left") or {})
    for job in left:
        if job not in named:
            raise InvalidInput(f"{where}.left", f"names {job!r}, which is not among its jobs")
    return NodeBudget(
        str(data.get("name", where)),
        frozenset(ids[job] for job in named),
        _needed(where, data, "node_s"),
        {ids[job]: work for job, work in left.items()},
        data.get("seconds", 0.0),
        tuple(
            _arriving(f"{where}.arriving[{i}]", _object(f"{where}.arriving[{i}]", each), unknown)
            for i, each in enumerate(_list(f"{where}.arriving", data.get("arriving") or []))
        ),
    )


def _arriving(where: str, data: dict[str, Any], unknown: list[str]) -> ArrivingWork:
    unknown += [f"{where}: {key}" for key in data if key not in _ARRIVING]
    curve = _curve(f"{where}.throughput", _needed(where, data, "throughput"))
    return ArrivingWork(curve, _needed(where, data, "work_s"), _needed(where, data, "per_s"), data.get("weight", 1.0))


def _constraint(where: str, limit: dict[str, Any], ids: Mapping[str, JobId], unknown: list[str]) -> Constraint:
    name = limit.get("name", where)
    if not isinstance(name, str):
        raise InvalidInput(f"{where}.name", f"must be a text, not {name!r}")
    if "at_most_resizes" in limit:
        unknown += [f"{where}: {key}" for key in limit if key not in _RESIZES]
        return ResizeLimit(limit["at_most_resizes"], name)
    unknown += [f"{where}: {key}" for key in limit if key not in _LINEAR]
    coefficients = _object(f"{where}.coefficients", _needed(where, limit, "coefficients"))
    for job in coefficients:
        if job not in ids:
            raise InvalidInput(f"{where}.coefficients", f"names the unknown job {job!r}")
    bounds = {}
    for bound, default in (("upper", math.inf), ("lower", -math.inf)):
        given = limit.get(bound)
        if given is not None and (isinstance(given, bool) or not isinstance(given, int | float)):
            raise InvalidInput(f"{where}.{bound}", f"must be a number, not {given!r}")
        bounds[bound] = default if given is None else float(given)
    return LinearLimit(name, {ids[job]: a for job, a in coefficients.items()}, **bounds)


def _needed(where: str, data: dict[str, Any], key: str) -> Any:
    if key not in data:
        raise InvalidInput(where, f"{key} is missing")
    return data[key]


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
