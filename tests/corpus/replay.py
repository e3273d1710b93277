"""Replays: the command's figures for small logs of every kind, policies and options; the daemon's own loop."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.corpus import doors, doors_journal
from tests.corpus.cases import Case, canonical, lines
from tests.replay_keys import keyed

Json = dict[str, Any]

BEGIN = 1_612_915_200  # 2021-02-10 UTC


def cases() -> Iterator[Case]:
    """The command, then the loop over the node events."""
    with doors.folder() as folder:
        write_logs(folder)
        for name, argv in REPLAYS.items():
            machine = () if name.startswith("daemon") else ("ideal=true",)
            done = doors.malletrain("replay", *keyed(folder, [*argv, *machine, "processes=1", "--json", "-"]))
            if done.status:
                yield Case(f"command/{name}", done.text, done.err)
                continue
            answer = done.json
            for figures in answer["policies"].values():
                for key in ("wall_s", "solve_s"):
                    del figures[key]
            words = " ".join(f"{p}={f['share_of_ideal'] or 0:.4f}" for p, f in answer["policies"].items())
            yield Case(f"command/{name}", canonical(answer) + done.err, words, name == "events-policies")
        done = doors.malletrain("replay", *keyed(folder, ["events.csv", "--mix", "hpo:4", "processes=1"]))
        told = re.sub(r"(?m)^(policy.*)  ms a decision$|^(auto.*?) +[\d.]+$", r"\1\2", done.text)  # how long it took
        yield Case("command/summary", told, done.out.split("\n")[0][:120], whole=True)
        begun = (folder / "events.csv").read_text().split("\n")[:31]  # the daemon's loop takes its time
        (folder / "begun.csv").write_text("\n".join(begun))
        by_loop = ("begun.csv", "engine=loop", "--mix", "hpo:2", "--policy", "equal", "ideal=true", "--json", "-")
        answer = doors.malletrain("replay", *keyed(folder, by_loop)).json
        for figures in answer["policies"].values():
            for key in ("wall_s", "solve_s"):
                figures.pop(key, None)
        yield Case("loop/command-equal", canonical(answer))
        events = doors_journal.loop_replayed(folder / "begun.csv", "hpo:2", (2.0, 0.3, 0.1), "exact")
        listed = [doors.event_row(it) for it in events]
        yield Case("loop/journal", lines(listed), f"{len(listed)} events")
        yield Case("loop/score", canonical(doors_journal.score(events)), whole=True)
        anew = doors_journal.decided_anew(events, "exact")
        same = sum(row["decided"] == row["now"] for row in anew)
        yield Case("loop/decided-anew", lines(anew), f"{same} of {len(anew)} as then")


def write_logs(folder: Path) -> None:
    """Node events, SWF, sacct, jobs as CSV and TOML, outages, a scheduler's configuration."""
    at = random.Random(11)
    events = [f"{BEGIN},n{n:02},busy" for n in range(10)]
    events += [
        f"{t},n{n:02},{at.choice(['idle', 'idle', 'alloc', 'down', 'drng*'])}"
        for t in range(BEGIN + 60, BEGIN + 7200, 300)
        for n in at.sample(range(10), 3)
    ]
    (folder / "events.csv").write_text("\n".join(["time,node,state", *events, "rubbish", "x,n01,idle", "1,n1,zz"]))
    swf = ["; UnixStartTime: 1612915200", "; MaxNodes: 16", "; MaxProcs: 32"]
    submit = 0
    for number in range(1, 70):
        submit += at.randint(0, 200)
        procs, run = at.choice([1, 2, 4, 8, 20]), at.choice([60, 400, 1500])
        swf.append(
            f"{number} {submit} {at.randint(0, 300)} {run} {procs} -1 -1 {procs} {run * 2} -1 1 1 1 1 1 -1 -1 -1"
        )
    (folder / "log.swf").write_text("\n".join(swf) + "\n")
    sacct = ["JobID|State|Submit|Start|End|NodeList|AllocNodes|Partition|Timelimit|Eligible|Priority"]
    for number in range(100, 160):
        start = BEGIN + at.randint(0, 6000)
        first, count = at.randint(1, 9), at.choice([1, 1, 2, 4])
        state = at.choice(["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED by 7", "NODE_FAIL"])
        sacct.append(
            f"{number}|{state}|{start - at.randint(0, 900)}|{start}|{start + at.choice([30, 600, 2400])}"
            f"|c[{first:02}-{first + count - 1:02}]|{count}|{at.choice(['batch', 'batch', 'harvest'])}"
            f"|01:00:00|{start}|{at.randint(1, 99)}"
        )
    sacct += ["161|PENDING|1612915200|Unknown|Unknown|None assigned|0|batch|01:00:00|Unknown|1", "half|row"]
    (folder / "jobs.sacct").write_text("\n".join(sacct) + "\n")
    (folder / "jobs.csv").write_text(
        "name,submit,min_nodes,max_nodes,samples,curve\n"
        f"a,{BEGIN},1,4,20000,1:10;2:19;4:34\nb,{BEGIN + 900},2,8,,1:5;8:30\n"
    )
    (folder / "down.txt").write_text(
        "NodeName|TimeStart|TimeEnd|State\nn03|2021-02-10T00:30:00|2021-02-10T01:00:00|DRAIN\n"
    )
    (folder / "malletrain.toml").write_text("[pool]\nmax_pilots = 5\nkeep_idle = 2\n[loop]\ntick_s = 20\n")
    (folder / "scheduler.txt").write_text(
        "SLURM_VERSION           = 24.11.5\nSchedulerParameters     = bf_interval=60,bf_max_job_test=50\n"
        "Epilog[0]               = /etc/slurm/epilog.sh\nKillWait                = 30 sec\nepilog_s=7\n"
    )


EVENTS = ["events.csv", "--mix", "imagenet:3"]
SWF = ["log.swf", "--mix", "hpo:5", "procs_per_node=2"]
SACCT = ["jobs.sacct", "--mix", "nas:4"]

REPLAYS: dict[str, list[str]] = {
    "daemon-shipped": [*EVENTS, "--policy", "auto,equal,ideal-machine"],
    "daemon-capped": [*EVENTS, "pool.max_pilots=3", "pilot.max_nodes=2", "pilot.max_minutes=10"],
    "daemon-of-a-file": [*SWF, "--config", "malletrain.toml"],
    "events-policies": [*EVENTS, "--policy", "auto,equal,greedy,efficiency,utility,bftrainer,bftrainer:120"],
    "events-costs": [*EVENTS, "--rescale", "18,12", "--activate", "20", "--policy", "auto,exact:600"],
    "events-seed": ["events.csv", "--mix", "pollux:6", "seed=5"],
    "daemon-fairer": [*EVENTS, "sizing.alpha=1"],
    "daemon-jct": ["events.csv", "--mix", "nas:6", "sizing.objective=jct", "--horizon", "120"],
    "daemon-fair": ["events.csv", "--mix", "endless:4", "sizing.objective=fair"],
    "events-window": [*EVENTS, "--start", "+20m", "--end", "2021-02-10T01:30", "--nodes", "2:8"],
    "events-outages": [*EVENTS, "--outages", "down.txt"],
    "events-jobs": ["events.csv", "--jobs", "jobs.csv", "--policy", "auto,greedy"],
    "events-without-inputs": ["events.csv", "--jobs", "jobs.csv", "--policy", "auto,budget"],
    "fault-jobs": ["events.csv", "--jobs", "down.txt"],
    "swf": [*SWF, "--policy", "auto,equal"],
    "swf-random": [*SWF, "--placement", "random", "seed=3"],
    "swf-scheduler": [*SWF, "--scheduler", "scheduler.txt"],
    "sacct": [*SACCT, "--policy", "auto,bftrainer"],
    "sacct-harvest": [*SACCT, 'ignore_partition=["harvest"]'],
    "sacct-zone": [*SACCT, "timezone=Europe/Oslo", "--start", "2021-02-10T02:00"],
    "fault-policy": [*EVENTS, "--policy", "best"],
    "fault-mix": ["events.csv", "--mix", "imagenet:x"],
    "fault-rescale": [*EVENTS, "--rescale", "18"],
    "fault-nodes": [*EVENTS, "--nodes", "90"],
    "fault-window": [*EVENTS, "--start", "+9d"],
    "fault-trace": ["down.txt"],
    "fault-missing": ["nowhere.csv"],
}
