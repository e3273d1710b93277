"""A scenario: a log, a machine under a daemon's rules, training jobs, policies and costs; and its replay."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from pathlib import Path

from malletrain.replay import run
from malletrain.replay.cluster_trace import ClusterTrace, Window, cluster_trace
from malletrain.replay.likely_outages import SuspectedOutages, likely_outages, without_outages
from malletrain.replay.options import Options
from malletrain.replay.processes import Progress
from malletrain.replay.sampling import Sample, drawn_days
from malletrain.replay.scoring.main_delay import Reaction
from malletrain.replay.sizer import PolicyChoice
from malletrain.replay.traces import NodeChanges, read_trace
from malletrain.replay.traces.events import read_outages
from malletrain.replay.workload import TrainingJob

#: Days of a window up to which all are replayed, and days that are drawn of a longer one, where nothing is said: as
#: many as two processors replay in two minutes or so, of a machine of some thousand nodes.
MAX_WHOLE_DAYS, DEFAULT_SAMPLE_DAYS = 64, 32

#: What `Scenario.sample` has where all days are replayed.
ALL_DAYS = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is replayed.

    The log: its `file`, the `zone` of times that name none, partitions whose jobs count as idle time, the output of
    `sacctmgr show event`; `counts_outages`: likely outages count as idle time; `sample`: days to draw, None: all of a
    window that is not long. The machine: which part of log and nodes, and under which daemon's rules; `include`,
    `exclude`: the nodes that this daemon may take, where the log names nodes and the window does not choose.
    `seed`: of all random choices; `processes`: replays at once (None: one a processor).
    """

    file: Path
    jobs: tuple[TrainingJob, ...]
    policies: tuple[PolicyChoice, ...]
    zone: tzinfo = UTC
    ignore_partitions: frozenset[str] = frozenset()
    outages: Path | None = None
    counts_outages: bool = False
    sample: int | None = None
    window: Window = field(default_factory=Window)
    options: Options = field(default_factory=Options)
    include: frozenset[str] = frozenset()
    exclude: frozenset[str] = frozenset()
    reaction: Reaction = field(default_factory=Reaction)
    seed: int = 0
    processes: int | None = None


def answer(
    scenario: Scenario,
    say: Callable[[str], None] = lambda sentence: None,
    bar: Callable[[list[str]], AbstractContextManager[Progress | None]] = lambda names: nullcontext(),
) -> run.Replay:
    """Reads the log and replays it. `say` is told sentences meanwhile; `bar` makes a progress bar for each name.

    Raises:
        InvalidInput: the log cannot be read, or something cannot be replayed.
    """
    jobs, policies, window, zone = scenario.jobs, scenario.policies, scenario.window, scenario.zone
    log = read_trace(scenario.file, zone, scenario.ignore_partitions)
    down = read_outages(scenario.outages, zone) if scenario.outages else None
    has_names = isinstance(log, NodeChanges) or log.has_node_lists
    if has_names and not window.include and not window.exclude:
        window = replace(window, include=scenario.include, exclude=scenario.exclude)
    trace = cluster_trace(log, window, down)
    outages = likely_outages(trace)
    if not scenario.counts_outages:
        trace = without_outages(trace, outages)
    _release_freed_memory()  # reading a year leaves a third of the memory that the replay then needs
    before = [*trace.account.warnings, *trace.warnings]
    for warning in before:
        say(f"warning: {warning}")
    sample = _sample(scenario, trace, say)
    with bar([choice.name for choice in policies]) as progress:
        found = run.replay(
            trace, jobs, policies, scenario.options, progress, scenario.processes, scenario.reaction, sample
        )
    if outages:
        found = replace(found, suspected=SuspectedOutages(outages, not scenario.counts_outages))
    for warning in found.warnings[len(before) :]:
        say(f"warning: {warning}")
    return found


def _release_freed_memory() -> None:
    """glibc keeps freed pages that lie between arrays that live on, until malloc_trim(3)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _sample(scenario: Scenario, trace: ClusterTrace, say: Callable[[str], None]) -> Sample | None:
    """Which days are replayed; None: all."""
    asked, options = scenario.sample, scenario.options
    is_long = round(trace.seconds / 86_400.0) > MAX_WHOLE_DAYS
    if asked == ALL_DAYS or (asked is None and not is_long):
        return None
    if asked is None and not run.can_be_sampled(trace, scenario.jobs, scenario.policies, options):
        say(f"sample: none, all days are replayed; {run.NOT_SAMPLED}")
        return None
    drawn = drawn_days(trace, asked or DEFAULT_SAMPLE_DAYS, scenario.seed, options.tick_s)
    if drawn.size < len(drawn):
        say(f"sample: {drawn.sentence()}")
        return drawn
    if is_long:
        say(f"sample: none, all days are replayed; {run.NOT_SAMPLED}")
    return None
