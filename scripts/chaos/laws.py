"""What must hold once the faults are over, and what came of a run."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from malletrain.loop.ledger import Ledger
from malletrain.store.journal import read_events
from scripts.chaos.faults import Chaos
from scripts.chaos.scene import ABSOLUTE, RELATIVE, Scene, Training
from scripts.lab import DeadlineError, Lab, LabError

#: A main job begins so soon where the nodes without main jobs suffice (seconds): Slurm's own preemption of a pilot
#: that does not leave takes the partition's GraceTime of 10 s, its look for candidates, and the start of a job.
MAIN_WAIT_S = 25.0

#: slurmctld may not have saved what it acknowledged within so many seconds before it was killed.
UNSAVED_S = 10.0

#: What a job says whose array it did not save.
SAID_WHEN_LOST = ("Slurm knows no job array", "no longer knows its tasks", "Slurm has lost array")


@dataclass
class Outcome:
    """What came of a run: broken laws, and figures."""

    broken: list[str] = field(default_factory=list)
    jobs: int = 0
    lost_by_slurm: int = 0  #: jobs whose array slurmctld had not saved before it was killed; each said so
    daemons: int = 0
    crashes: list[str] = field(default_factory=list)
    faults: list[tuple[float, str]] = field(default_factory=list)
    main_waits_s: list[float] = field(default_factory=list)  #: sorted; of main jobs that could have begun at once
    main_jobs: int = 0
    recovered_s: list[float] = field(default_factory=list)  #: sorted

    def summary(self) -> dict[str, Any]:
        """The figures by name."""
        return {
            "broken": self.broken,
            "jobs with the result of their static run": self.jobs,
            "jobs that slurmctld itself lost, and that say so": self.lost_by_slurm,
            "faults": len(self.faults),
            "daemons": self.daemons,
            "crashes at boundaries": len(self.crashes),
            "main jobs": self.main_jobs,
            "main jobs that could begin at once": len(self.main_waits_s),
            "their wait, median (s)": _quantile(self.main_waits_s, 0.5),
            "their wait, largest (s)": _quantile(self.main_waits_s, 1.0),
            "daemon's start to its first answer, p99 (s)": _quantile(self.recovered_s, 0.99),
        }


def outcome(scene: Scene, chaos: Chaos, calm_s: float) -> Outcome:
    """Waits until all jobs have ended, `calm_s` at most, and judges."""
    found = Outcome(faults=chaos.done)
    lab = scene.lab
    try:
        lab.wait_for(lambda: len(scene.ended()) == len(scene.jobs), calm_s, "the end of every job")
    except DeadlineError as error:
        found.broken.append(str(error).splitlines()[0])
    for job in scene.jobs:
        if _was_lost_by_slurm(scene, chaos, job):
            found.lost_by_slurm += 1
        elif why := _not_as_static(scene, job.number, scene.static_result(job)):
            found.broken.append(f"job {job.number}: {why}")
        else:
            found.jobs += 1
    found.broken += [f"two jobs ran on one node: {each}" for each in sorted(scene.double)]
    found.broken += _left(scene)
    found.broken += _journal(scene)
    _main_queue(scene, chaos, found)
    found.crashes, found.daemons = scene.supervisor.crashed, scene.supervisor.starts
    found.recovered_s = sorted(scene.supervisor.recovered_s)
    return found


def _was_lost_by_slurm(scene: Scene, chaos: Chaos, job: Training) -> bool:
    """Whether slurmctld was killed soon after it had taken the job's array, came back without it, and the job has
    failed with that reason."""
    if not chaos.was_unsure(job.acknowledged, job.acknowledged + UNSAVED_S):
        return False
    seen = scene.job(job.number)
    said = str(seen.get("reason"))
    return seen.get("phase") == "failed" and any(each in said for each in SAID_WHEN_LOST)


def _not_as_static(scene: Scene, number: int, static: dict[str, float]) -> str:
    job = scene.job(number)
    if job.get("phase") != "completed":
        return f"is {job.get('phase', 'not known')}: {job.get('reason', '')}"
    result = job.get("result") or {}
    off = {
        name: (result.get(name), value)
        for name, value in static.items()
        if not math.isclose(float(result.get(name, math.nan)), value, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    }
    return f"differs from its static run in {off}" if off else ""


def _left(scene: Scene) -> list[str]:
    """What of Slurm's jobs and of processes outlives its reason."""
    lab, broken = scene.lab, []
    for what, rows in (
        ("jobs of the harvest partition", ["squeue", "-a", "-h", "-p", "harvest", "-o", "%i %T"]),
        ("reservations", ["scontrol", "show", "reservation", "-o"]),
    ):
        try:
            lab.wait_for(functools.partial(_has_none, lab, rows), 60, what)
        except LabError as error:
            broken.append(f"left: {str(error).splitlines()[0]}: {lab.run(rows, check=False).stdout[:300]}")
    try:
        lab.wait_for(lambda: not scene.workers(), 30, "the end of every training process")
    except LabError as error:
        broken.append(f"left: {str(error).splitlines()[0]}")
    return broken


def _has_none(lab: Lab, rows: Sequence[str]) -> bool:
    return lab.run(list(rows)).stdout.strip() in ("", "No reservations in the system")


def _journal(scene: Scene) -> list[str]:
    """The journal is sound: read whole and folded, it has every job as over."""
    ledger = Ledger()
    ledger.apply(read_events(scene.database))
    missing = [job.number for job in scene.jobs if job.number not in ledger.views()]
    return [f"acknowledged jobs {missing} are not in the journal"] if missing else []


def _main_queue(scene: Scene, chaos: Chaos, found: Outcome) -> None:
    """How long main jobs waited that could have begun at once: other main jobs left them enough nodes, and slurmctld
    answered and had all nodes all the while."""
    times = scene.main.times()
    found.main_jobs = len(times)
    for each in times:
        beside = sum(other.nodes for other in times if other is not each and other.overlaps(each))
        if beside + each.nodes > len(scene.lab.nodes) or chaos.was_unsure(each.submitted, each.begun):
            continue
        found.main_waits_s.append(each.begun - each.submitted)
        if not found.main_waits_s[-1] <= MAIN_WAIT_S:
            found.broken.append(f"main job {each.number} of {each.nodes} nodes waited {found.main_waits_s[-1]:.1f} s")
    found.main_waits_s.sort()


def _quantile(values: list[float], share: float) -> float | None:
    """Of sorted values, the nearest rank; None of none."""
    return round(values[max(0, math.ceil(share * len(values)) - 1)], 2) if values else None
