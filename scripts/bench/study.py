"""A study on real Slurm while main jobs take its nodes all the time.

    python -m scripts.bench.study hpo|nas [--trials 30] [--nodes 4] [--gap 15] [--minutes 20]

Trials of examples/study_hpo.py or study_nas.py with random parameters, none pruned. Printed: how they ended; which of
them were completed twice, or never, by themselves or by what repeats them; how often pilots were preempted and jobs
resized; and the share of idle node-seconds (nodes without a main job, sampled twice a second) that pilots held.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pwd
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from malletrain.slurm.formats import hostlist
from scripts.bench.shared import options_of
from scripts.lab import Lab, LabConfig, LabError
from scripts.play.site import BIN, Site

ROOT = Path(__file__).resolve().parents[2]

QUICK = {
    "loop": ["tick_s = 1.0"],
    "breaker": ["preemptions_per_hour = 100000"],
    "pilot": ["margin_s = 10", "leave_patience_s = 5.0"],
}
#: The examples' own objectives.
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


class MainQueue:
    """Main jobs of bob's that come and go, and what they leave: one sample of every node twice a second."""

    def __init__(self, lab: Lab, nodes: int, gap_s: float) -> None:
        self.lab, self.nodes, self.gap_s = lab, nodes, gap_s
        self.samples: list[tuple[float, int, int]] = []  #: when, idle nodes, of these held by pilots
        self.submitted = 0
        self.over = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._submit, self._watch)]
        for thread in self._threads:
            thread.start()

    def _submit(self) -> None:
        rng = random.Random(7)
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
                self.samples.append((time.time(), *self._look()))
            except LabError as error:  # a busy machine: the sample before holds a little longer
                print(f"a sample: {error}", file=sys.stderr)

    def _look(self) -> tuple[int, int]:
        """Nodes without a main job, and those of them with a pilot."""
        rows = self.lab.run(["squeue", "-a", "-h", "-r", "-t", "R,CG,S", "-o", "%P|%N"]).stdout.splitlines()
        held: dict[bool, set[str]] = {True: set(), False: set()}
        for row in rows:
            partition, _, names = row.partition("|")
            held[partition == "harvest"].update(hostlist.expand(names) if names else ())
        return self.nodes - len(held[False]), len(held[True] - held[False])

    def stop(self) -> float:
        """End it; the share of the idle node-time that pilots held."""
        self.over.set()
        for thread in self._threads:
            thread.join()
        idle = held = 0.0
        for (at, free, pilots), (until, *_) in itertools.pairwise(self.samples):
            idle += (until - at) * free
            held += (until - at) * pilots
        return held / idle if idle else 0.0


def prepare(lab: Lab, kind: str) -> Path:
    """The study's files in a folder of alice's."""
    import numpy
    from sklearn.datasets import load_digits

    entry = pwd.getpwnam("alice")
    folder = Path(lab.env_for("alice")["HOME"]) / "study"
    folder.mkdir()
    raw = load_digits()
    numpy.savez(folder / "digits.npz", data=raw.data, target=raw.target)
    for name in ("digits_data.py", "images_data.py", f"study_{kind}.py"):
        text = (ROOT / "examples" / name).read_text()
        (folder / name).write_text(text.replace("from sklearn.datasets", "from digits_file"))
    (folder / "digits_file.py").write_text(DIGITS.format(file=str(folder / "digits.npz")))
    path = folder / f"{kind}.py"
    path.write_text(STUDY.format(module=f"study_{kind}"))
    for each in (folder, *folder.iterdir()):
        os.chown(each, entry.pw_uid, entry.pw_gid)
    return path


def run(lab: Lab, path: Path, options: argparse.Namespace) -> None:
    """The study, its words on standard error; ended in order when its time is over."""
    command: list[str | Path] = [BIN / "malletrain", "study", "run", path, "--trials", str(options.trials)]
    command += ["--hours", f"{options.minutes / 60}"]
    process = lab.popen(command, user="alice", cwd=path.parent, stdout=sys.stderr.fileno())
    try:
        process.wait(60 * options.minutes + 60)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def outcome(path: Path, wanted: int) -> dict[str, Any]:
    """How the trials ended; whether each has been completed once, by itself or by what repeats it."""
    shown = subprocess.run(
        [BIN / "malletrain", "study", "trials", path, "--json"], check=True, capture_output=True, text=True
    )
    rows = json.loads(shown.stdout)
    repeats = {row["trial"]: row["repeats"] for row in rows}
    finished = Counter(first_of(row["trial"], repeats) for row in rows if row["ended_as"] == "completed")
    return {
        "ended": dict(Counter(row["ended_as"] for row in rows)),
        "completed_twice": sum(number - 1 for number in finished.values()),
        "missing": wanted - len(finished),
    }


def first_of(trial: int, repeats: Mapping[int, int | None]) -> int:
    """The trial that was asked for first, of which this one is a repetition, or which it is."""
    while (before := repeats[trial]) is not None:
        trial = before
    return trial


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("kind", choices=("hpo", "nas"))
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--gap", type=float, default=15.0, help="mean seconds between main jobs")
    parser.add_argument("--minutes", type=float, default=20.0, help="the study ends after so long")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # whatever ends it, lab and daemon go down in order
    with Lab.up(f"/tmp/mtstudy-{secrets.token_hex(3)}", LabConfig(nodes=options.nodes, users=True)) as lab:
        path = prepare(lab, options.kind)
        with Site(lab, settings=QUICK) as site:
            site.start()
            queue = MainQueue(lab, options.nodes, options.gap)
            try:
                run(lab, path, options)
            finally:
                held = queue.stop()
            jobs = json.loads(site.malletrain("alice", "status", "--all", "--json").stdout)["jobs"]
        found = outcome(path, options.trials) | {
            "main_jobs": queue.submitted,
            "preemptions": sum(job["preemptions"] for job in jobs),
            "resizes": sum(job["resizes"] for job in jobs),
            "idle_time_held": round(held, 3),
        }
    print(json.dumps(found, indent=1))
    return 0 if not found["missing"] and not found["completed_twice"] else 1


if __name__ == "__main__":
    sys.exit(main())
