"""Submits a main queue to a lab at its times, and tells when each job really started."""

from __future__ import annotations

import math
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.lab import Lab, LabError
from scripts.play.load import Kind, MainJob


@dataclass(frozen=True, slots=True)
class Played:
    """What became of a main job. `start_s` is seconds from submission to its first command; None: never started."""

    job: MainJob
    start_s: float | None
    refused: str = ""


class Player:
    """Plays `jobs` on `lab` as `user`, in a thread of its own. Each job writes down when it starts, to the
    millisecond: Slurm's own StartTime has whole seconds only."""

    def __init__(self, lab: Lab, jobs: Sequence[MainJob], user: str | None, directory: Path) -> None:
        self.lab = lab
        self.jobs = jobs
        self.user = user
        self.directory = directory
        directory.mkdir(exist_ok=True)
        directory.chmod(0o1777)
        self.ids: dict[int, int] = {}
        self._submitted: dict[int, float] = {}
        self._refused: dict[int, str] = {}
        self._immediate: dict[int, subprocess.Popen[str]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._play, name="player", daemon=True)

    def start(self, at: float | None = None) -> None:
        """Begin; the play's second 0 is `at` (time.time()), so that two players can keep in step."""
        self._begin = at if at is not None else time.time()
        self._thread.start()

    def stop(self) -> None:
        """Submit nothing more, and wait for no job."""
        self._stop.set()
        self._thread.join()
        for srun in self._immediate.values():
            if srun.poll() is None:
                srun.terminate()
            srun.wait()

    def wait(self) -> None:
        """Wait until everything has been submitted."""
        self._thread.join()

    def answered(self) -> None:
        """Wait until every `srun -I` has run or was refused."""
        for srun in self._immediate.values():
            srun.wait()

    def started(self, job: MainJob) -> float | None:
        """When the whole job ran its first command (time.time()), every task of an array; None when it has not."""
        parts = job.nodes if job.kind is Kind.ARRAY else 1
        at = []
        for part in range(parts):
            try:
                text = (self.directory / f"{job.number}.{part}").read_text()
            except FileNotFoundError:
                return None
            if not text.strip():
                return None
            at.append(float(text))
        return max(at)

    def submitted_at(self, number: int) -> float | None:
        """When the job of that number was submitted (time.time()); None when it was not."""
        return self._submitted.get(number)

    def played(self) -> list[Played]:
        """What became of the jobs submitted so far."""
        rows = []
        for job in self.jobs:
            if job.number in self._refused:
                rows.append(Played(job, None, self._refused[job.number]))
            elif job.number in self._submitted:
                began = self.started(job)
                srun = self._immediate.get(job.number)
                refused = "no nodes at once" if began is None and srun is not None and srun.poll() else ""
                rows.append(Played(job, began - self._submitted[job.number] if began else None, refused))
        return rows

    def _play(self) -> None:
        for job in sorted(self.jobs, key=lambda j: j.submit_s):
            if self._stop.wait(max(0.0, self._begin + job.submit_s - time.time())):
                return
            self._submitted[job.number] = time.time()
            try:
                self._submit(job)
            except LabError as error:
                self._refused[job.number] = str(error)

    def _submit(self, job: MainJob) -> None:
        minutes = math.ceil(job.limit_s / 60)
        options = ["--exclusive", f"--time={minutes}", f"--job-name=main{job.number}"]
        note = f"{self.directory}/{job.number}.${{SLURM_ARRAY_TASK_ID:-${{SLURM_PROCID:-0}}}}"
        command = f"date +%s.%N > {note}; sleep {job.run_s:.2f}"
        nodes = [f"--nodes={job.nodes}"]
        match job.kind:
            case Kind.IMMEDIATE:
                argv = ["srun", "-I", *nodes, *options, "sh", "-c", command]
                self._immediate[job.number] = self.lab.popen(argv, self.user, stderr=subprocess.DEVNULL)
                return
            case Kind.HETJOB:
                parts = ["--nodes=1", *options, ":", f"--nodes={job.nodes - 1}", *options]
            case Kind.ARRAY:
                parts = ["--nodes=1", f"--array=0-{job.nodes - 1}", *options]
            case Kind.SWITCHES:
                parts = [*nodes, "--switches=1", *options]
            case Kind.PLAIN:
                parts = [*nodes, *options]
        if job.kind is Kind.HETJOB:  # --wrap goes with one component only
            script = self.directory / f"{job.number}.sh"
            script.write_text(f"#!/bin/sh\n{command}\n")
            script.chmod(0o755)
            asked = ["sbatch", "--parsable", "--output=/dev/null", *parts, str(script)]
            self.ids[job.number] = int(self.lab.run(asked, self.user).stdout.strip().split(";")[0])
        else:
            self.ids[job.number] = self.lab.submit(command, *parts, user=self.user)
