"""`malletrain replay`: what would my idle nodes have trained? From the site's own log, with no rights at all."""

import ctypes
import dataclasses
import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from malletrain import __version__, pip_install
from malletrain.cli import replayed_site
from malletrain.cli.common_options import FILE, PATH
from malletrain.cli.replayed_site import ReplayedSite, settings_of
from malletrain.decide.rules import Rules
from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import ResizeCosts
from malletrain.replay import run
from malletrain.replay.assumed_placement import AssumedPlacement
from malletrain.replay.cluster_trace import ClusterTrace, Window, cluster_trace
from malletrain.replay.job_files import read_jobs
from malletrain.replay.likely_outages import SuspectedOutages, likely_outages, without_outages
from malletrain.replay.options import Options
from malletrain.replay.parts import Progress
from malletrain.replay.policy_inputs import parse_budget, parse_node_class
from malletrain.replay.report.summary import summary
from malletrain.replay.sampling import DAY_S, Sample, drawn_days
from malletrain.replay.scoring.main_delay import Reaction, parse_reaction
from malletrain.replay.sizer import PolicyChoice, parse_policy
from malletrain.replay.traces import read_machine, read_trace
from malletrain.replay.traces.events import read_outages
from malletrain.replay.workload import TrainingJob, mix
from malletrain.slurm.formats.hostlist import node_names

#: What was asked for: options of the command and settings of the table, by name.
Arguments = Mapping[str, Any]

_RELATIVE = re.compile(r"\+(\d+(?:\.\d+)?)([smhdw]?)$")
_UNIT = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}

#: Fewest days that tell how much days differ; what stands for `--sample all`.
MIN_SAMPLE_DAYS, ALL_DAYS = 4, 0

#: Days of a window up to which all are replayed, and days that are drawn of a longer one, where nothing is said: as
#: many as two processors replay in two minutes or so, of a machine of some thousand nodes.
MAX_WHOLE_DAYS, DEFAULT_SAMPLE_DAYS = 64, 32

#: Steps of the progress bar.
_BAR_STEPS = 1000

#: Bytes read of a site's configuration.
MAX_CONFIG_BYTES = 1 << 20

#: The commands that a site runs to get a log.
HOW = Path(__file__).with_name("get-log.sh")

EPILOG = """\b
Examples:
  malletrain replay --how
  malletrain replay jobs.sacct.gz --report replay-report
  malletrain replay jobs.sacct.gz --config wider.toml --report wider
"""


_PLACEMENTS = click.Choice([rule.value for rule in AssumedPlacement])


@click.command(epilog=EPILOG)
@click.argument("trace", type=PATH, required=False)
@click.option("--how", is_flag=True, help="Print the commands that get a log out of Slurm.")
@click.option("--jobs", "jobs_file", type=PATH, help="Training jobs: CSV or TOML.")
@click.option(
    "--mix",
    "mix_text",
    metavar="NAME:COUNT",
    help="Training jobs: imagenet, endless, pollux, nas, hpo. [default: imagenet:100]",
)
@click.option("--policy", "policies", default="auto", metavar="A,B,..", help="To compare: NAME or NAME:HORIZON.")
@click.option(
    "--horizon", type=float, metavar="S", help="Seconds that sizing looks ahead. [default: 300; bftrainer 10]"
)
@click.option("--nodes", metavar="N|A:B", help="The first N nodes, or A to B; or the machine's size.")
@click.option("--placement", type=_PLACEMENTS, default="first-fit", help="Where jobs ran, if the log does not say.")
@click.option("--start", metavar="T", help="ISO time, Unix seconds, or +1d, +6h from the trace's begin.")
@click.option("--end", metavar="T", help="The same.")
@click.option("--rescale", metavar="GROW,SHRINK", help="Seconds that a resize stalls a job. [default: 0.3,0.1]")
@click.option(
    "--activate", type=click.FloatRange(0, 1e6), metavar="S", help="Seconds until a new worker is warm. [default: 5]"
)
@click.option(
    "--config",
    "config_file",
    type=FILE,
    metavar="FILE",
    help="The daemon's configuration, and [replay]. [default: as shipped]",
)
@click.option("--outages", type=PATH, help="Output of `sacctmgr -P show event`.")
@click.option("--machine", "machine_file", type=FILE, metavar="FILE", help="All nodes, from sinfo (see --how).")
@click.option("--scheduler", type=FILE, help="`scontrol show config`, `sdiag` and epilog_s=N, for main jobs' delay.")
@click.option(
    "--sample",
    "sample_text",
    metavar="DAYS|all",
    help="Random days to replay; the rest is estimated. [default: all of 64, 32 of more]",
)
@click.option("--json", "json_file", metavar="FILE", help="Write figures as JSON; - is stdout.")
@click.option(
    "--report", "report_dir", type=click.Path(path_type=Path, file_okay=False), help="Write index.html and its data."
)
def replay(trace: Path | None, how: bool, **arguments: Any) -> None:
    """Show what idle nodes would have trained.

    TRACE: `sacct -P` output (see --how), node events (CSV: time,node,state) or SWF, plain or gzip; - for stdin.
    """
    if how:
        click.echo(HOW.read_text(), nl=False)
        return
    if trace is None:
        raise click.UsageError("TRACE is missing; --how prints the command that makes one")
    arguments |= settings_of(arguments["config_file"])
    _require_sense(arguments)
    zone, scheduler = _zone(arguments["timezone"]), arguments["scheduler"]
    slurm = "" if scheduler is None else _text(scheduler)
    reaction = Reaction() if scheduler is None else parse_reaction(slurm, str(scheduler))
    site = replayed_site.site_of(arguments["config_file"])
    if arguments["ideal"] and site.is_own:
        raise click.UsageError("replay.ideal has no daemon: leave out its sections")
    rules = replayed_site.replayed_rules(site.config, slurm, reaction.epilog_s or None)
    jobs, days = _jobs(arguments, zone), _days(arguments["sample_text"])
    names = [name for name in arguments["policies"].split(",") if name.strip()]
    policies = [
        parse_policy(name, arguments["horizon"], rules.alpha, rules.objective, rules.horizon_s) for name in names
    ]
    options, window = _options(arguments, jobs, site, rules), _window(arguments, zone, site)
    # Faults in what was typed are found before the log is read; how large the site is, only the log says.
    machine, suspected = _machine(trace, window, zone, arguments)
    _release_freed_memory()  # reading a year leaves a third of the memory that the replay then needs
    before = [*machine.account.warnings, *machine.warnings]
    _say_warnings(before)
    sample = _sample(machine, jobs, policies, options, days, arguments["seed"])
    with _bar() as progress:
        found = run.replay(
            machine, jobs, policies, options, progress, arguments["processes"], reaction, sample, suspected
        )
    _say_warnings(found.warnings[len(before) :])
    try:
        _write(found, zone, arguments)
    except OSError as error:
        raise InvalidInput(str(error.filename), f"cannot be written: {error.strerror}") from error
    if arguments["json_file"] != "-":
        click.echo(summary(found))


def _require_sense(arguments: Arguments) -> None:
    """Refuse what does not go together, and a report that cannot be made."""
    if arguments["jobs_file"] is not None and arguments["mix_text"] is not None:
        raise click.UsageError("give --jobs or --mix, not both")
    if arguments["engine"] == "loop" and arguments["report_dir"] is not None:
        raise click.UsageError("--report draws what the fast engine records: leave out replay.engine loop")
    if arguments["report_dir"] is not None and importlib.util.find_spec("jinja2") is None:
        raise InvalidInput("--report", f"jinja2 is not installed: {pip_install('replay')}")


def _window(arguments: Arguments, zone: tzinfo, site: ReplayedSite) -> Window:
    path, pool = arguments["machine_file"], site.config.pool
    there = read_machine(path) if path else frozenset[str]()
    first, count = _node_range(arguments["nodes"])
    begin, finish = _moment("--start", arguments["start"], zone), _moment("--end", arguments["end"], zone)
    return Window(
        start=begin[0],
        start_after=begin[1],
        end=finish[0],
        end_after=finish[1],
        first_node=first,
        node_count=count,
        procs_per_node=arguments["procs_per_node"],
        placement=AssumedPlacement(arguments["placement"]),
        seed=arguments["seed"],
        machine=there,
        include=node_names(pool.include, "pool.include"),
        exclude=node_names(pool.exclude, "pool.exclude"),
    )


def _jobs(arguments: Arguments, zone: tzinfo) -> list[TrainingJob]:
    costs = _costs(arguments["rescale"], arguments["activate"], _measured(arguments["costs_from"]))
    if arguments["jobs_file"] is None:
        return mix(arguments["mix_text"] or "imagenet:100", costs, arguments["seed"])
    return read_jobs(arguments["jobs_file"], costs, zone)


def _options(arguments: Arguments, jobs: list[TrainingJob], site: ReplayedSite, rules: Rules) -> Options:
    """The daemon's rules, or the ideal machine's, with what was set besides."""
    options = Options()
    if not arguments["ideal"] and not arguments["node_class"]:
        options = Options.of_daemon(rules, site.config.loop.tick_s, site.name)
    return dataclasses.replace(
        options,
        by_loop=arguments["engine"] == "loop",
        budgets=tuple(parse_budget(each, jobs) for each in arguments["budget"]),
        classes=tuple(map(parse_node_class, arguments["node_class"])),
    )


def _machine(
    path: Path, window: Window, zone: tzinfo, arguments: Arguments
) -> tuple[ClusterTrace, SuspectedOutages | None]:
    """The machine of the log, and idle time of it that probably was none."""
    log = read_trace(path, zone, frozenset(arguments["ignore_partition"]))
    down = read_outages(arguments["outages"], zone) if arguments["outages"] else None
    trace = cluster_trace(log, window, down)
    outages, counts = likely_outages(trace), arguments["likely_outages"] == "count"
    suspected = SuspectedOutages(outages, not counts) if outages else None
    return trace if counts else without_outages(trace, outages), suspected


def _release_freed_memory() -> None:
    """glibc keeps freed pages that lie between arrays that live on, until malloc_trim(3)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _say_warnings(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        click.echo(f"warning: {sentence}", err=True)


def _sample(
    trace: ClusterTrace,
    jobs: Sequence[TrainingJob],
    policies: Sequence[PolicyChoice],
    options: Options,
    asked: int | None,
    seed: int,
) -> Sample | None:
    """Which days are replayed; None: all. `asked`: as `_days` has it."""
    is_long = round(trace.seconds / DAY_S) > MAX_WHOLE_DAYS
    if asked == ALL_DAYS or (asked is None and not is_long):
        return None
    if asked is not None or run.can_be_sampled(trace, jobs, policies, options):
        drawn = drawn_days(trace, asked or DEFAULT_SAMPLE_DAYS, seed, options.tick_s)
        if drawn.size < len(drawn):
            click.echo(f"sample: {drawn.sentence()}", err=True)
            return drawn
    if is_long:
        click.echo(f"sample: none, all days are replayed; {run.NOT_SAMPLED}", err=True)
    return None


def _write(found: run.Replay, zone: tzinfo, arguments: Arguments) -> None:
    """The files that were asked for."""
    folder, json_file = arguments["report_dir"], arguments["json_file"]
    if folder is not None:
        from malletrain.replay.report.page import Origin, write_report  # needs jinja2

        jobs = str(arguments["jobs_file"] or f"mix {arguments['mix_text'] or 'imagenet:100'}")
        command = shlex.join(["malletrain", *sys.argv[1:]])
        origin = Origin(command, __version__, arguments["seed"], jobs, zone)
        write_report(found, folder, origin)
        click.echo(f"report: {folder / 'index.html'}", err=True)
    if json_file is not None:
        text = json.dumps(found.as_json(), indent=2, allow_nan=False) + "\n"
        if json_file == "-":
            click.echo(text, nl=False)
        else:
            Path(json_file).write_text(text, encoding="utf-8")


def _days(text: str | None) -> int | None:
    """So many, `ALL_DAYS`, or None: it depends on how long the window is."""
    if text is None or text == "all":
        return None if text is None else ALL_DAYS
    if not text.isdecimal() or not MIN_SAMPLE_DAYS <= int(text) <= 1_000_000:
        raise InvalidInput("--sample", f"{text!r} must be a number of days, {MIN_SAMPLE_DAYS} or more, or all")
    return int(text)


def _zone(name: str) -> tzinfo:
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInput("replay.timezone", f"{name!r} is no time zone; write it as Europe/Oslo") from None


def _measured(path: str) -> ResizeCosts:
    """What the daemon of that journal measured; stated defaults where it measured nothing, or there is none."""
    if not path:
        return ResizeCosts()
    journal = Path(path)
    if not journal.is_file():
        raise InvalidInput("replay.costs_from", f"{journal} is not a file; it is the daemon's store.path")
    from malletrain.replay.scoring.journal_score import measured_costs
    from malletrain.store.journal import read_events

    costs, shown = measured_costs(read_events(journal), ResizeCosts())
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
def _bar() -> Iterator[Progress | None]:
    """A progress bar over all policies, on a terminal only."""
    if not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(length=_BAR_STEPS, file=sys.stderr) as bar:
        yield lambda shares: bar.update(round(_BAR_STEPS * sum(shares) / len(shares)) - bar.pos)
