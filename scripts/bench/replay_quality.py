"""How much better one policy harvests than another: paired differences with intervals. Reads ../shared/data.

    python -m scripts.bench.replay_quality PART [PART ...] [--csv FILE] [--keep FILE]

With --keep every replay is written down when it ends, and one that is there is not run again: so a run that was
stopped goes on where it was, and two processes may share the parts. Keep a file for one state of the code.

    reference   the published reference points: 1,024 nodes, 4 days, 10 jobs, stalls of 18/12 s, no activation
    tune        horizons, node orders and cost models on node set 1, for choosing
    report      what was chosen, and the baselines, on node set 2: nothing was tuned on it
    grid        stalls by activation, on days 1, 4, 7, 10 of node set 2
    crowd       mixes by jobs per idle node, on days 1 and 7; jobs are endless, so that all rules have the same ones
    ablation    what each part of a decision is worth, on the same days
    causes      what is lost to the ideal at the runtime's own costs, by cause, on the same days
    full        the whole Summit log with 100 jobs, and all baselines
    sites       Theta, Curie and Gaia, 7 days each, under four placement rules
    waves       searches of 1,000 trials, three days of node set 2: trials completed per day

Windows are three days long (days 1, 4, 7, 10) on two disjoint random sets of 1,024 nodes where no days are named. A
difference is of shares of the zero-cost ideal, by day; its interval is the 95 % one of 10,000 bootstrap draws of
whole days. What decides by forecast is in scripts/bench/forecast_replay.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from malletrain.domain.job import Curve, ThroughputSample
from malletrain.learn.curve import fit_curve
from malletrain.replay import (
    AssumedPlacement,
    ClusterTrace,
    Engine,
    NodeOrder,
    Options,
    ResizeCosts,
    Window,
    cluster_trace,
    mix,
    parse_policy,
    read_trace,
)
from malletrain.replay.result import Result
from malletrain.replay.sizer import sizer
from malletrain.replay.traces import NodeChanges
from malletrain.replay.workload import TrainingJob, shifted

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
DAY = 86_400.0
DAYS = (1, 4, 7, 10)
PUBLISHED = ResizeCosts(0.0, 18.0, 12.0)
#: As `scripts/bench/elastic/resize.py` and `idle_to_step` measured them, of which Python's imports are most.
MEASURED = ResizeCosts(activate_s=11.0, grow_s=0.26, shrink_s=0.30)
Rows = list[dict[str, object]]
Figures = dict[str, Any]  #: one line of JSON
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rule:
    """A policy as the command line names it, how nodes are chosen, and what the sizing believes of the jobs."""

    policy: str = "auto"
    order: NodeOrder = NodeOrder.NAME
    pending: bool = False
    tick_s: float = 0.0
    pilot_limit_s: float = float("inf")
    keep_idle: int = 0
    most_jobs: int = sys.maxsize
    believes: str = ""

    @property
    def name(self) -> str:
        words = [self.policy]
        words += [f"order {self.order}"] * (self.order is not NodeOrder.NAME)
        words += ["pending stalls known"] * self.pending
        words += [f"tick {self.tick_s:g} s"] * (self.tick_s > 0)
        words += [f"pilots of {self.pilot_limit_s:g} s"] * (self.pilot_limit_s < 1e9)
        words += [f"sized by {self.believes}"] * bool(self.believes)
        return ", ".join(words)


BASE = Rule()
CHOSEN = Rule(order=NodeOrder.GROUP, pending=True)
CLAIRVOYANT = Rule("clairvoyant")


LINEAR, POWER, COSTLESS = "linear curves", "n^.9 for all", "no costs"


def as_believed(each: TrainingJob, what: str) -> TrainingJob:
    """The job as the sizing takes it: the truth, but for what is named."""
    if what == COSTLESS:
        return replace(each, costs=ResizeCosts(0.0, 0.0, 0.0))
    if what == LINEAR:
        return with_curve(each, Curve.linear(each.job.max_nodes))
    if what == POWER:
        return with_curve(each, Curve(tuple((n, n**0.9) for n in range(1, each.job.max_nodes + 1))))
    if what.startswith("fit "):
        at = [int(n) for n in what.removeprefix("fit ").split(",")]
        found = fit_curve([ThroughputSample(0.0, n, 10 * each.curve.throughput(n), 10.0, 20) for n in at])
        return each if found is None else with_curve(each, found.curve(each.job.max_nodes))
    return each


def with_curve(each: TrainingJob, curve: Curve) -> TrainingJob:
    return replace(each, job=replace(each.job, given_curve=curve))


def replayed(trace: ClusterTrace, jobs: list[TrainingJob], rule: Rule) -> Result:
    on_clock = shifted(jobs, trace.start)
    choice = parse_policy(rule.policy, None)
    order, pending = (NodeOrder.LIFE, True) if choice.clairvoyant else (rule.order, rule.pending)
    options = Options(tick_s=rule.tick_s, most_jobs=rule.most_jobs, order=order, pending_stalls=pending)
    options = options.with_rules(keep_idle=rule.keep_idle, max_pilot_s=rule.pilot_limit_s)
    believed = [as_believed(each, rule.believes) for each in on_clock]
    return Engine(trace, on_clock, sizer(choice, believed), options).run()


def by_day(trace: ClusterTrace, result: Result) -> tuple[Floats, Floats]:
    """Trained and best possible in each whole day (or what is left of it), in node-seconds of speed-up."""
    edges = np.append(np.arange(trace.start, trace.end - 1.0, DAY), trace.end)
    at = np.append(result.log.time, trace.end)
    trained = np.append(result.log.trained, result.totals.speedup)
    best = np.append(result.log.best, result.totals.ideal)
    return np.diff(np.interp(edges, at, trained)), np.diff(np.interp(edges, at, best))


class Kept:
    """Replays that have ended, one a line of JSON; by what was replayed."""

    def __init__(self, file: Path | None) -> None:
        self.file, self._rows = file, dict[str, Figures]()
        for line in file.read_text(encoding="utf-8").splitlines() if file is not None and file.exists() else []:
            row = json.loads(line)
            self._rows[row.pop("key")] = row

    def get(self, key: str, run: Callable[[], Figures]) -> Figures:
        if key not in self._rows:
            began = time.process_time()
            self._rows[key] = run() | {"cpu_s": time.process_time() - began}
            if self.file is not None:
                with self.file.open("a", encoding="utf-8") as out:
                    out.write(json.dumps({"key": key} | self._rows[key]) + "\n")
        return self._rows[key]


kept = Kept(None)


def measured(
    what: str, traces: list[ClusterTrace], jobs: Callable[[], list[TrainingJob]], rule: Rule
) -> tuple[Floats, Floats, float]:
    """Trained and best possible by day over all windows, and the processor time."""

    def run(trace: ClusterTrace) -> Figures:
        trained, best = by_day(trace, replayed(trace, jobs(), rule))
        return {"trained": trained.tolist(), "best": best.tolist()}

    rows = [kept.get(f"{what} | {rule.name} | {i}", partial(run, trace)) for i, trace in enumerate(traces)]
    trained, best = (np.concatenate([np.array(row[name]) for row in rows]) for name in ("trained", "best"))
    return trained, best, sum(float(row["cpu_s"]) for row in rows)


def interval(gain: Floats, best: Floats) -> tuple[float, float]:
    """95 % bootstrap interval of sum(gain) / sum(best), drawing days."""
    drawn = np.random.default_rng(1).integers(0, len(gain), (10_000, len(gain)))
    low, high = np.quantile(gain[drawn].sum(axis=1) / best[drawn].sum(axis=1), [0.025, 0.975])
    return float(low), float(high)


def compare(part: str, title: str, traces: list[ClusterTrace], jobs: Callable[[], list[TrainingJob]],
            rules: list[Rule]) -> Rows:  # fmt: skip
    """Shares of the ideal and paired differences to the first rule."""
    rows: Rows = []
    print(f"\n{title}")
    first: Floats = np.empty(0)
    for rule in rules:
        trained, best, cpu = measured(title, traces, jobs, rule)
        first = trained if rule is rules[0] else first
        share, difference = trained.sum() / best.sum(), (trained - first).sum() / best.sum()
        low, high = interval(trained - first, best)
        rows.append({"part": part, "what": title, "rule": rule.name, "share": share, "difference": difference,
                     "low": low, "high": high, "days": len(best), "cpu_s": cpu})  # fmt: skip
        print(f"  {rule.name:44} {share:.4f}   {difference:+.4f} [{low:+.4f}, {high:+.4f}]", flush=True)
    return rows


# -- traces ----------------------------------------------------------------------------------------------------------


@cache
def summit() -> NodeChanges:
    log = read_trace(DATA / "bftrainer" / "summit_node_events.csv.gz")
    if not isinstance(log, NodeChanges):
        sys.exit("the Summit events are not node events")
    return log


def subset(log: NodeChanges, chosen: NDArray[np.int64]) -> NodeChanges:
    rank = np.full(len(log.nodes), -1, np.int32)
    rank[chosen] = np.arange(len(chosen))
    keep = rank[log.node] >= 0
    return replace(
        log, nodes=tuple(log.nodes[i] for i in chosen), time=log.time[keep], node=rank[log.node[keep]],
        state=log.state[keep],
    )  # fmt: skip


@cache
def part_of_summit(half: int, day: float, days: float) -> ClusterTrace:
    order = np.random.default_rng(0).permutation(len(summit().nodes))
    part = subset(summit(), np.sort(order[half * 1024 : (half + 1) * 1024]))
    return cluster_trace(part, Window(start_after=day * DAY, end_after=(day + days) * DAY))


def windows(half: int) -> list[ClusterTrace]:
    return [part_of_summit(half, day, 3) for day in DAYS]


def days_of(half: int) -> list[ClusterTrace]:
    return [part_of_summit(half, day, 1) for day in DAYS]


def endless(name: str, count: int, costs: ResizeCosts) -> list[TrainingJob]:
    return [replace(each, job=replace(each.job, total_samples=None)) for each in mix(f"{name}:{count}", costs)]


def imagenet(costs: ResizeCosts, count: int = 10) -> Callable[[], list[TrainingJob]]:
    return lambda: mix(f"imagenet:{count}", costs)


# -- parts -----------------------------------------------------------------------------------------------------------


def reference() -> Rows:
    rules = [BASE, Rule("equal"), Rule("one-node"), Rule("greedy"), Rule("bftrainer"), Rule("bftrainer:120"),
             Rule("bftrainer:300"), CHOSEN, CLAIRVOYANT]  # fmt: skip
    return compare("reference", "1,024 random nodes, days 0-4, 10 jobs, 18/12 s, activation 0",
                   [part_of_summit(0, 0, 4)], imagenet(PUBLISHED), rules)  # fmt: skip


def tune() -> Rows:
    rules = [BASE, *(Rule(f"auto:{horizon}") for horizon in (60, 120, 600, 1200)),
             Rule(pending=True), Rule(order=NodeOrder.GROUP), CHOSEN,
             *(Rule(f"auto:{horizon}", NodeOrder.GROUP, True) for horizon in (120, 600))]  # fmt: skip
    return compare("tune", "node set 1, 10 jobs, 18/12 s, activation 0", windows(0), imagenet(PUBLISHED), rules)


def report() -> Rows:
    rules = [BASE, CHOSEN, CLAIRVOYANT, Rule("equal"), Rule("one-node"), Rule("greedy"), Rule("goodput"),
             Rule("bftrainer"), Rule("bftrainer:120")]  # fmt: skip
    rows = compare("report", "node set 2, 10 jobs, 18/12 s, activation 0", windows(1), imagenet(PUBLISHED), rules)
    return rows + compare(
        "report", "node set 2, 10 jobs, 0.26/0.30 s, activation 11 s", windows(1), imagenet(MEASURED),
        [BASE, CLAIRVOYANT, Rule("equal"), Rule("greedy"), Rule("bftrainer")],
    )  # fmt: skip


def grid() -> Rows:
    rows: Rows = []
    for grow, shrink in ((0.2, 0.2), (4.0, 4.0), (18.0, 12.0), (60.0, 40.0)):
        for activate in (2.0, 6.0, 20.0):
            costs = ResizeCosts(activate, grow, shrink)
            title = f"set 2, 4 days, 10 jobs: {grow:g}/{shrink:g} s, activation {activate:g} s"
            rows += compare("grid", title, days_of(1), imagenet(costs),
                            [BASE, CLAIRVOYANT, Rule("bftrainer")])  # fmt: skip
    return rows


def crowd() -> Rows:
    rows: Rows = []
    for name in ("imagenet", "pollux", "nas"):
        for per_node, count in ((0.1, 8), (0.3, 25), (1, 85), (3, 255)):
            title = f"set 2, 2 days: {count} endless jobs of mix {name}, {per_node:g} an idle node, 18/12 s"
            rows += compare("crowd", title, days_of(1)[::2], partial(endless, name, count, PUBLISHED),
                            [BASE, Rule("equal"), Rule("one-node"), Rule("bftrainer")])  # fmt: skip
    return rows


def ablation() -> Rows:
    base = CHOSEN
    rules = [base, Rule(order=NodeOrder.GROUP), Rule(pending=True), BASE,
             *(replace(base, policy=f"auto:{horizon}") for horizon in (10, 60, 1200)), replace(base, policy="greedy"),
             replace(base, policy="equal"), replace(base, believes=COSTLESS), replace(base, believes=LINEAR),
             replace(base, believes=POWER), replace(base, believes="fit 1,4"), replace(base, believes="fit 1,4,16"),
             replace(base, tick_s=10.0), replace(base, pilot_limit_s=1800.0)]  # fmt: skip
    rows = compare(
        "ablation", "set 2, 4 days, 10 jobs, 18/12 s, no activation", days_of(1), imagenet(PUBLISHED), rules
    )
    return rows + compare("ablation", "set 2, 4 days, 10 jobs, 0.26/0.30 s, activation 11 s", days_of(1),
                          imagenet(MEASURED), rules)  # fmt: skip


def causes() -> Rows:
    """Each cause by what is won without it: at the runtime's own costs, with the daemon's tick and pilots."""
    rows: Rows = []
    as_daemon = Rule(tick_s=10.0, pilot_limit_s=1800.0)
    warm = ResizeCosts(3.0, MEASURED.grow_s, MEASURED.shrink_s)
    cases = (("all of it", MEASURED, as_daemon),
             ("no stalls", ResizeCosts(MEASURED.activate_s, 0, 0), as_daemon),
             ("no activation", ResizeCosts(0, MEASURED.grow_s, MEASURED.shrink_s), as_daemon),
             ("activation 3 s, as with Python's imports done before", warm, as_daemon),
             ("every event decided", MEASURED, replace(as_daemon, tick_s=0.0)),
             ("pilots without a limit", MEASURED, replace(as_daemon, pilot_limit_s=float("inf"))),
             ("activation and stalls alone", MEASURED, BASE),
             ("nothing but choosing sizes", ResizeCosts(0, 0, 0), BASE))  # fmt: skip
    for title, costs, rule in cases:
        rows += compare("causes", f"set 2, 4 days, 10 jobs, 0.26/0.30 s, activation 11 s, {title}", days_of(1),
                        imagenet(costs), [rule])  # fmt: skip
    return rows


def full() -> Rows:
    trace = cluster_trace(summit(), Window())
    rules = [BASE, CHOSEN, Rule("equal"), Rule("one-node"), Rule("bftrainer"), Rule("bftrainer:120"), CLAIRVOYANT,
             Rule("goodput"), Rule("greedy")]  # fmt: skip
    return compare("full", "4,734 nodes, 14.9 days, 100 jobs, 18/12 s, activation 0", [trace],
                   imagenet(PUBLISHED, 100), rules)  # fmt: skip


def sites() -> Rows:
    rows: Rows = []
    logs = (("Theta", "ALCF-Theta-2023.swf.gz", 100), ("Curie", "CEA-Curie-2011-2.1-cln.swf.gz", 150),
            ("Gaia", "UniLu-Gaia-2014-1.swf.gz", 30))  # fmt: skip
    for site, file, day in logs:
        log = read_trace(DATA / "swf" / file)
        for rule in AssumedPlacement:
            trace = cluster_trace(log, Window(start_after=day * DAY, end_after=(day + 7) * DAY, placement=rule))
            jobs = 10 if site == "Gaia" else 30
            rows += compare("sites", f"{site}, days {day}-{day + 7}, {rule}, {jobs} jobs, 18/12 s, activation 0",
                            [trace], imagenet(PUBLISHED, jobs),
                            [BASE, CLAIRVOYANT, Rule("equal"), Rule("bftrainer")])  # fmt: skip
    return rows


def waves() -> Rows:
    """A search's 1,000 trials in three days; trials completed per day until nine tenths of them have ended or the
    window has: the last ones leave nodes idle whatever the rule. Ten or a hundred trials are there at once; a trial
    has one node at least, so `one-node` is a search without malleability."""
    rows: Rows = []
    rules = [BASE, Rule("equal"), Rule("one-node"), Rule("bftrainer"), Rule("bftrainer:120")]
    for at_once in (10, 100):
        for name in ("nas", "hpo"):
            for costs, said in ((MEASURED, "0.26/0.30 s, activation 11 s"), (PUBLISHED, "18/12 s, activation 0")):
                what = f"1,000 trials of mix {name}, {at_once} at once, {said}"
                print(f"\n{what}: per day, on 1,024 nodes; by day; in three days; auto over this")
                base = 0.0
                for rule in rules:
                    row = kept.get(f"{what} | {rule.name}", partial(wave, name, costs, rule, at_once))
                    done, by_day = float(row["per_day"]), [int(n) for n in row["by_day"]]
                    base = base or done
                    ratio = base / done if done else float("inf")
                    rows.append({"part": "waves", "what": what, "rule": rule.name, "share": done, "difference": ratio,
                                 "days": 3, "cpu_s": row["cpu_s"]})  # fmt: skip
                    print(f"  {rule.name:20} {done:8.1f} {by_day} {sum(by_day)} {ratio:8.3f}", flush=True)
    return rows


def wave(name: str, costs: ResizeCosts, rule: Rule, at_once: int) -> Figures:
    """Trials that end on each day, and per day until nine tenths have."""
    trace = windows(1)[0]
    trials = mix(f"{name}:1000", costs)
    result = replayed(trace, trials, replace(rule, most_jobs=at_once))
    ended = np.sort(result.finished[np.isfinite(result.finished)])
    edges = np.append(np.arange(trace.start, trace.end - 1.0, DAY), trace.end)
    most = len(trials) * 9 // 10
    until = ended[most - 1] if len(ended) >= most else trace.end
    return {
        "by_day": [int(n) for n in np.histogram(ended, edges)[0]],
        "per_day": float(np.count_nonzero(ended <= until) / (until - trace.start) * DAY),
    }


PARTS = {f.__name__: f for f in (reference, tune, report, grid, crowd, ablation, causes, full, sites, waves)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--csv", type=Path, help="one row a figure")
    parser.add_argument("--keep", type=Path, help="where replays are written down, and found again")
    args = parser.parse_args()
    globals()["kept"] = Kept(args.keep)
    if not DATA.is_dir():
        sys.exit(f"the data sets are not at {DATA}")
    rows = [row for part in args.parts for row in PARTS[part]()]
    if args.csv is not None:
        with args.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(
                file, ["part", "what", "rule", "share", "difference", "low", "high", "days", "cpu_s"]
            )
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
