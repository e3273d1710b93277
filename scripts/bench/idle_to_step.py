"""From the look that shows a node idle to the first training step on it, stage by stage.

One training job grows onto a node that a main job has just left, again and again. Each stage's end is noted where it
happens: by the daemon's journal, by the pilot's batch script, by the payload's shell, by the training script.

    python -m scripts.bench.idle_to_step --profile site --runs 10
"""

from __future__ import annotations

import os
import pwd
import shlex
import statistics
import sys
import time
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

from malletrain.domain.decision import StartPilot
from malletrain.domain.event import (
    ActionIntent,
    ActionOutcome,
    Event,
    GenerationPublished,
    HolesEnded,
    HolesOpened,
    WorkerWarm,
)
from malletrain.store.journal import read_events
from scripts.bench.shared import options_of
from scripts.lab import DeadlineError, Lab, LabConfig
from scripts.play.site import Site, folder_for_labs

#: Stage, whose it is, and what ends it.
STAGES = (
    ("look and decide", "MalleTrain"),
    ("pin, limit, release", "MalleTrain"),
    ("Slurm starts it, prolog", "Slurm"),
    ("srun, launcher, hello", "MalleTrain and Slurm"),
    ("Python starts", "Python"),
    ("import torch", "Python"),
    ("import malletrain.elastic", "MalleTrain"),
    ("data, model, optimizer", "the script"),
    ("session, link, warm-up", "MalleTrain"),
    ("generation published", "MalleTrain"),
    ("switch, first step done", "MalleTrain and the script"),
)

#: What the training script notes down, in order.
NOTES = ("python", "imported", "elastic", "made", "stepped")

STAMP = """if [ -n "$SLURM_JOB_ID" ] && [ -d "$STAMPS" ]; then date +%s.%N >> "$STAMPS/$SLURM_JOB_ID"; fi
"""

TRAINING = """import os, sys, time
def note(what):
    with open(f"{os.environ['STAMPS']}/{os.environ['SLURM_JOB_ID']}.py", "a") as file:
        file.write(f"{what} {time.time():.6f}\\n")
note("python")
import torch
note("imported")
from malletrain import elastic
elastic.Session
note("elastic")
torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.randn(4096, 16), torch.randn(4096, 1))
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
note("made")
session = elastic.Session(model, optimizer, data, batch_size=64)
first = True
for _ in session.epochs(1000000):
    for inputs, targets in session.batches():
        with session.step():
            optimizer.zero_grad()
            time.sleep(0.05)
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
        if first:
            note("stepped")
            first = False
"""


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--profile", choices=("fast", "site"), default="fast")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--tick", type=float, default=2.0, help="loop.tick_s")
    options = parser.parse_args()
    config = LabConfig(nodes=3, profile=options.profile, users=True)
    settings = {"loop": [f"tick_s = {options.tick}"], "breaker": ["preemptions_per_hour = 10000"]}
    with folder_for_labs() as folder, Lab.up(folder / "lab", config) as lab, Site(lab, settings=settings) as site:
        site.start()
        rows = measure(lab, site, options.runs)
    report(rows, options.profile)
    return 0 if rows else 1


def measure(lab: Lab, site: Site, runs: int) -> list[list[float]]:
    home = Path(lab.env_for("alice")["HOME"])
    stamps = home / "stamps"
    stamps.mkdir()
    os.chown(stamps, pwd.getpwnam("alice").pw_uid, -1)
    (home / "stamp.sh").write_text(STAMP)
    (home / "train.py").write_text(TRAINING)
    script = home / "train.sh"
    python = shlex.quote(sys.executable)
    script.write_text(f"#!/bin/bash\n#MALLETRAIN --nodes=1-2 --tasks=60\nexec {python} {home}/train.py\n")
    # Bash reads BASH_ENV before a script: of the batch script first, and of the payload after hello.
    mtbatch = Path(sys.executable).parent / "mtbatch"
    marked: list[str | Path] = ["env", f"BASH_ENV={home}/stamp.sh", f"STAMPS={stamps}", mtbatch]
    kept, taken = lab.nodes[-1], lab.nodes[0]
    fill = ["--exclusive", "--time=60"]
    lab.submit("sleep 7200", "-w", kept, *fill, user="bob")
    blocker = lab.submit("sleep 7200", "-w", taken, *fill, user="bob")
    lab.wait_for_state(blocker, "RUNNING", deadline_s=90)
    lab.run([*marked, script], user="alice")
    lab.wait_for(lambda: worlds(site) == 1, 120, "a world of one")
    rows: list[list[float]] = []
    for run in range(runs):
        time.sleep(1.7 * run % 3.0)  # a phase of the tick of its own
        for stamp in stamps.iterdir():
            stamp.unlink()  # a task that was requeued has the same number again
        seen = len(journal(site))
        lab.run(["scancel", str(blocker)])
        lab.wait_for(lambda: worlds(site) == 2, 240, "a world of two")
        with suppress(DeadlineError):
            rows.append(lab.wait_for(partial(stages, site, seen, stamps, taken), 30, "every note"))
            print(f"run {run:2d}: " + ", ".join(f"{x:.2f}" for x in rows[-1]), flush=True)
        blocker = lab.submit("sleep 7200", "-w", taken, *fill, user="bob")
        lab.wait_for_state(blocker, "RUNNING", deadline_s=180)
        lab.wait_for(lambda: worlds(site) == 1, 120, "a world of one")
        # Or the next hole would be the same one to it, if the main job came and went between two looks.
        lab.wait_for(partial(has_ended, site, seen, taken), 30, "the daemon's look at the main job")
    return rows


def has_ended(site: Site, seen: int, node: str) -> bool:
    """Whether the daemon has noted, since the event number `seen`, that the hole on `node` is over."""
    noted_since = (event.payload for event in journal(site)[seen:])
    return any(isinstance(payload, HolesEnded) and node in payload.nodes for payload in noted_since)


def journal(site: Site) -> list[Event]:
    return list(read_events(site.directory / "malletrain.db"))


def worlds(site: Site) -> int:
    return sum(job["members"] for job in site.status("alice")["jobs"])


def stages(site: Site, seen: int, stamps: Path, node: str) -> list[float]:
    """Seconds of each stage of the pilot on `node` since the event number `seen`, and their sum; none while something
    is still to come."""
    events = journal(site)[seen:]
    intents = [
        e
        for e in events
        if e.node == node and isinstance(e.payload, ActionIntent) and isinstance(e.payload.action, StartPilot)
    ]
    opened = [e.at for e in events if isinstance(e.payload, HolesOpened) and node in e.payload.nodes]
    if not intents or not opened:
        return []
    pilot = intents[-1].pilot or ""
    own = [e for e in events if e.pilot == pilot and e.at >= intents[-1].at]
    outcome = next((e.at for e in own if isinstance(e.payload, ActionOutcome)), None)
    warm = next((e.at for e in own if isinstance(e.payload, WorkerWarm)), None)
    worlds_of_it = (e.at for e in events if isinstance(e.payload, GenerationPublished) and pilot in e.payload.members)
    published = next(worlds_of_it, None)
    number = site.lab.job(pilot)["JobId"]
    try:
        shells = [float(line) for line in (stamps / number).read_text().split()]
        notes = dict(line.split() for line in (stamps / f"{number}.py").read_text().splitlines())
    except FileNotFoundError:
        return []
    if outcome is None or warm is None or published is None or len(shells) < 2 or "stepped" not in notes:
        return []
    python, imported, elastic, made, stepped = (float(notes[key]) for key in NOTES)
    ends = [opened[-1], intents[-1].at, outcome, shells[-2], shells[-1]]
    ends += [python, imported, elastic, made, warm, published, stepped]
    return [b - a for a, b in pairwise(ends)] + [ends[-1] - ends[0]]


def report(rows: list[list[float]], profile: str) -> None:
    if not rows:
        print("no run was completed")
        return
    print(f"\nprofile {profile}, {len(rows)} runs; seconds: median, worst")
    for index, (name, whose) in enumerate((*STAGES, ("all", ""))):
        values = [row[index] for row in rows]
        print(f"{name:26}{statistics.median(values):8.2f}{max(values):8.2f}   {whose}")
    own = [sum(row[i] for i, (_, whose) in enumerate(STAGES) if whose.startswith("MalleTrain")) for row in rows]
    print(
        f"stages with MalleTrain in them (srun and the step's own time too): median {statistics.median(own):.2f}, "
        f"worst {max(own):.2f}"
    )


if __name__ == "__main__":
    sys.exit(main())
