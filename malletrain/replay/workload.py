"""The training jobs of a replay: mixes by name, or a file of one's own."""

from __future__ import annotations

import csv
import gzip
import io
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any

import numpy as np

from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import Curve, MalleableJob, ResizeCosts
from malletrain.replay.curves import (
    IMAGENET,
    POLLUX,
    POLLUX_BATCHES,
    POLLUX_NOISE_SCALE,
    POLLUX_SAMPLES,
    curve_named,
)
from malletrain.replay.traces.source import Lines, opened
from malletrain.replay.traces.trace import Tally
from malletrain.replay.traces.words import TimeParser
from malletrain.sizing.problem import OnClasses

MAX_JOBS = 100_000
MAX_FILE_BYTES = 256 << 20
COLUMNS_NEEDED = (
    "needs the columns model or curve (and, as wanted, job, submit_time, min_nodes, max_nodes, total_samples, "
    "weight, rescale_up_s, rescale_down_s, activate_s, deadline_s, account, user)"
)


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A malleable job and what changing its size costs. `job.submitted_at` is Unix seconds, or seconds from the
    replay's start where the workload's file has no dates (see `shifted`); its `given_curve` is always set.

    `batches`: where a policy may choose the batch, samples/s over nodes by samples a step; `noise_scale`: its
    gradient noise scale in samples, by which a sample of a larger batch is worth less. Then samples count as those
    of the smallest batch do, and `given_curve` is that of the job's own batch. `on_classes`: how it runs on nodes of
    several classes; None: as the classes' speeds say.
    """

    job: MalleableJob
    costs: ResizeCosts
    batches: tuple[tuple[int, Curve], ...] = ()
    noise_scale: float | None = None
    on_classes: OnClasses | None = None

    @property
    def curve(self) -> Curve:
        return self.job.given_curve or Curve.linear(self.job.max_nodes)


def training_job(
    number: int, name: str, curve: Curve, costs: ResizeCosts, *, submitted_at: float = 0.0, min_nodes: int = 1,
    max_nodes: int = 64, total_samples: float | None = None, weight: float = 1.0, sizes: tuple[int, ...] = (),
    deadline_s: float | None = None, account: str = "", batches: tuple[tuple[int, Curve], ...] = (),
    noise_scale: float | None = None, on_classes: OnClasses | None = None, user: str = "",
) -> TrainingJob:  # fmt: skip
    """A job of a replay; `number` counts from 1. `deadline_s`: so many seconds after its submission its samples are
    to be trained."""
    job = MalleableJob(
        id=number, name=name, user=user or "replay", uid=0, account=account, min_nodes=min_nodes, max_nodes=max_nodes,
        submitted_at=submitted_at, sizes=sizes, weight=weight, given_curve=curve, total_samples=total_samples,
        deadline=None if deadline_s is None else submitted_at + deadline_s,
    )  # fmt: skip
    return TrainingJob(job, costs, batches, noise_scale, on_classes)


def at_batch(batches: tuple[tuple[int, Curve], ...], batch: int, noise_scale: float | None) -> Curve:
    """Progress over nodes at a fixed batch: samples/s times what a sample is worth, over one of the smallest batch
    (Pollux, OSDI 2021, eq. 7)."""
    least = batches[0][0]
    worth = 1.0 if noise_scale is None else (noise_scale + least) / (noise_scale + batch)
    return Curve(tuple((n, rate * worth) for n, rate in dict(batches)[batch].points))


# -- mixes -----------------------------------------------------------------------------------------------------------


def mix(text: str, costs: ResizeCosts, seed: int = 0) -> list[TrainingJob]:
    """Jobs of `NAME:COUNT[,NAME:COUNT...]`, all there from the start.

    Raises:
        InvalidInput: no such mix, or no sound count.
    """
    jobs: list[TrainingJob] = []
    for part in text.split(","):
        name, _, count = part.strip().partition(":")
        maker = MIXES.get(name)
        if maker is None:
            raise InvalidInput("--mix", f"{name!r} is not known; known are {', '.join(sorted(MIXES))}")
        if count and not (count.isascii() and count.isdecimal() and 0 < int(count) <= MAX_JOBS):
            raise InvalidInput("--mix", f"{part.strip()!r}: the count must be a number from 1 to {MAX_JOBS:,}")
        rng = np.random.default_rng([seed, len(jobs)])
        for i in range(int(count or 1)):
            jobs.append(maker(len(jobs) + 1, i, costs, rng))
    if len(jobs) > MAX_JOBS:
        raise InvalidInput("--mix", f"{len(jobs):,} jobs are more than {MAX_JOBS:,}")
    return jobs


def _endless_imagenet(number: int, i: int, costs: ResizeCosts, rng: np.random.Generator) -> TrainingJob:
    name = sorted(IMAGENET, key=str.lower)[i % len(IMAGENET)]
    return training_job(number, f"{name}-{number}", IMAGENET[name], costs)


def _endless_linear(number: int, i: int, costs: ResizeCosts, rng: np.random.Generator) -> TrainingJob:
    return training_job(number, f"linear-{number}", Curve.linear(64), costs)


def _pollux(number: int, i: int, costs: ResizeCosts, rng: np.random.Generator) -> TrainingJob:
    name = sorted(POLLUX)[i % len(POLLUX)]
    return training_job(
        number, f"{name}-{number}", POLLUX[name], costs, max_nodes=16, total_samples=POLLUX_SAMPLES[name]
    )


def _pollux_batches(number: int, i: int, costs: ResizeCosts, rng: np.random.Generator) -> TrainingJob:
    # Users ask for eight times the smallest batch; policies that choose may take any.
    name = sorted(POLLUX_BATCHES)[i % len(POLLUX_BATCHES)]
    batches, noise_scale = POLLUX_BATCHES[name], POLLUX_NOISE_SCALE[name]
    own = at_batch(batches, batches[3][0], noise_scale)
    return training_job(
        number, f"{name}-{number}", own, costs, max_nodes=16, total_samples=POLLUX_SAMPLES[name], batches=batches,
        noise_scale=noise_scale,
    )  # fmt: skip


def _hpo(number: int, i: int, costs: ResizeCosts, rng: np.random.Generator) -> TrainingJob:
    # BFTrainer's search: trials of one model, 130 million samples each.
    curve = IMAGENET["shufflenet"]
    return training_job(number, f"trial-{number}", curve, costs, total_samples=130e6)


def _nas(number: int, i: int, costs: ResizeCosts, rng: np.random.Generator) -> TrainingJob:
    # Architectures differ in speed and in what communication costs them: n / (a + b log2 n), b/a from 2 to 25 %,
    # trained for one to six hours of one node.
    rate, share = float(rng.uniform(500, 8000)), float(rng.uniform(0.02, 0.25))
    points = tuple((n, rate * n / (1 + share * math.log2(n))) for n in (1, 2, 4, 8, 16))
    work = rate * float(rng.uniform(1, 6)) * 3600
    return training_job(number, f"architecture-{number}", Curve(points), costs, max_nodes=16, total_samples=work)


MIXES: Mapping[str, Callable[[int, int, ResizeCosts, np.random.Generator], TrainingJob]] = {
    "imagenet": _endless_imagenet,
    "endless": _endless_linear,
    "pollux": _pollux,
    "pollux-batches": _pollux_batches,
    "hpo": _hpo,
    "nas": _nas,
}

# -- files -----------------------------------------------------------------------------------------------------------


def read_jobs(path: Path, costs: ResizeCosts, zone: tzinfo = UTC) -> list[TrainingJob]:
    """Jobs of a TOML file (`[[job]]` tables) or of a CSV file with columns of this project, or BFTrainer's. Plain or
    gzip. `costs` serve where the file has none.

    Raises:
        InvalidInput: with the file and the line or job.
    """
    if path.name.endswith((".toml", ".toml.gz")):
        return _read_toml(path, costs)
    jobs: list[TrainingJob] = []
    time_of = TimeParser(zone)
    with opened(path) as stream:
        lines = Lines(stream, str(path), Tally())
        rows = csv.reader(iter(lines), strict=True)
        try:
            header = [name.strip().lower() for name in next(rows, [])]
            if not {"model", "curve"} & set(header):
                raise InvalidInput(f"{path}:1", COLUMNS_NEEDED)
            for fields in rows:
                where = f"{path}:{lines.number}"
                if not fields:
                    continue
                if len(fields) != len(header):
                    raise InvalidInput(where, f"{len(fields)} fields where the header has {len(header)}")
                if len(jobs) == MAX_JOBS:
                    raise InvalidInput(where, f"more than {MAX_JOBS:,} jobs")
                row = dict(zip(header, (field.strip() for field in fields), strict=True))
                jobs.append(_of_row(_Row(where, row), len(jobs) + 1, costs, time_of))
        except csv.Error as error:
            raise InvalidInput(f"{path}:{lines.number}", str(error)) from error
    if not jobs:
        raise InvalidInput(str(path), "holds no job")
    return jobs


class _Row:
    """One line of a workload, with errors that name the column."""

    def __init__(self, where: str, fields: Mapping[str, str]) -> None:
        self.where, self.fields = where, fields

    def has(self, column: str) -> bool:
        return self.fields.get(column, "") != ""

    def text(self, column: str) -> str:
        return self.fields.get(column, "")

    def number(self, column: str, default: float | None = None, *, least: float = 0.0) -> float:
        if not self.has(column) and default is not None:
            return default
        try:
            value = float(self.text(column))
        except ValueError:
            value = math.nan
        if not least <= value < 1e18:
            raise InvalidInput(
                self.where, f"{column} must be a number of at least {least:g}, not {self.text(column)!r}"
            )
        return value

    def count(self, column: str, default: int | None = None) -> int:
        value = self.number(column, None if default is None else float(default), least=1)
        if value != int(value) or value > 1_000_000:
            raise InvalidInput(
                self.where, f"{column} must be a whole number up to 1,000,000, not {self.text(column)!r}"
            )
        return int(value)


def _of_row(row: _Row, number: int, costs: ResizeCosts, time_of: TimeParser) -> TrainingJob:
    curve = parse_curve(row.text("curve"), row.where) if row.has("curve") else curve_named(row.text("model"))
    if curve is None:
        raise InvalidInput(
            row.where, f"model {row.text('model')!r} has no published curve: add a column curve (1:100;2:190)"
        )
    submitted = 0.0
    if row.has("submit_time"):
        text = row.text("submit_time")
        moment = time_of(text) if text[4:5] == "-" else row.number("submit_time")
        if moment is None:
            raise InvalidInput(row.where, f"submit_time is not a time: {text!r}")
        submitted = moment
    own = _costs(row, costs, grow="rescale_up_s", shrink="rescale_down_s")
    return _job(row, number, row.text("job") or f"job-{number}", curve, own, submitted)


def _costs(row: _Row, costs: ResizeCosts, *, grow: str, shrink: str) -> ResizeCosts:
    return ResizeCosts(
        activate_s=row.number("activate_s", costs.activate_s),
        grow_s=row.number(grow, costs.grow_s),
        shrink_s=row.number(shrink, costs.shrink_s),
    )


def _job(
    row: _Row, number: int, name: str, curve: Curve, costs: ResizeCosts, submitted: float, **more: Any
) -> TrainingJob:
    """The job of a row or a table; `more` as `training_job` takes it."""
    lowest = row.count("min_nodes", 1)
    highest = row.count("max_nodes", max(lowest, curve.points[-1][0]))
    if highest < lowest:
        raise InvalidInput(row.where, f"max_nodes {highest} is below min_nodes {lowest}")
    return training_job(
        number, name, curve, costs, submitted_at=submitted, min_nodes=lowest, max_nodes=highest,
        weight=row.number("weight", 1.0),
        total_samples=row.number("total_samples") if row.has("total_samples") else None, deadline_s=_deadline(row),
        account=row.text("account"), user=row.text("user"), **more,
    )  # fmt: skip


def parse_curve(text: str, where: str) -> Curve:
    """A curve of `NODES:RATE;NODES:RATE...`.

    Raises:
        InvalidInput: not of that form, not rising in nodes, or a rate that is not above 0.
    """
    points: list[tuple[int, float]] = []
    for part in text.split(";"):
        nodes, _, rate = part.partition(":")
        try:
            points.append((int(nodes), float(rate)))
        except ValueError:
            raise InvalidInput(where, f"curve {text[:60]!r} is not of the form 1:100;2:190;4:350") from None
    return _sound_curve(points, where)


def _sound_curve(points: list[tuple[int, float]], where: str) -> Curve:
    nodes = [n for n, _ in points]
    if not points or nodes != sorted(set(nodes)) or nodes[0] < 1 or nodes[-1] > 1_000_000:
        raise InvalidInput(where, "a curve's node counts must rise from at least 1")
    if not all(0 < rate < 1e18 for _, rate in points):
        raise InvalidInput(where, "a curve's rates must be above 0")
    return Curve(tuple(points))


_TOML_KEYS = {
    "name", "model", "curve", "submit", "min_nodes", "max_nodes", "sizes", "total_samples", "weight", "count",
    "activate_s", "grow_s", "shrink_s", "deadline_s", "account", "user", "batches", "batch", "noise_scale",
    "curves", "class_min", "spans",
}  # fmt: skip


def _read_toml(path: Path, costs: ResizeCosts) -> list[TrainingJob]:
    try:
        data = path.read_bytes()
        with gzip.open(io.BytesIO(data)) if data[:2] == b"\x1f\x8b" else io.BytesIO(data) as stream:
            text = stream.read(MAX_FILE_BYTES)
        document = tomllib.loads(text.decode("utf-8"))
    except (OSError, EOFError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(str(path), f"cannot be read: {error}") from error
    tables = document.get("job")
    if not isinstance(tables, list) or not tables:
        raise InvalidInput(str(path), "holds no [[job]] table")
    jobs: list[TrainingJob] = []
    for place, table in enumerate(tables, 1):
        jobs += _from_table(table, f"{path}: job {place}", costs, len(jobs))
        if len(jobs) > MAX_JOBS:
            raise InvalidInput(f"{path}: job {place}", f"more than {MAX_JOBS:,} jobs")
    return jobs


def _from_table(table: Any, where: str, costs: ResizeCosts, before: int) -> Iterable[TrainingJob]:
    if not isinstance(table, dict):
        raise InvalidInput(where, "is not a table")
    unknown = set(table) - _TOML_KEYS
    if unknown:
        raise InvalidInput(where, f"unknown key {sorted(unknown)[0]!r}; known are {', '.join(sorted(_TOML_KEYS))}")
    given = table.get("curve")
    batches = _batches(table, where)
    noise_scale = table.get("noise_scale")
    if noise_scale is not None and (isinstance(noise_scale, bool) or not isinstance(noise_scale, int | float)):
        raise InvalidInput(where, f"noise_scale must be a number of samples, not {noise_scale!r}")
    on_classes = _on_classes(table, where)
    curve: Curve | None
    if on_classes is not None and given is None and not batches and "model" not in table:
        # What speed-ups count by: its slowest class.
        curve = min(on_classes.curves.values(), key=lambda each: each.throughput(1))
    elif batches:
        if given is not None or not batches or table.get("batch", batches[0][0]) not in dict(batches):
            raise InvalidInput(where, "with batches there is no curve, and batch is one of them")
        curve = at_batch(batches, table.get("batch", batches[0][0]), noise_scale)
    elif isinstance(given, dict):
        curve = _table_curve(given, where, "curve")
    else:
        curve = curve_named(str(table.get("model", "")))
    if curve is None:
        raise InvalidInput(
            where, "needs a curve (a table of nodes = samples a second) or a model with a published one"
        )
    moment = table.get("submit", 0.0)
    if hasattr(moment, "timestamp"):
        moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    row = _Row(
        where, {k: str(v) for k, v in table.items() if not isinstance(v, (dict, list))} | {"submit": str(moment)}
    )
    sizes = table.get("sizes", [])
    if not isinstance(sizes, list) or not all(isinstance(k, int) and 0 < k <= 1_000_000 for k in sizes):
        raise InvalidInput(where, "sizes must be a list of node counts")
    own = _costs(row, costs, grow="grow_s", shrink="shrink_s")
    name, submitted = row.text("name") or row.text("model") or "job", row.number("submit", 0.0)
    more = {
        "sizes": tuple(sorted(set(sizes))), "batches": batches, "noise_scale": noise_scale, "on_classes": on_classes,
    }  # fmt: skip
    numbers = range(before + 1, before + 1 + min(row.count("count", 1), MAX_JOBS + 1))
    return [_job(row, number, f"{name}-{number}", curve, own, submitted, **more) for number in numbers]


def _table_curve(table: dict[Any, Any], where: str, name: str) -> Curve:
    try:
        points = sorted((int(n), float(rate)) for n, rate in table.items())
    except (AttributeError, TypeError, ValueError):
        raise InvalidInput(where, f"{name} must be a table of nodes = rate") from None
    return _sound_curve(points, where)


def _on_classes(table: dict[Any, Any], where: str) -> OnClasses | None:
    """Curves by class of nodes; None where the job says nothing of classes."""
    curves, fewest, spans = table.get("curves"), table.get("class_min", {}), table.get("spans", False)
    if curves is None:
        if fewest or spans:
            raise InvalidInput(where, "class_min and spans need curves, a table of class = table of nodes = rate")
        return None
    if not isinstance(curves, dict) or not curves or not isinstance(fewest, dict) or not isinstance(spans, bool):
        raise InvalidInput(where, "curves must be a table of class = table of nodes = rate, spans true or false")
    found = {str(name): _table_curve(rates, where, f"curves.{name}") for name, rates in curves.items()}
    return OnClasses(found, min={str(name): nodes for name, nodes in fewest.items()}, spans=spans)


def _batches(table: dict[Any, Any], where: str) -> tuple[tuple[int, Curve], ...]:
    """The curve of each batch, ascending; none where the job's batch is fixed."""
    given = table.get("batches", {})
    try:
        found = sorted((int(batch), _table_curve(rates, where, f"batches.{batch}")) for batch, rates in given.items())
    except (AttributeError, TypeError, ValueError):
        raise InvalidInput(where, "batches must be a table of batch = table of nodes = rate") from None
    if found and found[0][0] < 1:
        raise InvalidInput(where, "a batch must be at least 1 sample")
    return tuple(found)


def _deadline(row: _Row) -> float | None:
    """Seconds from submission to the deadline; None: there is none."""
    if not row.has("deadline_s"):
        return None
    if not row.has("total_samples"):
        raise InvalidInput(row.where, "deadline_s needs total_samples: what is to be trained by then")
    return row.number("deadline_s")


def shifted(jobs: Iterable[TrainingJob], start: float) -> list[TrainingJob]:
    """The jobs on a trace's clock: submit times below 10^9 count from `start`; earlier ones are there at `start`."""
    moved = []
    for each in jobs:
        at = each.job.submitted_at
        due = each.job.deadline
        due = due + start if due is not None and at < 1e9 else due
        at = start + at if at < 1e9 else max(at, start)
        moved.append(replace(each, job=replace(each.job, submitted_at=at, deadline=due)))
    return moved
