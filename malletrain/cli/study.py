"""`malletrain study`: searches with Optuna whose trials are malleable jobs."""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

import click

from malletrain.cli.common_options import PATH, as_json
from malletrain.cli.jobs import say_json
from malletrain.study import definition, storage, trial_records
from malletrain.study.cluster_runs import JobRuns
from malletrain.study.conductor import Conductor, StudyLimits
from malletrain.study.local_runs import LocalRuns
from malletrain.study.ports import Runs, StudyError
from malletrain.wire.daemon import connect


def _concurrent(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    """`auto` is None."""
    if value == "auto":
        return None
    if value.isascii() and value.isdigit() and len(value) < 5 and int(value) > 0:
        return int(value)
    raise click.BadParameter(f"{value!r} is neither auto nor a number of trials above 0", ctx, param)


_study_file = click.argument("file", metavar="STUDY", type=PATH)
_storage = click.option(
    "--storage", "place", metavar="URL|FILE", help="Where the study is kept.  [default: STUDY.journal]"
)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example:  malletrain study run study.py --trials 30",
)
def study() -> None:
    """Search hyper-parameters or architectures with Optuna; each trial is a malleable job.

    STUDY is a Python file with `direction` and `objective(trial)`: docs/how-to/study.md.
    """
    trial_records.quiet()


@study.command(epilog="Example:  malletrain study run study.py --trials 30 --hours 12")
@_study_file
@click.option("--trials", type=click.IntRange(min=1), help="Until N trials have completed or were pruned.")
@click.option(
    "--hours",
    type=click.FloatRange(min=0, min_open=True),
    help="At most; the next run tries unfinished trials again.",
)
@click.option(
    "--concurrent",
    metavar="auto|N",
    callback=_concurrent,
    default="auto",
    help="Trials at a time; auto: until two wait for nodes.",
)
@_storage
@click.option("--local", is_flag=True, help="On this machine, without a daemon.")
def run(
    file: Path, trials: int | None, hours: float | None, concurrent: int | None, place: str | None, local: bool
) -> None:
    """Begin or continue a study. Exit status 1: not all trials have an answer."""
    wanted = definition.load(file)
    if trials is None and hours is None and not wanted.ends_by_itself:
        raise click.UsageError("give --trials N, --hours H, or both")
    where = place or str(storage.default_path(wanted.file))
    # The trials' folders are beside the journal; beside the study file where the study is kept in a database.
    anchor = wanted.file if "://" in where else Path(where).resolve()
    folder = anchor.parent / f"{wanted.name}.trials"
    stopping = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt  # asked twice: at once
        _say("cancelling running trials; the next run continues (Ctrl-C again: end at once)")
        stopping.set()

    with storage.alone(folder):
        # First what may not be there: without it nothing is begun.
        here = len(os.sched_getaffinity(0))
        runs: Runs = LocalRuns(here) if local else JobRuns(connect, os.environ, _say, stopping)
        runs.check(wanted.nodes)
        kept, known = trial_records.open_study(storage.open_storage(where), wanted)
        if known:
            _say(f"continuing study {wanted.name}: {trial_records.answered(kept)} trials have an answer")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        limits = StudyLimits(trials, None if hours is None else hours * 3600, concurrent)
        Conductor(kept, wanted, runs, folder, _say, stopping).run(limits)
    done = trial_records.answered(kept)
    _say(f"{done} trials have an answer; see: malletrain study status {file}")
    if trials is not None and done < trials:
        raise StudyError(f"{done} of {trials} trials have an answer: run it again to continue")


@study.command(epilog="Example:  malletrain study status study.py")
@_study_file
@_storage
@as_json
def status(file: Path, place: str | None, as_json: bool) -> None:
    """Show how trials ended, node-hours, and the best trial, or the Pareto front."""
    kept = _load(file, place)
    counted = trial_records.counts(kept)
    best = [trial_records.row(trial) for trial in trial_records.best_trials(kept)]
    hours = sum(trial_records.node_hours(trial) for trial in kept.get_trials(deepcopy=False))
    if as_json:
        say_json({"study": kept.study_name, "trials": counted, "node_hours": hours, "best": best})
        return
    counts = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in counted.items()) or "no trials yet"
    click.echo(f"study {kept.study_name}: {counts}; {hours:.2f} node-hours")
    for row in best:
        click.echo(f"best: trial {row['trial']}: {_values(row['values'])}")
        for name, value in {**row["params"], **row["kept"]}.items():
            click.echo(f"  {name} = {value}")


@study.command(epilog="Example:  malletrain study trials study.py --json")
@_study_file
@_storage
@as_json
def trials(file: Path, place: str | None, as_json: bool) -> None:
    """List every trial: how it ended and why."""
    rows = [trial_records.row(trial) for trial in _load(file, place).get_trials(deepcopy=False)]
    if as_json:
        say_json(rows)
        return
    for row in rows:
        words, values = row["ended_as"].replace("_", " "), _values(row["values"])
        params = " ".join(f"{name}={_short(value)}" for name, value in row["params"].items())
        reason = f"  ({row['reason']})" if row["reason"] and not values else ""
        click.echo(f"{row['trial']:>5}  {words:<13} {values:<16} {params}{reason}".rstrip())


def _load(file: Path, place: str | None) -> storage.Study:
    return storage.load(place or str(storage.default_path(file)), file.stem)


def _values(values: list[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value)[:40]


def _say(words: str) -> None:
    """One line on standard error, whole even when several threads speak."""
    sys.stderr.write(f"malletrain study: {' '.join(words.split())}\n")
    sys.stderr.flush()
