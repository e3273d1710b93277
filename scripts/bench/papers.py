"""The five papers' headlines beside ours: one command, one table, on named data.

    python -m scripts.bench.papers [--data ../shared/data] [--quick] [--write] [--json FILE]

For each seed paper: what it claims, what was measured here against what, with 95 % intervals. It runs parts of the
benches `advisor`, `policies` and of the replay; each of them has more. `--quick` takes the fewest runs that give an
interval. `--write` puts the table into docs/figures.md; it is run by hand.
"""

from __future__ import annotations

import argparse
import json
import sys
from argparse import Namespace
from pathlib import Path
from statistics import fmean

import numpy as np

from malletrain.domain.job import ResizeCosts
from malletrain.replay import Window, cluster_trace, mix, parse_policy, read_trace, replay
from scripts.bench import advisor, figures, policies

#: A paper, what it claims, what was measured and against what, and the figure.
Row = tuple[str, str, str, str]


def cell(values: list[float], digits: int = 3) -> str:
    low, high = advisor.bootstrap(values, np.random.default_rng(1))
    return f"{fmean(values):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def bftrainer(data: Path, days: int) -> list[Row]:
    """Whole days of Summit's first 1,024 nodes, 30 endless ImageNet jobs, stalls of 18 and 12 s."""
    log = read_trace(data / "bftrainer" / "summit_node_events.csv.gz")
    jobs = mix("imagenet:30", ResizeCosts(activate_s=20.0, grow_s=18.0, shrink_s=12.0))
    names = ("auto", "bftrainer", "equal", "one-node")
    shares: dict[str, list[float]] = {name: [] for name in names}
    for day in [1 + 13 * i // max(1, days) for i in range(days)]:
        window = Window(start_after=86400.0 * day, end_after=86400.0 * (day + 1), first_node=0, node_count=1024)
        found = replay(cluster_trace(log, window), jobs, [parse_policy(n, None) for n in names], processes=1)
        for name in names:
            shares[name].append(found.scores[name].share_of_ideal or 0.0)
    head = "BFTrainer (arXiv 2106.12091)", "up to 93 % of dedicated nodes' efficiency"
    rows = [(*head, f"of the best at no cost, {days} days", cell(shares["auto"]))]
    for name, what in (("bftrainer", "its objective at its 10 s, solved exactly"), ("equal", "an equal split"),
                       ("one-node", "one node a job, no resizes")):  # fmt: skip
        gains = [a / b for a, b in zip(shares["auto"], shares[name], strict=True)]
        rows.append((*head, f"times {what}", cell(gains)))
    return rows


def malletrain(data: Path, runs: int) -> list[Row]:
    """Half hours of Summit's idle nodes, 21 jobs in three waves, their curves unknown."""
    advisor.TICK_S = 20.0
    rows: list[Row] = []
    head = "MalleTrain (ICPE 2024)", "up to 22.3 % more training; its baseline is not known here"
    for mix_name in ("ImageNet", "Children of measured"):
        named = advisor.waves(data, range(4, 4 + runs), 0.5, mix_name, ("active", "linear"))
        for found in named.values():
            share = [run[0] for run in found["active"]]
            data_name = f"{mix_name} models"
            rows.append((*head, f"of an oracle's training, {data_name}", cell(share)))
            gains = [a[0] / b[0] for a, b in zip(found["active"], found["linear"], strict=True)]
            rows.append((*head, f"times perfect scaling for all, {data_name}", cell(gains)))
    return rows


def aims(data: Path, runs: int) -> list[tuple[str, str, str, str]]:
    """What must hold of jobs with unknown curves, as parts of an oracle's training: aim, data, and how much."""
    rows: list[tuple[str, str, str, str]] = []

    def add(aim: str, what: str, shares: list[float], least: float) -> None:
        rows.append((what, aim, cell(shares), "met" if fmean(shares) >= least else "**not met**"))
        print(*rows[-1], sep=", ", file=sys.stderr, flush=True)

    mix_name = "ImageNet"
    for hours, tick, least in ((0.5, 10.0, 0.985), (2.0, 30.0, 0.99)):  # 10 s: the daemon's default
        advisor.TICK_S = tick
        named = advisor.waves(data, range(4, 4 + runs), hours, mix_name, ("active",))
        for found in named.values():
            what = f"ImageNet models, Summit's windows of {hours:g} h, {runs} runs"
            add(f"{least:g}", what, [run[0] for run in found["active"]], least)
    advisor.TICK_S = 30.0
    for mix_name in ("ImageNet", "Pollux", "Opposites, 4"):
        for nodes in (64, 256):
            named = advisor.waves(data, range(max(2, runs // 4)), 1.5, mix_name, ("active",), nodes, 2700.0)
            for mixed, found in named.items():
                # The second sixth of an hour and a half: after the tenth minute, before the change.
                before = [run[2] for run in found["active"]]
                add("0.98", f"{mixed}, {nodes} nodes that stay, minutes 15 to 30", before, 0.98)
                add("0.95", f"{mixed}, {nodes} nodes, ten minutes after half of the jobs changed what they do",
                    [run[8] for run in found["active"]], 0.95)  # fmt: skip
    return rows


def others(args: Namespace) -> list[Row]:
    """Saxena et al., Liu et al., Li et al., Or et al. by `policies`."""
    text = policies.text
    batch = policies.batch(args)
    rows: list[Row] = []
    saxena = "Saxena et al. (MASCOTS 2020)", "2x the jobs, up to 10x faster completion"
    for name in ("all samples alike", "by gradient statistics", "goodput, by gradient statistics"):
        line = batch[f"{name}, arrivals x 1"]
        what = f"times shorter completion: {name}"
        rows.append((*saxena, what, text(line["mean_completion_ratio"])))
    tpds = "Liu et al. (TPDS 2024)", "within 2.04 % of the optimum"
    markets = policies.matching(args)
    for name in ("fast rings, 10 jobs, 2 x 24 nodes", "slow rings, 10 jobs, 2 x 24 nodes"):
        for which, what in (("matching", "their market"), ("default", "our default")):
            gap = text(markets[name][which]["mean_gap_percent"])
            rows.append((*tpds, f"% above it, {what}, {name.partition(',')[0]}", gap))
    split = policies.classes(args)["30 jobs, 3 x 32"]["over_split"]
    what = "times classes split beforehand, 3 x 32 GPUs"
    rows.append((*tpds, what, text(split)))
    boa = "BOA Constrictor (arXiv 2602.01404)", "mean completion 1.6x lower at equal budget"
    budget = policies.budget(args)
    for name in ("equal split of 64 GPUs", "threshold that rents, GPU-hours of the equal split of 64 GPUs"):
        what = f"times shorter completion than {name}"
        rows.append((*boa, what, text(budget[name])))
    either = "Or et al. (MLSys 2020)", "completion -45 %, GPU time -85.1 % at most; search < 2 or 6 %"
    found = policies.efficiency(args)
    for key, what in (("jct_saved_percent", "% completion shorter than on four GPUs"),
                      ("gpu_time_saved_percent", "% GPU time less than on the widest pool"),
                      ("share_percent", "% of the time for the search")):  # fmt: skip
        rows.append((*either, what, text(found[key], 0)))
    return rows


def table(rows: list[Row]) -> dict[str, list[list[str]] | list[str]]:
    """Paper and claim stand in the first row of each paper alone."""
    pairs = zip([("",) * 4, *rows], rows, strict=False)
    lines = [["" if row[:2] == before[:2] else f"{row[0]}: {row[1]}", *row[2:]] for before, row in pairs]
    return {"columns": ["Paper and its claim", "Measured here", "Mean [95 %]"], "rows": lines}


def aims_table(rows: list[tuple[str, str, str, str]]) -> str:
    head = "| jobs with unknown curves | aim | share of the oracle's training | |\n|---|---|---|---|\n"
    return head + "".join("| " + " | ".join(row) + " |\n" for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "data")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not options.data.is_dir():
        print(f"papers: {options.data} holds no measurements: give --data", file=sys.stderr)
        return 2
    few = 2 if options.quick else 4
    args = Namespace(
        pollux=options.data / "pollux", gavel=options.data / "gavel", instances=50 if options.quick else 200,
        markets="10x24", workloads=few, scale=1.0,
    )  # fmt: skip
    of_aims = aims(options.data, 2 if options.quick else 16)
    rows = [*malletrain(options.data, few), *bftrainer(options.data, 2 * few), *others(args)]
    print(f"{figures.markdown(table(rows))}\n{aims_table(of_aims)}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.write:
        figures.keep({**figures.tables(), "papers": table(rows)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
