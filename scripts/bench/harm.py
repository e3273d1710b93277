"""Does the main queue notice MalleTrain? Four labs of real Slurm play the same slice of a real job log at once.

Arms: no preemption configured; its twin (what differs between these two is noise); preemption configured, no pilots;
and pilots on every idle node. Every third job of several nodes is a hetjob, an array, `srun -I` or asks for one leaf
switch; staff makes reservations meanwhile. Times of the log are divided by a factor, which is printed.

    python -m scripts.bench.harm --log LOG.swf.gz --profile fast --seconds 480 --json run1.json
    python -m scripts.bench.harm --log LOG.swf.gz --profile site --promise 'main_delay_p95 = "2s"'
    python -m scripts.bench.harm --summarise run1.json run2.json

With `--promise` the daemon knows no arrivals at first: its reserve is the whole machine until it has seen some fifty.
With `--learn-choice` the pilots' arm first plays another window of the log alone, as long, without a promise; then
its daemon starts anew with one, and has arrivals from accounting and from its journal how quickly pilots leave, as on
a site.
`--skip-epilog` puts the script of docs/how-to/admin-slurm.md before the prolog and epilog of the pilots' arm.

Pilots run a job in restart mode whose script only sleeps: training itself would take this machine's processors from
all four labs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from malletrain.domain.event import Event
from malletrain.replay.scoring.journal_score import score_journal
from malletrain.store.encoding import payload_data
from malletrain.store.journal import read_events
from scripts.bench.shared import options_of
from scripts.lab import Lab, LabError
from scripts.lab.conf import EPILOG_S, PROLOG_S
from scripts.play.arm import LEAF, Arm, lab_config, labs_up, skip_epilog
from scripts.play.harm import ARMS, BASE, PILOTS, PREEMPTION, SITE_CYCLE_S, summary
from scripts.play.load import MainJob, from_log, of_all_kinds
from scripts.play.player import Player
from scripts.play.predicted import idle_spans, predicted
from scripts.play.site import BIN, FAST_LOOP, Site, folder_for_labs

#: The arms play so many seconds one after the other. Little where backfill comes every 30 s: the labs' cycles come at
#: the same moments, so what they start begins that much sooner or later after its submission.
STAGGER_S = {"fast": 1.3, "site": 0.3}

#: So many preemptions an hour open no breaker: the site's 20 are those of an hour of the log.
PREEMPTIONS_PER_HOUR = 1000

#: At profile `site` a play begins so long after a backfill cycle of the pilots' arm (seconds).
PHASE_S = 7.0

#: Numbers of main jobs that are played to learn from begin here.
LEARNT_FROM = 100_000


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--log", type=Path, help="SWF or sacct log")
    parser.add_argument("--profile", choices=("fast", "site"), default="fast")
    parser.add_argument("--nodes", type=int, default=16, help="nodes of each lab, a multiple of 4")
    parser.add_argument("--seconds", type=float, default=480.0, help="length of the play")
    parser.add_argument("--hours", type=float, default=48.0, help="hours of the log that are played in it")
    parser.add_argument("--choice", type=int, default=0, help="which window: 0 is the one nearest to --fill")
    fill = "share of the machine that the main queue takes, prolog and epilog included"
    parser.add_argument("--fill", type=float, default=0.6, help=fill)
    parser.add_argument("--least-jobs", type=int, default=0, help="only windows with so many jobs")
    parser.add_argument("--keep-idle", type=int, default=1, help="pool.keep_idle of the pilots' arm")
    parser.add_argument("--keep-leaves", type=int, default=0, help="pool.keep_leaves of the pilots' arm")
    promise = "a line of [promise] of the pilots' arm, such as 'main_delay_p95 = \"2s\"'; may be given again"
    parser.add_argument("--promise", action="append", default=[], metavar="LINE", help=promise)
    parser.add_argument("--learn-choice", type=int, help="another window, as --choice, that is played first")
    parser.add_argument("--skip-epilog", action="store_true", help="pilots skip the site's prolog and epilog")
    parser.add_argument("--json", type=Path, help="write the run to this file")
    parser.add_argument("--summarise", type=Path, nargs="+", metavar="FILE", help="sum up earlier runs instead")
    options = parser.parse_args()
    if options.summarise:
        runs = [json.loads(path.read_text()) for path in options.summarise]
    elif options.log is None:
        parser.error("--log is missing, or --summarise")
    else:
        runs = [play(options)]
        if options.json:
            options.json.write_text(json.dumps(runs[0], indent=1))
    print("\n".join(summary(runs)))
    return 0


def play(options: argparse.Namespace) -> dict[str, object]:
    jobs, factor = window(options, options.choice)
    print(f"{len(jobs)} main jobs of {options.log.name}, time divided by {factor:.0f}", flush=True)
    with ExitStack() as stack:
        directory = stack.enter_context(folder_for_labs())
        configs = {
            arm: lab_config(options.nodes, options.profile, preemption=arm in (PREEMPTION, PILOTS)) for arm in ARMS
        }
        learns = options.learn_choice is not None
        if learns:
            configs[PILOTS] = replace(configs[PILOTS], accounting=True)
        labs = labs_up(stack, directory, configs)
        if options.profile == "site":
            align_cycles(list(labs.values()))
        if options.skip_epilog:
            skip_epilog(labs[PILOTS])
        loop = FAST_LOOP if options.profile == "fast" else []
        pool = [f"keep_idle = {options.keep_idle}", f"keep_leaves = {options.keep_leaves}"]
        # An hour of the log is minutes here: what the breaker counts in an hour is not what it is meant for.
        settings = {"loop": loop, "pool": pool, "breaker": [f"preemptions_per_hour = {PREEMPTIONS_PER_HOUR}"]}
        settings |= {} if learns else {"promise": options.promise}
        account = "harvest" if learns else ""
        site = stack.enter_context(Site(labs[PILOTS], account=account, settings=settings))
        site.start()
        number = site.harvest("alice", options.nodes)
        if learns:
            learn(site, options)
            align_cycles(list(labs.values()))
        reserve = max(options.keep_idle, options.keep_leaves * LEAF)
        least = 0 if options.promise else options.nodes - reserve
        harvested = "a pilot on every node but those that stay idle"
        labs[PILOTS].wait_for(lambda: site.pilot_nodes("alice") >= least, 120, harvested)
        arms = [Arm(arm, labs[arm], jobs) for arm in ARMS]
        for arm in arms:
            arm.reset()
        load_before = os.getloadavg()[0]
        begin = time.time() + 2.0
        if options.profile == "site":
            begin = at_phase(begin, cycles_count_from(labs[PILOTS]))
        for turn, arm in enumerate(arms):
            # One after the other, each time another first: at the same moment the last would wait for a processor.
            arm.start(begin + STAGGER_S[options.profile] * ((turn + options.choice) % len(arms)))
        time.sleep(max(0.0, begin + options.seconds - time.time()))
        for arm in arms:
            arm.stop()
        end = time.time()
        facts = {arm.name: arm.facts() for arm in arms}
        base = next(arm for arm in arms if arm.name == BASE)
        if options.json:  # the replay below takes its time: what was played is kept whatever becomes of it
            options.json.write_text(json.dumps({"profile": options.profile, "factor": factor, "arms": facts}))
        base.end_all()
        journal = site.directory / "malletrain.db"
        malletrain: list[str | Path] = ["env", f"MALLETRAIN_URL={site.url}", BIN / "malletrain"]
        attributed = json.loads(site.lab.run([*malletrain, "promise", "--main-jobs", "--json"]).stdout)
        harvest = harvest_of(site, number, base, begin, end, directory, reserve, EPILOG_S[options.profile])
        moved = [e for e in read_events(journal) if e.kind in ("intent", "pilot_ended")]
        return {
            **{key: value for key, value in vars(options).items() if not isinstance(value, Path)},
            "log": options.log.name,
            "factor": factor,
            "begin": begin,
            "load": [load_before, os.getloadavg()[0]],
            "arms": facts,
            "attributed": attributed,
            "harvest": harvest,
            "yields": sum(1 for e in moved if payload_data(e.payload).get("cause") == "yield"),
            "preempted": sum(1 for e in moved if payload_data(e.payload).get("preempted")),
        }


def window(options: argparse.Namespace, choice: int) -> tuple[list[MainJob], float]:
    """The jobs of a window of the log, of all kinds, and the factor of time; all come before the play ends."""
    jobs, factor = from_log(
        options.log,
        options.nodes,
        options.seconds * 0.85,
        options.hours * 3600.0,
        choice,
        options.fill,
        around_s=PROLOG_S[options.profile] + EPILOG_S[options.profile],
        least_jobs=options.least_jobs,
    )
    return of_all_kinds(jobs), factor


def align_cycles(labs: Sequence[Lab]) -> None:
    """Start slurmctld anew in all labs at one moment: backfill cycles count from there, and a queue that waits for
    them is seconds ahead in a lab whose cycles are (one with accounting comes up 16 s after the others)."""
    for lab in labs:
        lab.kill("slurmctld", signal.SIGTERM)
    for lab in labs:
        lab.wait_for(partial(has_ended, lab), 60, "the end of slurmctld")
    for lab in labs:
        lab.start("slurmctld")
    for lab in labs:
        lab.wait_for(partial(knows_its_nodes, lab), 60, "slurmctld and its nodes")


def cycles_count_from(lab: Lab) -> float:
    """When slurmctld began (Unix seconds): backfill cycles come every `SITE_CYCLE_S` from there. (sdiag shows none
    before there is a job to plan.)"""
    began = re.findall(
        r"\[(\S+)\.(\d+)\] Running as primary", (lab.log / "slurmctld.log").read_text(errors="replace")
    )
    at, milliseconds = began[-1]
    return time.mktime(time.strptime(at, "%Y-%m-%dT%H:%M:%S")) + int(milliseconds) / 1000


def at_phase(earliest: float, cycle_at: float) -> float:
    """The first moment from `earliest` on that comes `PHASE_S` after a backfill cycle. Which jobs a cycle meets just
    after they came decides what comes after them: plays are compared at one phase."""
    return earliest + (cycle_at + PHASE_S - earliest) % SITE_CYCLE_S


def has_ended(lab: Lab) -> bool:
    return not lab.is_running("slurmctld")


def knows_its_nodes(lab: Lab) -> bool:
    """Whether slurmctld answers and has heard of every node."""
    try:
        return not lab.run(["sinfo", "-h", "-N", "-t", "unk", "-o", "%N"]).stdout.strip()
    except LabError:
        return False


def learn(site: Site, options: argparse.Namespace) -> None:
    """Play another window of the log, then start the daemon anew, with the promise."""
    jobs, _ = window(options, options.learn_choice)
    jobs = [replace(job, number=job.number + LEARNT_FROM) for job in jobs if job.submit_s < options.seconds]
    player = Player(site.lab, jobs, "bob", site.lab.path / "learn")
    player.start()
    time.sleep(options.seconds)
    player.stop()
    site.lab.run(["scancel", "-p", "batch"])
    site.lab.wait_for(lambda: not site.lab.run(["squeue", "-h", "-p", "batch"]).stdout.strip(), 120, "no main job")
    site.stop()
    with site.config.open("a") as config:
        config.write("\n".join(["[promise]", *options.promise, ""]))
    site.start()
    print(f"learnt from {len(jobs)} main jobs in {options.seconds:g} s", flush=True)


def harvest_of(
    site: Site, number: int, base: Arm, begin: float, end: float, directory: Path, reserve: int, epilog_s: float
) -> dict[str, float]:
    """What pilots really did, and what replay makes of the load of the arm without them; `reserve` nodes are left
    alone in both."""
    events = list(read_events(site.directory / "malletrain.db"))
    during = [e for e in events if e.at <= end]
    score = score_journal(during, end)
    before = score_journal([e for e in events if e.at <= begin], begin)
    productive = score.productive_node_seconds - before.productive_node_seconds
    warm = [e for e in events if e.kind == "worker_warm"]
    activate = activation_s(events, warm)
    holes = idle_spans(base.busy(epilog_s), base.lab.nodes, begin, end)
    options = ["--policy", "exact", "--activate", f"{activate:.1f}"]
    possible = predicted(holes, begin, end, directory, f"[pool]\nkeep_idle = {reserve}\n", *options)
    return {
        "productive_node_s": productive,
        "occupied_node_s": score.occupied_node_seconds - before.occupied_node_seconds,
        "possible_node_s": possible["productive_node_seconds"],
        "idle_node_s": possible["idle_node_seconds"],
        "activate_s": activate,
        "resizes": float(score.rescales - before.rescales),
        "job": float(number),
    }


def began(event: Event) -> float:
    at = payload_data(event.payload).get("started_at") or event.at
    assert isinstance(at, int | float)
    return float(at)


def activation_s(events: list[Event], warm: list[Event]) -> float:
    """From Slurm's start of a pilot to its warm worker, in the median."""
    started = {e.pilot: began(e) for e in events if e.kind == "pilot_started"}
    took = sorted(e.at - started[e.pilot] for e in warm if e.pilot in started and e.at >= started[e.pilot])
    return took[len(took) // 2] if took else 5.0


if __name__ == "__main__":
    sys.exit(main())
