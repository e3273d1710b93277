"""The training jobs of a file: TOML with `[[job]]` tables, or CSV with columns of this project, or BFTrainer's."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import Curve, ResizeCosts
from malletrain.replay.traces.source import Lines, opened
from malletrain.replay.traces.words import TimeParser, time_parser
from malletrain.replay.workload import MAX_JOBS, TrainingJob, at_batch, curve_named, training_job
from malletrain.sizing.problem import OnClasses

MAX_FILE_BYTES = 256 << 20

#: The header of a CSV file that has every column; others are left out.
HEADER = (
    "job,model,curve,submit_time,min_nodes,max_nodes,total_samples,weight,rescale_up_s,rescale_down_s,activate_s,"
    "deadline_s,account,user"
)
_OWN = {"job": "name", "submit_time": "submit", "rescale_up_s": "grow_s", "rescale_down_s": "shrink_s"}
#: The key of a `[[job]]` table that each column is.
COLUMNS = {name: _OWN.get(name, name) for name in HEADER.split(",")}


def _rates(value: object) -> object:
    """`NODES:RATE;NODES:RATE...` as the table that it stands for."""
    if not isinstance(value, str):
        return value
    try:
        points = [(int(nodes), float(rate)) for nodes, rate in (part.split(":") for part in value.split(";"))]
    except ValueError:
        raise ValueError(f"{value[:60]!r} is not of the form 1:100;2:190;4:350") from None
    if [nodes for nodes, _ in points] != sorted({nodes for nodes, _ in points}):
        raise ValueError("node counts must rise")
    return dict(points)


Nodes = Annotated[int, Field(ge=1, le=1_000_000)]
Amount = Annotated[float, Field(ge=0, lt=1e18)]
Rates = Annotated[
    dict[Nodes, Annotated[float, Field(gt=0, lt=1e18)]], Field(min_length=1), BeforeValidator(_rates)
]  #: samples/s by nodes


class _JobTable(BaseModel):
    """One `[[job]]`, or line of a CSV file."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = ""
    model: str = ""
    curve: Rates | None = None
    submit: datetime | Amount | str = 0.0
    min_nodes: Nodes = 1
    max_nodes: Nodes | None = None
    sizes: tuple[Nodes, ...] = ()
    total_samples: Amount | None = None
    weight: Amount = 1.0
    count: Annotated[int, Field(ge=1, le=MAX_JOBS)] = 1
    activate_s: Amount | None = None
    grow_s: Amount | None = None
    shrink_s: Amount | None = None
    deadline_s: Amount | None = None
    account: str = ""
    user: str = ""
    batches: dict[Nodes, Rates] = {}
    batch: int | None = None
    noise_scale: float | None = None
    curves: dict[str, Rates] = {}
    class_min: dict[str, int] = {}
    spans: bool = False


def read_jobs(path: Path, costs: ResizeCosts, zone: tzinfo = UTC) -> list[TrainingJob]:
    """The jobs of a file, plain or gzip. `costs` serve where the file has none.
    Raises InvalidInput: with the file and the line or job."""
    is_toml, time_of = path.name.endswith((".toml", ".toml.gz")), time_parser(zone)
    jobs: list[TrainingJob] = []
    for where, table in _toml_tables(path) if is_toml else _csv_tables(path):
        row, number = _checked(table, where), len(jobs) + 1
        if is_toml:
            names = [f"{row.name or row.model or 'job'}-{number + i}" for i in range(row.count)]
        else:
            names = [row.name or f"job-{number}"]
        jobs += _jobs_of(row, where, costs, time_of, number, names)
        if len(jobs) > MAX_JOBS:
            raise InvalidInput(where, f"more than {MAX_JOBS:,} jobs")
    if not jobs:
        raise InvalidInput(str(path), "holds no job")
    return jobs


def _csv_tables(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with opened(path) as stream:
        lines = Lines(stream, str(path))
        rows = csv.reader(iter(lines), strict=True)
        try:
            header = [name.strip().lower() for name in next(rows, [])]
            if not {"model", "curve"} & set(header):
                raise InvalidInput(f"{path}:1", f"needs the columns model or curve (known are {', '.join(COLUMNS)})")
            for fields in rows:
                where = lines.where
                if fields and len(fields) != len(header):
                    raise InvalidInput(where, f"{len(fields)} fields where the header has {len(header)}")
                cells = zip(header, map(str.strip, fields), strict=False)
                if fields:
                    yield where, {COLUMNS[name]: cell for name, cell in cells if name in COLUMNS and cell}
        except csv.Error as error:
            raise InvalidInput(lines.where, str(error)) from error


def _toml_tables(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        with opened(path) as stream:
            tables = tomllib.loads(stream.read(MAX_FILE_BYTES).decode("utf-8")).get("job")
    except (OSError, EOFError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(str(path), f"cannot be read: {error}") from error
    if not isinstance(tables, list) or not tables:
        raise InvalidInput(str(path), "holds no [[job]] table")
    for place, table in enumerate(tables, 1):
        yield f"{path}: job {place}", table


def _checked(table: Mapping[str, Any], where: str) -> _JobTable:
    try:
        row = _JobTable.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInput(where, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if row.deadline_s is not None and row.total_samples is None:
        raise InvalidInput(where, "deadline_s needs total_samples: what is to be trained by then")
    if (row.class_min or row.spans) and not row.curves:
        raise InvalidInput(where, "class_min and spans need curves, a table of class = table of nodes = rate")
    return row


def _jobs_of(
    row: _JobTable, where: str, costs: ResizeCosts, time_of: TimeParser, first: int, names: Sequence[str]
) -> Iterator[TrainingJob]:
    """The jobs of these `names`, numbered from `first` on."""
    curve = _own_curve(row, where)
    most = max(row.min_nodes, curve.points[-1][0]) if row.max_nodes is None else row.max_nodes
    if most < row.min_nodes:
        raise InvalidInput(where, f"max_nodes {most} is below min_nodes {row.min_nodes}")
    paid = replace(costs, **row.model_dump(include={"activate_s", "grow_s", "shrink_s"}, exclude_none=True))
    on_classes = None
    if row.curves:
        by_class = {name: _curve(rates) for name, rates in row.curves.items()}
        on_classes = OnClasses(by_class, min=row.class_min, spans=row.spans)
    for number, name in enumerate(names, first):
        yield training_job(
            number,
            name,
            curve,
            paid,
            row.deadline_s,
            _batches(row),
            row.noise_scale,
            on_classes,
            submitted_at=_submitted(row.submit, where, time_of),
            max_nodes=most,
            sizes=tuple(sorted(set(row.sizes))),
            user=row.user or "replay",
            **row.model_dump(include={"min_nodes", "weight", "total_samples", "account"}),
        )


def _own_curve(row: _JobTable, where: str) -> Curve:
    """By what the job is sized: its own curve, that of its batch, the published one, or of its slowest class."""
    if row.batches:
        batches = _batches(row)
        batch = batches[0][0] if row.batch is None else row.batch
        if row.curve is not None or batch not in dict(batches):
            raise InvalidInput(where, "with batches there is no curve, and batch is one of them")
        return at_batch(batches, batch, row.noise_scale)
    if row.curve is not None:
        return _curve(row.curve)
    if row.curves and not row.model:
        return min(map(_curve, row.curves.values()), key=lambda each: each.throughput(1))
    published = curve_named(row.model)
    if published is None:
        what = f"model {row.model!r} has no published curve: " if row.model else ""
        raise InvalidInput(where, f"{what}needs a curve (nodes and samples a second) or a model with a published one")
    return published


def _curve(rates: Mapping[int, float]) -> Curve:
    return Curve(tuple(sorted(rates.items())))


def _batches(row: _JobTable) -> tuple[tuple[int, Curve], ...]:
    """The curve of each batch, ascending."""
    return tuple((batch, _curve(rates)) for batch, rates in sorted(row.batches.items()))


def _submitted(value: datetime | float | str, where: str, time_of: TimeParser) -> float:
    """Unix seconds, or seconds from the replay's start."""
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, str):
        moment = time_of(value)
        if moment is None and value.strip("0.") != "":
            raise InvalidInput(where, f"submit_time is not a time: {value!r}")
        return moment or 0.0
    return value
