"""`malletrain replay`: what would my idle nodes have trained? From the site's own log, with no rights at all."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from malletrain import __version__
from malletrain.cli.replays.settings import ReplayCommand
from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import ResizeCosts
from malletrain.replay.assumed_placement import AssumedPlacement
from malletrain.replay.main_queue import MainSchedule
from malletrain.replay.parallel.processes import Progress
from malletrain.replay.traces.how import HOW

if TYPE_CHECKING:
    from malletrain.replay.cluster_trace import ClusterTrace
    from malletrain.replay.scoring.figures import Watts
    from malletrain.replay.sensitivity import Setting

_RELATIVE = re.compile(r"\+(\d+(?:\.\d+)?)([smhdw]?)$")
_UNIT = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}

#: Seconds of a replay up to which the report replays a score more without being asked.
MAX_UNASKED_REPLAY_S = 5.0

#: Days of a window up to which all are replayed, and days that are drawn of a longer one, where nothing is said: as
#: many as two processors replay in two minutes or so, of a machine of some thousand nodes.
MAX_WHOLE_DAYS, DEFAULT_SAMPLE_DAYS = 64, 32

#: Fewest days that tell how much days differ.
MIN_SAMPLE_DAYS = 4

#: Bytes read of a site's configuration.
MAX_CONFIG_BYTES = 1 << 20

EPILOG = """\b
Examples:
  malletrain replay --how
  malletrain replay jobs.sacct.gz --report replay-report
  malletrain replay jobs.sacct.gz --config wider.toml --report wider --compare replay-report
"""


@click.command(cls=ReplayCommand, epilog=EPILOG)
@click.argument("trace", type=click.Path(path_type=Path), required=False)
@click.option("--how", is_flag=True, help="Print the commands that get a log out of Slurm.")
@click.option("--jobs", "jobs_file", type=click.Path(path_type=Path), help="Training jobs: CSV or TOML.")
@click.option(
    "--mix",
    "mix_text",
    metavar="NAME:COUNT",
    help="Training jobs: imagenet, endless, pollux, pollux-batches, nas, hpo. [default: imagenet:100]",
)
@click.option(
    "--policy",
    "policies",
    default="auto",
    show_default=True,
    metavar="A,B,..",
    help="Policies to compare, NAME or NAME:HORIZON.",
)
@click.option(
    "--horizon",
    type=float,
    metavar="S",
    help="Seconds that sizing looks ahead. [default: 300; bftrainer 10]",
)
@click.option(
    "--nodes",
    metavar="N|A:B",
    help="The first N nodes, or A to B; or the machine's size.",
)
@click.option(
    "--placement",
    type=click.Choice([rule.value for rule in AssumedPlacement]),
    default="first-fit",
    show_default=True,
    help="Where jobs ran, if the log does not say.",
)
@click.option(
    "--schedule",
    type=click.Choice([how.value for how in MainSchedule]),
    default="logged",
    show_default=True,
    help="How the main queue starts its jobs.",
)
@click.option("--start", metavar="T", help="ISO time, Unix seconds, or +1d, +6h from the trace's begin.")
@click.option("--end", metavar="T", help="The same.")
@click.option(
    "--rescale",
    default=None,
    metavar="GROW,SHRINK",
    help="Seconds that a resize stalls a job. [default: 0.3,0.1]",
)
@click.option(
    "--activate",
    type=click.FloatRange(0, 1e6),
    metavar="S",
    help="Seconds until a new worker is warm. [default: 5]",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The daemon's configuration, and [replay]. [default: as shipped]",
)
@click.option(
    "--outages",
    type=click.Path(path_type=Path),
    help="Output of `sacctmgr -P show event`.",
)
@click.option(
    "--machine",
    "machine_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="All nodes, from sinfo (see --how).",
)
@click.option(
    "--scheduler",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Output of `scontrol show config` and `sdiag`, and epilog_s=N: for main jobs' delay.",
)
@click.option(
    "--sample",
    "sample_text",
    metavar="DAYS|all",
    help="Random days to replay; the rest is estimated. [default: all of 64, 32 of more]",
)
@click.option("--json", "json_file", metavar="FILE", help="Write figures as JSON; - is stdout.")
@click.option(
    "--report", "report_dir", type=click.Path(path_type=Path, file_okay=False),
    help="Write index.html and its data.",
)  # fmt: skip
@click.option(
    "--compare",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="An earlier report to compare with.",
)
def replay(
    trace: Path | None, how: bool, jobs_file: Path | None, mix_text: str | None, policies: str, horizon: float | None,
    alpha: float | None, objective: str | None, nodes: str | None, procs_per_node: int | None, placement: str,
    schedule: str, start: str | None, end: str | None, at_once: int | None, rescale: str | None,
    activate: float | None, costs_from: Path | None, config_file: Path | None, ideal: bool, tick: float | None,
    engine: str,
    pilot_limit: float | None, budgets: tuple[str, ...], node_classes: tuple[str, ...],
    keep_idle: int | None, max_pilots: int | None, pilot_nodes: int | None,
    outages: Path | None, likely_outages: str, machine_file: Path | None, partitions: tuple[str, ...],
    gpu: str | None, include: tuple[str, ...], exclude: tuple[str, ...],
    ignore_partition: tuple[str, ...], timezone: str, seed: int, processes: int | None, watts: str | None,
    scheduler: Path | None, with_promise: bool, json_file: str | None, report_dir: Path | None,
    sensitivity: bool | None, price: float | None, currency: str, grams_per_kwh: float | None, compare: Path | None,
    calibration: Path | None, tables: str, sample_text: str | None,
) -> None:  # fmt: skip
    """Show what idle nodes would have trained.

    TRACE: `sacct -P` output (see --how), node events (CSV: time,node,state) or SWF, plain or gzip; - for stdin.
    """
    if how:
        click.echo(HOW, nl=False)
        return
    if trace is None:
        raise click.UsageError("TRACE is missing; --how prints the command that makes one")
    if jobs_file is not None and mix_text is not None:
        raise click.UsageError("give --jobs or --mix, not both")
    if sensitivity and report_dir is None:
        raise click.UsageError("replay.sensitivity is shown in the report: give --report DIR too")
    if (price is not None or grams_per_kwh is not None) and report_dir is None:
        raise click.UsageError("replay.price and replay.grams_per_kwh are shown in the report: give --report DIR too")
    if tables == "parquet" and report_dir is None:
        raise click.UsageError("replay.tables is about the report: give --report DIR too")
    if compare is not None and report_dir is None:
        raise click.UsageError("--compare is shown in the report: give --report DIR too")
    if grams_per_kwh is not None and watts is None:
        raise click.UsageError("replay.grams_per_kwh needs replay.watts TRAINING,IDLE")
    if engine == "loop" and report_dir is not None:
        raise click.UsageError("--report draws what the fast engine records: leave out replay.engine loop")
    # Imported here so that --help and --how need not wait for numpy.
    from malletrain.cli.replays import replayed_site
    from malletrain.cli.replays.calibration_file import read_calibration
    from malletrain.cli.replays.freed_memory import release_freed_memory
    from malletrain.replay import run, sizer, workload
    from malletrain.replay.cluster_trace import Window, cluster_trace
    from malletrain.replay.inputs.account_budgets import parse_budget
    from malletrain.replay.inputs.node_classes import parse_node_class
    from malletrain.replay.likely_outages import likely_outages as outages_in
    from malletrain.replay.likely_outages import without_outages
    from malletrain.replay.options import EngineKind, Options
    from malletrain.replay.report.director import Origin, SitePrices
    from malletrain.replay.report.page import write_report
    from malletrain.replay.report.parquet_tables import require_pyarrow
    from malletrain.replay.report.side_by_side import read_figures
    from malletrain.replay.report.summary import best, summary
    from malletrain.replay.sampling.days import drawn_days
    from malletrain.replay.scoring.main_delay import Reaction, parse_reaction
    from malletrain.replay.scoring.promise_curve import promise_curve
    from malletrain.replay.sensitivity import sensitivity as sensitivities
    from malletrain.replay.traces import JobRecords, NodeChanges, read_trace
    from malletrain.replay.traces.outages import read_outages
    from malletrain.replay.traces.sinfo_nodes import read_machine, selected
    from malletrain.replay.warnings import doubts
    from malletrain.sizing.objective import Objective
    from malletrain.slurm.formats.hostlist import node_names

    if tables == "parquet":
        require_pyarrow("replay.tables")
    zone = _zone(timezone)
    beside = None if compare is None else read_figures(compare)
    power = _watts(watts)
    reaction = Reaction() if scheduler is None else parse_reaction(_text(scheduler), str(scheduler))
    costs = _costs(rescale, activate, _measured(costs_from))
    measured = None if calibration is None else read_calibration(calibration)
    site = None if config_file is None else replayed_site.of_file(config_file)
    if ideal and (site is not None or max_pilots is not None or pilot_nodes is not None):
        raise click.UsageError(
            "replay.ideal has no daemon: leave out its sections, replay.max_pilots and replay.pilot_nodes"
        )
    asked_days = _days(sample_text)
    # Faults in what was typed are found before the log is read; how large the site is, only the log says.
    for name in policies.split(","):
        if name.strip():
            sizer.parse_policy(name, horizon)
    if (partitions or gpu) and machine_file is None:
        raise click.UsageError("replay.partition and replay.gpu need --machine FILE, which says where each node is")
    there = selected(read_machine(machine_file), partitions, gpu) if machine_file else frozenset[str]()
    wanted, unwanted = node_names(include, "replay.include"), node_names(exclude, "replay.exclude")
    first, count = _node_range(nodes)
    begin, finish = _moment("--start", start, zone), _moment("--end", end, zone)
    if jobs_file is None:
        jobs = workload.mix(mix_text or "imagenet:100", costs, seed)
    else:
        jobs = workload.read_jobs(jobs_file, costs, zone)
    log = read_trace(trace, zone, frozenset(ignore_partition))
    window = Window(
        start=begin[0], start_after=begin[1], end=finish[0], end_after=finish[1], first_node=first, node_count=count,
        procs_per_node=procs_per_node, placement=AssumedPlacement(placement), seed=seed,
        schedule=MainSchedule(schedule), machine=there, include=wanted, exclude=unwanted,
    )  # fmt: skip
    down = read_outages(outages, zone) if outages else None
    if site is not None and not wanted and not unwanted and (isinstance(log, NodeChanges) or log.has_node_lists):
        pool = site[0].pool
        window = dataclasses.replace(
            window, include=node_names(pool.include, "pool.include"), exclude=node_names(pool.exclude, "pool.exclude")
        )
    counted = cluster_trace(log, window, down)
    found = outages_in(counted)
    cleared = without_outages(counted, found)
    release_freed_memory()  # reading a year leaves a third of the memory that the replay then needs
    machine, other = (cleared, counted) if likely_outages == "leave-out" else (counted, cleared)
    options, rules = Options(), None
    if not ideal and not node_classes:
        settings_of, called = site or replayed_site.shipped()
        slurm = "" if scheduler is None else _text(scheduler)
        rules = replayed_site.replayed_rules(settings_of, slurm, reaction.epilog_s or None)
        options = dataclasses.replace(Options.of_daemon(rules, settings_of.loop.tick_s), daemon=called)
    overrides: dict[str, Any] = {
        "tick_s": tick, "keep_idle": keep_idle, "pilot_limit_s": pilot_limit, "most_jobs": at_once,
        "max_pilots": max_pilots, "max_nodes": pilot_nodes,
    }  # fmt: skip
    options = dataclasses.replace(
        options, engine=EngineKind(engine), budgets=tuple(parse_budget(each, jobs) for each in budgets),
        classes=tuple(map(parse_node_class, node_classes)),
        **{name: value for name, value in overrides.items() if value is not None},
    )  # fmt: skip
    aim = Objective(objective) if objective else Objective.THROUGHPUT if rules is None else rules.objective
    fairness = alpha if alpha is not None else 0.0 if rules is None else rules.alpha
    ahead = 300.0 if rules is None else rules.horizon_s
    choices = [
        sizer.parse_policy(name, horizon, fairness, aim, ahead) for name in policies.split(",") if name.strip()
    ]
    before = [*machine.account.warnings, *machine.warnings, *doubts(choices, jobs)]
    for warning in before:
        click.echo(f"warning: {warning}", err=True)
    sample = None
    long = round(machine.seconds / 86_400.0) > MAX_WHOLE_DAYS
    if asked_days is not None or (sample_text is None and long):
        if asked_days is not None or run.can_be_sampled(machine, jobs, choices, options):
            drawn = drawn_days(machine, asked_days or DEFAULT_SAMPLE_DAYS, seed, options.tick_s)
            sample = drawn if drawn.size < len(drawn) else None
        if sample is not None:
            click.echo(f"sample: {sample.sentence()}", err=True)
        elif long:
            click.echo(f"sample: none, all days are replayed; {run.NOT_SAMPLED}", err=True)
    names = [choice.name for choice in choices]
    beside_it = other if found and len(choices) == 1 else None
    # Where the machine stood still nothing is idle without it: those times are replayed alone, and added.
    apart = [(each.start, each.end) for each in found] if machine is cleared else []
    apart = sorted(apart) if all(each.whole for each in found) else []
    with _bar(names if beside_it is None else [*names, "likely outages"]) as progress:
        answer = run.replay(
            machine, jobs, choices, options, progress, processes, power, reaction, beside_it, apart, sample
        )
    if found:
        otherwise, name = answer.otherwise, best(answer)[0]
        if otherwise is None:  # of several policies the best is known only now
            chosen = [choice for choice in choices if choice.name == name]
            with _bar(["likely outages"]) as progress:
                again = run.replay(other, jobs, chosen, options, progress, 1, power, reaction, sample=sample)
            otherwise = again.scores[name]
        suspected = run.SuspectedOutages(found, likely_outages == "leave-out", name, otherwise)
        answer = dataclasses.replace(answer, suspected=suspected)
    if measured is not None:
        answer = dataclasses.replace(answer, realism=measured.factor(best(answer)[1].share_of_ideal))
    if with_promise:
        stated = replayed_site.replayed_promise((site or replayed_site.shipped())[0])
        curve = promise_curve(log, machine, procs_per_node, stated, reaction)
        answer = dataclasses.replace(answer, promise=curve)
    for warning in answer.warnings[len(before) :]:
        click.echo(f"warning: {warning}", err=True)
    settings: tuple[Setting, ...] = ()
    took_s = next(iter(answer.scores.values())).wall_s
    left_out = "Left out: asked for by replay.sensitivity = false."
    if sensitivity is None and report_dir is not None:
        sensitivity = took_s <= MAX_UNASKED_REPLAY_S
        left_out = f"Left out: a score more replays of {took_s:.0f} s each; replay.sensitivity makes them."
        if not sensitivity:
            click.echo(f"sensitivity: {left_out[0].lower()}{left_out[1:]}", err=True)
    if sensitivity:
        placed = None
        if isinstance(log, JobRecords) and not log.has_node_lists:

            def placed(rule: AssumedPlacement) -> ClusterTrace:
                again = cluster_trace(log, dataclasses.replace(window, placement=rule), down)
                return without_outages(again, found) if machine is cleared else again

        with _bar(["other assumptions"]) as progress:
            tell = None if progress is None else lambda share: progress([share])
            settings = sensitivities(answer, placed, window.placement, tell)
    try:
        if report_dir is not None:
            prices = SitePrices(price, currency, power, grams_per_kwh)
            workload_text = str(jobs_file) if jobs_file is not None else f"mix {mix_text or 'imagenet:100'}"
            origin = Origin(shlex.join(["malletrain", *sys.argv[1:]]), __version__, seed, workload_text, zone)
            write_report(
                answer, report_dir, settings, prices, origin, left_out, beside, as_parquet=tables == "parquet"
            )
            click.echo(f"report: {report_dir / 'index.html'}", err=True)
        if json_file is not None:
            text = json.dumps(answer.as_json(), indent=2, allow_nan=False) + "\n"
            if json_file == "-":
                click.echo(text, nl=False)
            else:
                Path(json_file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(str(error.filename), f"cannot be written: {error.strerror}") from error
    if json_file != "-":
        click.echo(summary(answer))


def _days(text: str | None) -> int | None:
    """How many days to draw; None: nothing was said, or all."""
    if text is None or text == "all":
        return None
    if not text.isdecimal() or not MIN_SAMPLE_DAYS <= int(text) <= 1_000_000:
        raise InvalidInput("--sample", f"{text!r} must be a number of days, {MIN_SAMPLE_DAYS} or more, or all")
    return int(text)


def _zone(name: str) -> tzinfo:
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInput("replay.timezone", f"{name!r} is no time zone; write it as Europe/Oslo") from None


def _measured(journal: Path | None) -> ResizeCosts:
    """What the daemon of that journal measured; stated defaults where it measured nothing."""
    if journal is None:
        return ResizeCosts()
    if not journal.is_file():
        raise InvalidInput("replay.costs_from", f"{journal} is not a file; it is the daemon's store.path")
    from malletrain.replay.scoring.measured_costs import measured_costs
    from malletrain.store.event_reader import read_events

    found = measured_costs(read_events(journal), ResizeCosts())
    costs = found.costs
    shown = (
        f"{found.activations:,} activations ({costs.activate_s:.3g} s), {found.grown:,} stalls to grow "
        f"({costs.grow_s:.3g} s), {found.shrunk:,} to shrink ({costs.shrink_s:.3g} s)"
    )
    click.echo(f"costs: {journal} shows {shown}; of none, the default", err=True)
    return costs


def _costs(rescale: str | None, activate: float | None, costs: ResizeCosts) -> ResizeCosts:
    grow, shrink = costs.grow_s, costs.shrink_s
    if rescale is not None:
        try:
            grow, shrink = (float(part) for part in rescale.split(","))
        except ValueError:
            grow = shrink = -1.0
        if not (0 <= grow < 1e6 and 0 <= shrink < 1e6):
            raise InvalidInput("--rescale", f"{rescale!r} must be two numbers of seconds such as 18,12")
    return ResizeCosts(costs.activate_s if activate is None else activate, grow, shrink)


def _watts(text: str | None) -> Watts | None:
    from malletrain.replay.scoring.figures import Watts

    if text is None:
        return None
    try:
        training, idle = (float(part) for part in text.split(","))
    except ValueError:
        training = idle = -1.0
    if not 0 <= idle <= training < 1e6:
        raise InvalidInput("replay.watts", f"{text!r} must be two numbers of watts such as 1800,400")
    return Watts(training, idle)


def _text(path: Path) -> str:
    try:
        return path.read_bytes()[:MAX_CONFIG_BYTES].decode("utf-8", "replace")
    except OSError as error:
        raise InvalidInput(str(path), f"cannot be read: {error.strerror}") from error


def _node_range(text: str | None) -> tuple[int, int | None]:
    """First node and how many."""
    if text is None:
        return 0, None
    match = re.fullmatch(r"(?:(\d{1,7}):)?(\d{1,7})", text)
    if match is None or int(match[2]) <= int(match[1] or 0):
        raise InvalidInput("--nodes", f"{text!r} must be a count such as 1024, or a range such as 1024:2048")
    first = int(match[1] or 0)
    return first, int(match[2]) - first


def _moment(option: str, text: str | None, zone: tzinfo) -> tuple[float | None, float | None]:
    """Unix seconds, or seconds after the trace's begin."""
    if text is None:
        return None, None
    relative = _RELATIVE.match(text)
    if relative is not None:
        return None, float(relative[1]) * _UNIT[relative[2]]
    try:
        if text.replace(".", "", 1).isdecimal():
            return float(text), None
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(option, f"{text!r} is no time; write 2026-11-20T12:00, Unix seconds, or +1d") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp(), None


@contextmanager
def _bar(names: list[str]) -> Iterator[Progress | None]:
    """A progress bar for each policy, on a terminal only."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks = [bars.add_task(name, total=1.0) for name in names]

        def tell(shares: list[float]) -> None:
            for task, share in zip(tasks, shares, strict=True):
                bars.update(task, completed=share)

        yield tell
