"""`malletrain plan` and `malletrain fit`: the sizing and curve fitting of the daemon, for one problem at a time."""

import csv
import io
import json
import math
import os
from pathlib import Path
from typing import IO

import click

from malletrain.cli.common_options import FILE
from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import ThroughputSample
from malletrain.learn.curve import fit_curve
from malletrain.learn.samples import valid_samples
from malletrain.sizing import registry
from malletrain.sizing.policy import inputs_of, require_inputs
from malletrain.sizing.problem import MAX_NODES
from malletrain.sizing.problem_file import MAX_TEXT_BYTES, parse


def _text(file: IO[bytes]) -> str:
    """The whole file, bounded, as text. Raises `InvalidInput`: too long, or not UTF-8."""
    data = file.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise InvalidInput(file.name, f"is longer than {MAX_TEXT_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(file.name, f"is not UTF-8 text (byte {error.start})") from None


@click.command(
    epilog="""\b
Example:
  echo '{"horizon_s": 300, "nodes": 8, "jobs": [{"id": "a", "max": 8, "throughput": {"1": 10, "8": 60}}]}' \\
    | malletrain plan -"""
)
@click.argument("problem", type=click.File("rb"))
@click.option("--policy", "name", metavar="NAME", default=registry.DEFAULT, help="An unknown name lists those known.")
@click.option("--write-lp", "lp_file", metavar="FILE", type=FILE, help="Also write the problem in LP format.")
def plan(problem: IO[bytes], name: str, lp_file: Path | None) -> None:
    """Solve one sizing problem (a JSON file, - for stdin) and print the plan as JSON.

    Keys: horizon_s, nodes, value, alpha, constraints, jobs (id, current, min, max, sizes, weight, grow_s, shrink_s,
    activate_s, remaining_samples, throughput).
    """
    policy = registry.policy(name)
    try:
        parsed, unknown = parse(_text(problem))
    except InvalidInput as error:
        raise InvalidInput(f"{problem.name}: {error.where}", error.what) from None
    for field in unknown:
        click.echo(f"malletrain: warning: {problem.name}: {field} is not understood and not used", err=True)
    if lp_file is not None:
        from malletrain.sizing.policies.lp import Lp

        try:
            Lp().write(parsed, lp_file)
        except OSError as error:
            raise InvalidInput(os.fspath(lp_file), f"cannot be written: {error.strerror}") from None
    if parsed.jobs:
        remedy = "add them to the problem, or choose another --policy"
        require_inputs(policy, inputs_of(parsed), problem.name, remedy)
    answer = policy.size(parsed)
    out: dict[str, object] = {
        "status": answer.status.value,
        "objective": answer.objective,
        "bound": answer.bound if math.isfinite(answer.bound) else None,
        "sizes": {str(job): nodes for job, nodes in answer.sizes.items()},
        "reason": answer.reason,
        "work": dict(answer.work),
    }
    if answer.batches:
        out["batches"] = {str(job): batch for job, batch in answer.batches.items()}
    if answer.classes:
        out["classes"] = {str(job): dict(counts) for job, counts in answer.classes.items()}
    click.echo(json.dumps(out, indent=2))


def _node_counts(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...]:
    """`1,2,4`: node counts, each at least 1."""
    counts = [part.strip() for part in value.split(",")] if value is not None else []
    for part in counts:
        if not part.isdecimal() or not 1 <= int(part[:12]) <= MAX_NODES:
            raise click.BadParameter(f"{part!r} is not a node count between 1 and {MAX_NODES}", ctx, param)
    return tuple(map(int, counts))


@click.command(
    epilog="""\b
Example:
  printf 'nodes,samples_per_s\\n1,100\\n4,380\\n16,1300\\n' | malletrain fit - --at 8,32"""
)
@click.argument("samples", type=click.File("rb"))
@click.option("--at", "sizes", metavar="N,N,..", callback=_node_counts, help="Predict these sizes.")
def fit(samples: IO[bytes], sizes: tuple[int, ...]) -> None:
    """Fit a scalability curve to samples (CSV: nodes,samples_per_s; - for stdin) and print it as JSON.

    Impossible samples are left out and counted. The band should contain the true value nine times in ten.
    """
    measured = _samples(samples)
    fitted = fit_curve(measured)
    if fitted is None:
        ignored = sorted(valid_samples(measured)[1].items())
        why = "; ".join(f"{count} left out: {reason}" for reason, count in ignored) or "the file holds none"
        raise InvalidInput(samples.name, f"no sample can be used ({why})")
    largest = max(m.nodes for m in fitted.measured)
    curve = fitted.curve(min(2 * largest, MAX_NODES))
    estimates = fitted.at(sizes or [nodes for nodes, _ in curve.points])
    out = {
        "family": fitted.family,
        "probabilities": fitted.probabilities,
        "error_bound": fitted.error_bound,
        "noise": fitted.noise,
        "curve": {str(nodes): rate for nodes, rate in curve.points},
        "predictions": {str(e.nodes): e.rate for e in estimates},
        "bands": {str(e.nodes): [e.low, e.high] for e in estimates},
        "measured": {str(m.nodes): {"samples_per_s": m.rate, "samples": m.windows} for m in fitted.measured},
        "ignored": dict(fitted.ignored),
    }
    click.echo(json.dumps(out, indent=2))


def _samples(file: IO[bytes]) -> list[ThroughputSample]:
    """The rows of the file, whatever their numbers. Raises `InvalidInput`: naming file and line."""
    rows = csv.DictReader(io.StringIO(_text(file), newline=""), skipinitialspace=True)
    found = []
    try:
        names = [name.strip() for name in rows.fieldnames or ()]
        rows.fieldnames = names
        for name in ("nodes", "samples_per_s"):
            if names.count(name) != 1:
                raise InvalidInput(f"{file.name}:1", f"the header must name the column {name} once")
        for row in rows:
            here = f"{file.name}:{rows.line_num}"
            if None in row or None in row.values():
                raise InvalidInput(here, f"has not as many fields as the header, {len(names)}")
            nodes, rate = (_number(f"{here}: {name}", row[name]) for name in ("nodes", "samples_per_s"))
            if math.isfinite(nodes) and nodes != int(nodes):
                raise InvalidInput(f"{here}: nodes", f"must be a whole number, not {row['nodes']!r}")
            found.append(ThroughputSample(0.0, int(nodes) if math.isfinite(nodes) else 0, rate, 1.0, 0))
    except csv.Error as error:
        raise InvalidInput(f"{file.name}:{rows.line_num}", f"is not CSV: {error}") from None
    return found


def _number(where: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidInput(where, f"must be a number, not {text[:40]!r}") from None
