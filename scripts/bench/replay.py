"""Replays of public logs: what they cost, how near the engines are, what sizing is worth.

    python -m scripts.bench.replay PART [PART ...] [--data ../shared/data]

speed    cost by event and memory against nodes, jobs and length; Summit's whole log
curie    all 257 days of CEA Curie with 100 endless jobs, every 30 s that changed
daemon   the fast engine against the daemon's own loop, with the rules of a daemon as shipped, and others
report   policies on node set 2 of Summit: shares of the ideal, and differences to `auto`
full     the same on the whole log, with 100 jobs
causes   what is lost to the ideal at the runtime's own costs, by cause

Times are processor seconds of one core, but for `wall`; memory is the most so far. A busy machine makes both longer.
Windows are three days long (days 1, 4, 7, 10), of causes one day, on the second of two disjoint random sets
of 1,024 nodes. A difference is of shares of the zero-cost ideal, by day; its interval is the 95 % one of 10,000
bootstrap draws of whole days.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from malletrain.decide.rules import Rules
from malletrain.replay import Options, ResizeCosts, Window, cluster_trace, mix, parse_policy, read_trace, replay
from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.engine import Engine
from malletrain.replay.options import UNLIMITED
from malletrain.replay.report.intervals import by_day
from malletrain.replay.result import Result
from malletrain.replay.sizer import PolicySizer
from malletrain.replay.traces import NodeChanges
from malletrain.replay.workload import TrainingJob, shifted
from scripts.bench.shared import data_options_of, peak_mib

DAY = 86_400.0
DAYS = (1, 4, 7, 10)
PUBLISHED = ResizeCosts(0.0, 18.0, 12.0)
#: As `elastic.resize` and `idle_to_step` measured them, of which Python's imports are most.
MEASURED = ResizeCosts(activate_s=11.0, grow_s=0.26, shrink_s=0.30)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rule:
    """A policy as the command line names it, and what limits the daemon."""

    policy: str = "auto"
    tick_s: float = 0.0
    pilot_limit_s: float = float("inf")


BASE = Rule()
#: The daemon's tick and half-hour pilots.
AS_DAEMON = Rule(tick_s=10.0, pilot_limit_s=1800.0)


# -- traces ----------------------------------------------------------------------------------------------------------


@cache
def summit(data: Path) -> NodeChanges:
    log = read_trace(data / "bftrainer" / "summit_node_events.csv.gz")
    assert isinstance(log, NodeChanges)
    return log


def subset(log: NodeChanges, chosen: NDArray[np.int64]) -> NodeChanges:
    """The events of some nodes."""
    rank = np.full(len(log.nodes), -1, np.int32)
    rank[chosen] = np.arange(len(chosen))
    keep = rank[log.node] >= 0
    return replace(
        log,
        nodes=tuple(log.nodes[i] for i in chosen),
        time=log.time[keep],
        node=rank[log.node[keep]],
        state=log.state[keep],
    )


@cache
def windows(data: Path, days: int) -> list[ClusterTrace]:
    """Windows of so many days on the second of two random sets of nodes."""
    log = summit(data)
    part = subset(log, np.sort(np.random.default_rng(0).permutation(len(log.nodes))[1024:2048]))
    return [cluster_trace(part, Window(start_after=day * DAY, end_after=(day + days) * DAY)) for day in DAYS]


# -- costs -----------------------------------------------------------------------------------------------------------

HEADS = f"{'events':>7} {'s':>7} {'wall':>7} {'ms/event':>9} {'MB':>5} {'share':>7}"


def replayed(trace: ClusterTrace, jobs: Sequence[TrainingJob], rule: Rule) -> Result:
    """One policy over one trace."""
    training = shifted(jobs, trace.start)
    options = Options(tick_s=rule.tick_s, rules=replace(UNLIMITED, max_pilot_s=rule.pilot_limit_s))
    return Engine(trace, training, PolicySizer(parse_policy(rule.policy, None), training), options).run()


def timed(trace: ClusterTrace, jobs: str, rule: Rule = BASE) -> str:
    """Decisions, processor and wall seconds, milliseconds a decision, most memory so far, share of the ideal."""
    begin, began = time.process_time(), time.perf_counter()
    found = replayed(trace, mix(jobs, PUBLISHED), rule)
    spent, wall = time.process_time() - begin, time.perf_counter() - began
    events, got = len(found.log.solve_s), found.totals.speedup / found.totals.ideal
    return f"{events:7} {spent:7.1f} {wall:7.1f} {1e3 * spent / events:9.2f} {peak_mib():5.0f} {got:7.4f}"


def speed(data: Path) -> None:
    log = summit(data)
    print(f"{'nodes':>6} {'jobs':>5} {'days':>5} {HEADS}")
    for nodes, jobs, days in ((256, 10, 1), (1024, 10, 4), (1024, 100, 4), (4734, 100, 4), (4734, 100, 14.93)):
        end = min(days * DAY, log.time[-1] - log.time[0])
        trace = cluster_trace(log, Window(node_count=nodes, start_after=0, end_after=end))
        print(f"{nodes:6} {jobs:5} {days:5} {timed(trace, f'imagenet:{jobs}')}", flush=True)


def curie(data: Path) -> None:
    begin = time.process_time()
    trace = cluster_trace(read_trace(data / "swf" / "CEA-Curie-2011-2.1-cln.swf.gz"), Window())
    spent = time.process_time() - begin
    ticks = len(np.unique(np.ceil((trace.time - trace.start) / 30.0)))
    print(f"{trace.account.records:,} jobs, {len(trace.nodes):,} nodes, {trace.seconds / DAY:.1f} days")
    print(f"{ticks:,} ticks of 30 s that changed")
    print(f"{len(trace.node):,} changes: read and placed in {spent:.1f} s, {peak_mib():.0f} MB\n{HEADS}", flush=True)
    print(timed(trace, "imagenet:100", Rule(tick_s=30.0)))


# -- the two engines -------------------------------------------------------------------------------------------------

#: Rules of a daemon as shipped (`malletrain.site_rules.rules_from` of a small site's configuration).
SHIPPED = Rules(keep_idle=1, max_pilots=100, max_starts=50, margin_s=35.0, min_hole_s=110.0, leave_lead_s=15.0)
#: What the two engines are compared with: jobs, and which rules are others than as shipped.
DAEMONS: dict[str, tuple[str, dict[str, Any]]] = {
    "as shipped": ("imagenet:10", {}),
    "12 pilots of 10 minutes": ("imagenet:10", {"max_pilots": 12, "max_pilot_s": 600.0}),
    "6 pilots of up to 8 nodes": ("imagenet:10", {"max_pilots": 6, "max_nodes": 8}),
    "turns: 40 jobs, 15 pilots": ("imagenet:40", {"max_pilots": 15, "max_wait_s": 600.0, "turn_s": 300.0}),
}


def engine_over_loop(log: NodeChanges, name: str, day: int) -> float:
    """Node-seconds of speed-up of the fast engine over the loop's, less one: two hours of 512 random nodes."""
    jobs, changed = DAEMONS[name]
    part = subset(log, np.sort(np.random.default_rng(0).permutation(len(log.nodes))[:512]))
    trace = cluster_trace(part, Window(start_after=day * DAY, end_after=day * DAY + 7200))
    options = Options.of_daemon(replace(SHIPPED, **changed), 10.0)
    fast, loop = (
        replay(
            trace,
            mix(jobs, ResizeCosts()),
            [parse_policy("auto", None)],
            replace(options, by_loop=by_loop),
            processes=1,
        ).scores["auto"]
        for by_loop in (False, True)
    )
    return fast.speedup_node_seconds / loop.speedup_node_seconds - 1


def daemon(data: Path) -> None:
    for name in DAEMONS:
        row = [f"{engine_over_loop(summit(data), name, day):+.2%}" for day in DAYS]
        print(f"| {name} | " + " | ".join(row) + " |", flush=True)


# -- what sizing is worth --------------------------------------------------------------------------------------------


def compare(title: str, traces: Sequence[ClusterTrace], jobs: Sequence[TrainingJob], rules: Sequence[str]) -> None:
    """Shares of the ideal and paired differences to the first policy."""
    print(f"\n{title}")
    first: Floats = np.empty(0)
    for name in rules:
        found = [(trace, replayed(trace, jobs, Rule(name))) for trace in traces]
        days = [by_day(trace.start, trace.end, result)[:2] for trace, result in found]
        trained, best = (np.concatenate(column) for column in zip(*days, strict=True))
        first = trained if name == rules[0] else first
        drawn = np.random.default_rng(1).integers(0, len(best), (10_000, len(best)))
        low, high = np.quantile((trained - first)[drawn].sum(axis=1) / best[drawn].sum(axis=1), [0.025, 0.975])
        share, difference = trained.sum() / best.sum(), (trained - first).sum() / best.sum()
        print(f"  {name:16} {share:.4f}   {difference:+.4f} [{low:+.4f}, {high:+.4f}]", flush=True)


def report(data: Path) -> None:
    rules = ["auto", "equal", "one-node", "greedy", "bftrainer"]
    compare("10 jobs, 18/12 s, activation 0", windows(data, 3), mix("imagenet:10", PUBLISHED), rules)
    rules.remove("one-node")
    compare("10 jobs, 0.26/0.30 s, activation 11 s", windows(data, 3), mix("imagenet:10", MEASURED), rules)


def full(data: Path) -> None:
    compare(
        "4,734 nodes, 14.9 days, 100 jobs, 18/12 s, activation 0",
        [cluster_trace(summit(data), Window())],
        mix("imagenet:100", PUBLISHED),
        ["auto", "equal", "one-node", "bftrainer"],
    )


def share_of_ideal(data: Path, costs: ResizeCosts, rule: Rule = BASE) -> float:
    """Of ten jobs in the windows of one day."""
    found = [replayed(trace, mix("imagenet:10", costs), rule).totals for trace in windows(data, 1)]
    return sum(each.speedup for each in found) / sum(each.ideal for each in found)


def causes(data: Path) -> None:
    """Each cause by what is won without it: at the runtime's own costs, with the daemon's tick and pilots."""
    for title, costs, rule in (
        ("all of it", MEASURED, AS_DAEMON),
        ("no stalls", ResizeCosts(MEASURED.activate_s, 0, 0), AS_DAEMON),
        ("no activation", replace(MEASURED, activate_s=0.0), AS_DAEMON),
        ("activation 3 s, as with Python's imports done before", replace(MEASURED, activate_s=3.0), AS_DAEMON),
        ("every event decided", MEASURED, replace(AS_DAEMON, tick_s=0.0)),
        ("pilots without a limit", MEASURED, Rule(tick_s=10.0)),
        ("activation and stalls alone", MEASURED, BASE),
    ):
        print(f"{title:56} {share_of_ideal(data, costs, rule):.4f}", flush=True)


PARTS: dict[str, Callable[[Path], None]] = {
    part.__name__: part for part in (speed, curie, daemon, report, full, causes)
}


def main() -> None:
    parser = data_options_of(__doc__)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    options = parser.parse_args()
    for part in options.parts:
        PARTS[part](options.data)


if __name__ == "__main__":
    main()
