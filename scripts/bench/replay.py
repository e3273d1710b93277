"""Benchmarks of the replay on Summit's node events, and on CEA Curie's jobs. Reads ../shared/data.

    python -m scripts.bench.replay PART

speed        cost by event and memory against nodes, jobs and length; the full log
curie [DAYS] all 257 days of Curie with 100 endless jobs, every 30 s that changed; or some days from day 100 on,
             once all have been placed
quality      policies, paired over windows and node sets, with bootstrap intervals
daemon [WORD] the fast engine against the daemon's own loop, with the rules of a daemon as shipped, and others; or
             those rows that have the word
sensitivity  what activation, stalls, ticks and pilots' limits cost

Times are processor seconds of one core, but for `wall`; memory is the most so far. A busy machine makes both longer.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from malletrain.decide.rules import Rules
from malletrain.replay import (
    ClusterTrace,
    Engine,
    NodeOrder,
    Options,
    PolicySizer,
    ResizeCosts,
    Window,
    cluster_trace,
    mix,
    parse_policy,
    read_trace,
    replay,
)
from malletrain.replay.options import EngineKind
from malletrain.replay.traces import NodeChanges
from malletrain.replay.workload import shifted

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
DAY = 86_400.0
HEADS = f"{'events':>7} {'s':>7} {'wall':>7} {'ms/event':>9} {'MB':>5} {'share':>7}"


def share(
    trace: ClusterTrace, policy: str, costs: ResizeCosts, jobs: str = "imagenet:10", options: Options | None = None
) -> tuple[float, Engine]:
    """Share of the ideal, and the engine that ran."""
    training = shifted(mix(jobs, costs), trace.start)
    engine = Engine(trace, training, PolicySizer(parse_policy(policy, None), training), options or Options())
    totals = engine.run().totals
    return totals.speedup / totals.ideal, engine


def subset(log: NodeChanges, chosen: np.ndarray[tuple[int], np.dtype[np.int64]]) -> NodeChanges:
    """The events of some nodes."""
    rank = np.full(len(log.nodes), -1, np.int32)
    rank[chosen] = np.arange(len(chosen))
    keep = rank[log.node] >= 0
    return replace(
        log, nodes=tuple(log.nodes[i] for i in chosen), time=log.time[keep], node=rank[log.node[keep]],
        state=log.state[keep],
    )  # fmt: skip


def windows(log: NodeChanges) -> Iterator[tuple[str, ClusterTrace]]:
    """Four windows of three days on each of two disjoint random sets of 1,024 nodes."""
    order = np.random.default_rng(0).permutation(len(log.nodes))
    for half in range(2):
        part = subset(log, np.sort(order[half * 1024 : (half + 1) * 1024]))
        for day in (1, 4, 7, 10):
            yield (
                f"set {half + 1}, day {day}",
                cluster_trace(part, Window(start_after=day * DAY, end_after=(day + 3) * DAY)),
            )


def speed(log: NodeChanges) -> None:
    print(f"{'nodes':>6} {'jobs':>5} {'days':>5} {HEADS}")
    for nodes, jobs, days in ((256, 10, 1), (1024, 10, 4), (1024, 100, 4), (4734, 100, 4), (4734, 100, 14.93)):
        trace = cluster_trace(
            log, Window(node_count=nodes, start_after=0, end_after=min(days * DAY, log.time[-1] - log.time[0]))
        )
        print(f"{nodes:6} {jobs:5} {days:5} {timed(trace, f'imagenet:{jobs}', Options())}", flush=True)


def timed(trace: ClusterTrace, jobs: str, options: Options) -> str:
    """Decisions, processor and wall seconds, milliseconds a decision, most memory so far, share of the ideal."""
    begin, began = time.process_time(), time.perf_counter()
    got, engine = share(trace, "auto", ResizeCosts(0, 18, 12), jobs, options)
    spent, wall = time.process_time() - begin, time.perf_counter() - began
    events = len(engine.log.solve_s)
    return f"{events:7} {spent:7.1f} {wall:7.1f} {1e3 * spent / events:9.2f} {peak_mib():5} {got:7.4f}"


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def curie(days: float | None) -> None:
    begin = time.process_time()
    log = read_trace(DATA / "swf" / "CEA-Curie-2011-2.1-cln.swf.gz")
    trace = cluster_trace(log, Window())
    spent = time.process_time() - begin
    ticks = len(np.unique(np.ceil((trace.time - trace.start) / 30.0)))
    print(f"{trace.account.records:,} jobs, {len(trace.nodes):,} nodes, {trace.seconds / DAY:.1f} days")
    print(f"{ticks:,} ticks of 30 s that changed")
    print(f"{len(trace.node):,} changes: read and placed in {spent:.1f} s, {peak_mib()} MB\n{HEADS}", flush=True)
    if days is not None:
        trace = cluster_trace(log, Window(start_after=100 * DAY, end_after=(100 + days) * DAY))
    print(timed(trace, "imagenet:100", Options(tick_s=30.0)))


def quality(log: NodeChanges) -> None:
    rules = {
        "equal": ("equal", NodeOrder.NAME), "bftrainer T=10": ("bftrainer", NodeOrder.NAME),
        "bftrainer T=120": ("bftrainer:120", NodeOrder.NAME), "auto T=120": ("auto:120", NodeOrder.NAME),
        "auto T=300": ("auto", NodeOrder.NAME),
    }  # fmt: skip
    for title, costs in (
        ("18/12 s, activation 0", ResizeCosts(0, 18, 12)),
        ("0.3/0.1 s, activation 5 s", ResizeCosts()),
    ):
        rows = {
            name: [share(t, p, costs, options=Options(order=o))[0] for _, t in windows(log)]
            for name, (p, o) in rules.items()
        }
        base = np.array(rows["auto T=300"])
        print(f"\n{title}: share of the ideal over 8 windows, paired difference to auto T=300 (95 % bootstrap)")
        rng = np.random.default_rng(1)
        for name, values in rows.items():
            difference = np.array(values) - base
            drawn = rng.choice(difference, (10_000, len(difference))).mean(axis=1)
            low, high = np.quantile(drawn, [0.025, 0.975])
            print(f"  {name:22} {np.mean(values):.4f}   {difference.mean():+.4f} [{low:+.4f}, {high:+.4f}]")


def sensitivity(log: NodeChanges) -> None:
    chosen = [trace for _, trace in windows(log)][:3]

    def mean(costs: ResizeCosts, options: Options | None = None) -> float:
        return float(np.mean([share(trace, "auto", costs, options=options)[0] for trace in chosen]))

    print("stall (grow/shrink s) by activation (s):       2       6      20")
    for grow, shrink in ((0.2, 0.2), (4.0, 4.0), (18.0, 12.0), (60.0, 40.0)):
        print(
            f"  {grow:5g} / {shrink:<5g}"
            + " " * 28
            + " ".join(f"{mean(ResizeCosts(a, grow, shrink)):7.4f}" for a in (2, 6, 20))
        )
    for costs in (ResizeCosts(), ResizeCosts(6, 18, 12)):
        print(f"\nactivation {costs.activate_s:g}, stalls {costs.grow_s:g}/{costs.shrink_s:g} s")
        for name, options in (
            ("every event, no limit", Options()),
            ("tick 10 s", Options(tick_s=10)), ("tick 30 s", Options(tick_s=30)),
            *((f"pilot limit {limit:g} s", Options().with_rules(max_pilot_s=limit)) for limit in (3600, 1800, 600)),
        ):  # fmt: skip
            print(f"  {name:24} {mean(costs, options):.4f}")


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
        replay(trace, mix(jobs, ResizeCosts()), [parse_policy("auto", None)], replace(options, engine=engine),
               processes=1).scores["auto"]
        for engine in (EngineKind.FAST, EngineKind.LOOP)
    )  # fmt: skip
    return fast.speedup_node_seconds / loop.speedup_node_seconds - 1


def daemon(log: NodeChanges) -> None:
    only = sys.argv[2:]
    for name in DAEMONS:
        if not only or any(word in name for word in only):
            row = [f"{engine_over_loop(log, name, day):+.2%}" for day in (1, 4, 7, 10)]
            print(f"| {name} | " + " | ".join(row) + " |", flush=True)


def main() -> None:
    events = DATA / "bftrainer" / "summit_node_events.csv.gz"
    if len(sys.argv) == 3 and sys.argv[1] == "curie":
        curie(float(sys.argv[2]))
        return
    given = sys.argv[1:]
    if (
        not given
        or (len(given) > 1 and given[0] != "daemon")
        or given[0] not in ("speed", "curie", "quality", "daemon", "sensitivity")
    ):
        sys.exit(__doc__)
    if sys.argv[1] == "curie":
        curie(None)
        return
    if not events.is_file():
        sys.exit(f"the data set is not at {events}")
    log = read_trace(events)
    assert isinstance(log, NodeChanges)
    {"speed": speed, "quality": quality, "daemon": daemon, "sensitivity": sensitivity}[sys.argv[1]](log)


if __name__ == "__main__":
    main()
