"""A study on real Slurm while main jobs take its nodes all the time, beside the same study undisturbed.

    python -m scripts.bench.study hpo|nas [--trials 30] [--nodes 4] [--gap 15] [--minutes 10] [--keep DIR] \
        [--json FILE]

Both run the search space of examples/study_hpo.py or study_nas.py with the same parameters in the same order (of
Optuna's random sampler, seed 1, drawn before the start), so that what they find can be compared trial by trial.
Undisturbed means in processes of this machine, three at a time. A call ends after `--minutes`, whatever it
has reached, and prints all figures so far; the next call with the same DIR goes on: undisturbed until its trials have
ended, then disturbed, on a new lab with a new daemon each time. Exit status 0 when both are done, 1 when another call
is needed.

Printed: how the trials ended, how often pilots were preempted, the best values, and the share of idle node-seconds
(nodes without a main job, sampled twice a second until the study is done) that pilots held and that trained. Replay
says what is possible with the same nodes and the starts of nodes that this run measured: for endless jobs, and for
trials as short as these, each of which starts its nodes anew.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pwd
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

from scripts.lab import Lab, LabConfig, LabError  # noqa: E402
from scripts.play.site import BIN, Site  # noqa: E402

#: Seconds at the end of a call for ending trials, daemon and lab in order.
END_S = 75.0

QUICK = {
    "loop": ["tick_s = 1.0"],
    "breaker": ["preemptions_per_hour = 100000"],
    "pilot": ["margin_s = 10", "leave_patience_s = 5.0"],
}
#: The examples' own objectives; what is tried stands in the queue already.
STUDY = """import optuna
from {module} import *
sampler = optuna.samplers.RandomSampler(seed=1)
pruner = None
nodes = "1-2"
"""
#: The same digits without importing scikit-learn in every process: that takes as long as torch.
DIGITS = """from types import SimpleNamespace
import numpy

def load_digits():
    return SimpleNamespace(**numpy.load({file!r}))
"""
#: Puts the parameters of so many trials into the study's queue, unless it has trials already.
QUEUE = """
import sys
from pathlib import Path
import optuna
from malletrain.study import book, definition, storage

def stop(*_args, **_more):
    raise optuna.TrialPruned

path, wanted = Path(sys.argv[1]), int(sys.argv[2])
known = definition.load(path)
kept, _ = book.open_study(storage.open_storage(str(storage.default_path(path))), known)
known.objective.__globals__["study"].train = stop
drawn = optuna.create_study(directions=known.directions, sampler=optuna.samplers.RandomSampler(seed=1))
for number in range(wanted):
    trial = drawn.ask()
    try:
        known.objective(trial)
    except optuna.TrialPruned:
        pass
    if number >= len(kept.get_trials(deepcopy=False)):
        kept.enqueue_trial(trial.params)
"""


#: Replay's jobs: as many as there may be room for, each with the work that a trial had here, in node-seconds.
TRIALS = """[[job]]
name = "trial"
count = {count}
curve = {{1 = 1.0, 2 = 2.0}}
max_nodes = 2
total_samples = {work:.2f}
"""


class MainQueue:
    """Main jobs of bob's that come and go, and what they leave: one sample of every node twice a second."""

    def __init__(self, lab: Lab, nodes: int, gap_s: float, seed: int) -> None:
        self.lab, self.nodes, self.gap_s, self.seed = lab, nodes, gap_s, seed
        self.samples: list[tuple[float, list[str], list[str]]] = []
        self.submitted = 0
        self.over = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._submit, self._watch)]
        for thread in self._threads:
            thread.start()

    def _submit(self) -> None:
        rng = random.Random(self.seed)
        while not self.over.wait(rng.expovariate(1 / self.gap_s)):
            count = rng.choice((1, 1, 2, self.nodes - 1))
            command = f"sleep {rng.uniform(0.3, 1.0) * self.gap_s:.1f}"
            try:
                self.lab.submit(command, f"--nodes={count}", "--exclusive", user="bob")
            except LabError as error:
                print(f"a main job: {error}", file=sys.stderr)
            else:
                self.submitted += 1

    def _watch(self) -> None:
        while not self.over.wait(0.5):
            try:
                held = self._look()
            except LabError as error:  # a busy machine: the sample before holds a little longer
                print(f"a sample: {error}", file=sys.stderr)
            else:
                self.samples.append((time.time(), *held))

    def _look(self) -> tuple[list[str], list[str]]:
        """Nodes of main jobs, and of pilots."""
        rows = self.lab.run(["squeue", "-a", "-h", "-r", "-t", "R,CG,S", "-o", "%P|%N"]).stdout.splitlines()
        held: dict[bool, set[str]] = {True: set(), False: set()}
        for row in rows:
            partition, _, names = row.partition("|")
            if names:
                shown = self.lab.run(["scontrol", "show", "hostnames", names]) if "[" in names else None
                held[partition == "harvest"].update(shown.stdout.split() if shown else [names])
        return sorted(held[False]), sorted(held[True] - held[False])

    def stop(self) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()


# --- what happened in one call -------------------------------------------------------------------------------------


def trained_node_seconds(rows: list[dict[str, Any]], end: float) -> float:
    """Members of worlds, over time."""
    since: dict[int, tuple[float, int]] = {}
    total = 0.0
    for row in rows:
        over = row["kind"] in ("job_completed", "job_failed", "job_cancelled")
        if row.get("job") is None or not (over or row["kind"] == "generation"):
            continue
        before = since.pop(row["job"], None)
        if before is not None:
            total += (row["at"] - before[0]) * before[1]
        if not over:
            since[row["job"]] = (row["at"], len(row["data"].get("members", [])))
    return total + sum(max(0.0, end - at) * members for at, members in since.values())


def activations(rows: list[dict[str, Any]]) -> list[float]:
    """Seconds from a pilot's start until its worker is warm."""
    started, found = {}, []
    for row in rows:
        if row["kind"] == "pilot_started":
            started[row["pilot"]] = row["data"].get("started_at") or row["at"]
        elif row["kind"] == "worker_warm" and row.get("pilot") in started:
            found.append(row["at"] - started.pop(row["pilot"]))
    return found


def disturbed(lab: Lab, command: list[str | Path], path: Path, options: argparse.Namespace, number: int) -> None:
    """Run the study among main jobs, and keep what happened as slice-NUMBER.json beside it."""
    with Site(lab, settings=QUICK) as site:
        site.start()
        queue = MainQueue(lab, options.nodes, options.gap, seed=7 + number)
        try:
            run(lab, command, path, options)
        finally:
            queue.stop()
            rows = [json.loads(line) for line in site.malletrain("alice", "events", "--json").stdout.splitlines()]
            jobs = json.loads(site.malletrain("alice", "status", "--all", "--json").stdout)["jobs"]
            ends = Counter(
                "preempted" if row["data"].get("preempted") else str(row["data"].get("state"))
                for row in rows
                if row["kind"] == "pilot_ended"
            )
            kept = {
                "samples": queue.samples,
                "main_jobs": queue.submitted,
                "jobs": len(jobs),
                "jobs_preempted": sum(1 for job in jobs if job["preemptions"]),
                "preemptions": sum(job["preemptions"] for job in jobs),
                "resizes": sum(job["resizes"] for job in jobs),
                "pilots_ended": ends,
                "left_in_order": sum(1 for row in rows if row["kind"] == "pilot_held"),
                "activations": activations(rows),
                "trained": trained_node_seconds(rows, queue.samples[-1][0]) if queue.samples else 0.0,
            }
            (path.parent / f"slice-{number}.json").write_text(json.dumps(kept))


def run(lab: Lab, command: list[str | Path], path: Path, options: argparse.Namespace) -> None:
    """A study, its words on standard error; ended in order when the call's time is over."""
    left_s = options.until - time.monotonic() - END_S
    if left_s < 30:
        return
    hours = ["--hours", f"{left_s / 3600}"]
    process = lab.popen([*command, *hours], user="alice", cwd=path.parent, stdout=sys.stderr.fileno())
    try:
        process.wait(left_s + 45)
    except subprocess.TimeoutExpired:
        print("the study does not end in time: killed; the next call goes on", file=sys.stderr)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


# --- figures -------------------------------------------------------------------------------------------------------


def listed(path: Path) -> list[dict[str, Any]]:
    if not path.with_suffix(".journal").exists():
        return []
    shown = subprocess.run(
        [BIN / "malletrain", "study", "trials", path, "--json"], check=True, capture_output=True, text=True
    )
    return list(json.loads(shown.stdout))


def outcome(path: Path, wanted: int) -> dict[str, Any]:
    """How the trials ended; whether each of the queue's has been completed once, by itself or by what repeats it."""
    rows = listed(path)
    repeats = {row["trial"]: row["repeats"] for row in rows}
    done = [row for row in rows if row["ended_as"] == "completed"]
    finished = Counter(first_of(row["trial"], repeats) for row in done)
    return {
        "ended": Counter(row["ended_as"] for row in rows),
        "completed_twice": sum(number - 1 for number in finished.values()),
        "missing": wanted - len(finished),
        "best": max((row["values"][0] for row in done), default=None),
        "node_hours": sum(row["node_hours"] for row in rows),
    }


def first_of(trial: int, repeats: Mapping[int, int | None]) -> int:
    """The trial of the queue that this one is, or repeats."""
    while (before := repeats[trial]) is not None:
        trial = before
    return trial


def answers(path: Path) -> dict[str, float]:
    """First values by parameters, of completed trials."""
    rows = listed(path)
    return {json.dumps(r["params"], sort_keys=True): r["values"][0] for r in rows if r["ended_as"] == "completed"}


def harvest(folder: Path, nodes: int, completed: int) -> dict[str, Any]:
    """All slices together: shares of idle node-seconds, and what replay makes of the same holes."""
    slices = [json.loads(file.read_text()) for file in sorted(folder.glob("slice-*.json"))]
    slices = [each for each in slices if len(each["samples"]) > 1]
    if not slices:
        return {}
    names = [f"n{number:03d}" for number in range(nodes)]
    idle = held = 0.0
    lines, state = ["time,node,state"], dict.fromkeys(names, "busy")
    for each in slices:
        for (at, main, pilots), (until, *_) in itertools.pairwise(each["samples"]):
            idle += (until - at) * (nodes - len(main))
            held += (until - at) * len(pilots)
            for name in names:
                now = "busy" if name in main else "idle"
                if now != state[name]:
                    lines.append(f"{at:.2f},{name},{now}")
                    state[name] = now
        lines += [f"{each['samples'][-1][0]:.2f},{name},busy" for name in names if state[name] == "idle"]
        state = dict.fromkeys(names, "busy")
    (folder / "idle.csv").write_text("\n".join(lines) + "\n")
    warm = median([seconds for each in slices for seconds in each["activations"]] or [5.0])
    out: dict[str, Any] = {
        "seconds": sum(each["samples"][-1][0] - each["samples"][0][0] for each in slices),
        "calls": len(slices),
        **{
            name: sum(each[name] for each in slices)
            for name in ("main_jobs", "jobs", "jobs_preempted", "preemptions", "resizes", "left_in_order")
        },
        "pilots_ended": dict(sum((Counter(each["pilots_ended"]) for each in slices), Counter())),
        "activation_s": warm,
        "idle_node_seconds": idle,
        "held_share": held / idle,
        "trained_share": sum(each["trained"] for each in slices) / idle,
    }
    work = sum(each["trained"] for each in slices) / max(1, completed)
    out["trained_node_seconds_by_trial"] = work
    (folder / "trials.toml").write_text(TRIALS.format(work=work, count=int(4 + idle / max(1.0, work))))
    (folder / "endless.toml").write_text("[replay]\ntick = 1\n")
    (folder / "at-once.toml").write_text(f"[replay]\ntick = 1\nat_once = {nodes + 2}\n")
    wanted: dict[str, list[str | Path]] = {
        "replay_endless_jobs": ["--mix", f"endless:{nodes}", "--config", folder / "endless.toml"],
        "replay_such_trials": ["--jobs", folder / "trials.toml", "--config", folder / "at-once.toml"],
    }
    for name, jobs in wanted.items():
        try:
            out[name] = possible(folder / "idle.csv", warm, jobs)
        except subprocess.CalledProcessError as error:
            out[name] = {"failed": error.stderr[-300:]}
    return out


def possible(trace: Path, activate_s: float, jobs: list[str | Path]) -> dict[str, float]:
    """What replay makes of the same nodes."""
    done = subprocess.run(
        [BIN / "malletrain", "replay", trace, *jobs, "--activate", f"{activate_s}", "--json", "-"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    found = json.loads(done.stdout)["policies"]["auto"]
    return {name: found[f"{name}_node_seconds"] / found["idle_node_seconds"] for name in ("occupied", "productive")}


def prepare(lab: Lab, folder: Path, options: argparse.Namespace) -> Path:
    """The study's files in a folder of alice's, and its queue."""
    import numpy
    from sklearn.datasets import load_digits

    entry = pwd.getpwnam("alice")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{options.kind}.py"
    if not path.exists():
        raw = load_digits()
        numpy.savez(folder / "digits.npz", data=raw.data, target=raw.target)
        for name in ("digits_data.py", "images_data.py", f"study_{options.kind}.py"):
            text = (ROOT / "examples" / name).read_text()
            (folder / name).write_text(text.replace("from sklearn.datasets", "from digits_file"))
        (folder / "digits_file.py").write_text(DIGITS.format(file=str(folder / "digits.npz")))
        path.write_text(STUDY.format(module=f"study_{options.kind}"))
    for each in (folder.parent, folder, *folder.iterdir()):
        os.chown(each, entry.pw_uid, entry.pw_gid)
    lab.run([sys.executable, "-c", QUEUE, path, str(options.trials)], user="alice", cwd=folder, timeout=180)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("hpo", "nas"))
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--gap", type=float, default=15.0, help="mean seconds between main jobs")
    parser.add_argument("--minutes", type=float, default=10.0, help="this call ends after so long")
    parser.add_argument("--keep", type=Path, help="[default: /tmp/mtstudy-KIND] where studies and figures stay")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.until = time.monotonic() + options.minutes * 60
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # whatever ends it, lab and daemon go down in order
    keep: Path = options.keep or Path(f"/tmp/mtstudy-{options.kind}")
    try:
        with Lab.up(f"{keep}-lab", LabConfig(nodes=options.nodes, users=True)) as lab:
            if keep.is_dir():
                print(f"going on with what {keep} holds", file=sys.stderr)
            for name in ("undisturbed", "disturbed"):
                path = prepare(lab, keep / name, options)
                command: list[str | Path] = [BIN / "malletrain", "study", "run", path]
                command += ["--trials", str(options.trials)]
                if outcome(path, options.trials)["missing"] <= 0:
                    continue
                if name == "undisturbed":
                    run(lab, [*command, "--local", "--concurrent", "3"], path, options)
                elif options.until - time.monotonic() > END_S + 60:
                    disturbed(lab, command, path, options, len(list(path.parent.glob("slice-*.json"))))
    finally:
        done = figures(keep, options)
    return 0 if done else 1


def figures(keep: Path, options: argparse.Namespace) -> bool:
    """Print everything that is known so far; whether both studies are done."""
    paths = {name: keep / name / f"{options.kind}.py" for name in ("undisturbed", "disturbed")}
    out: dict[str, Any] = {
        "kind": options.kind,
        "trials": options.trials,
        "nodes": options.nodes,
        "gap_s": options.gap,
    }
    out |= {name: outcome(path, options.trials) for name, path in paths.items()}
    out["disturbed"] |= harvest(keep / "disturbed", options.nodes, out["disturbed"]["ended"]["completed"])
    one, two = (answers(path) for path in paths.values())
    off = [two[key] - one[key] for key in one.keys() & two.keys()]
    out["same_parameters"] = {
        "trials": len(off),
        "mean_difference": sum(off) / len(off) if off else None,
        "largest_difference": max(map(abs, off), default=None),
    }
    print(json.dumps(out, indent=1))
    if options.json:
        options.json.write_text(json.dumps(out, indent=1) + "\n")
    return all(out[name]["missing"] <= 0 for name in paths)


if __name__ == "__main__":
    sys.exit(main())
