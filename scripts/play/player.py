"""Submits a main queue to a lab at its times, and tells when each job really started."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.lab import Lab, LabError
from scripts.play.load import MainJob


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
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._play, name="player", daemon=True)

    def start(self, at: float | None = None) -> None:
        """Begin; the play's second 0 is `at` (time.time()), so that two players can keep in step."""
        self._begin = at if at is not None else time.time()
        self._thread.start()

    def stop(self) -> None:
        """Submit nothing more."""
        self._stop.set()
        self._thread.join()

    def wait(self) -> None:
        """Wait until everything has been submitted."""
        self._thread.join()

    def started(self, number: int) -> float | None:
        """When job `number` ran its first command (time.time()); None when it has not."""
        try:
            text = (self.directory / f"{number}.start").read_text()
        except FileNotFoundError:
            return None
        return float(text) if text.strip() else None

    def played(self) -> list[Played]:
        """What became of the jobs submitted so far."""
        rows = []
        for job in self.jobs:
            if job.number in self._refused:
                rows.append(Played(job, None, self._refused[job.number]))
            elif job.number in self._submitted:
                began = self.started(job.number)
                rows.append(Played(job, began - self._submitted[job.number] if began else None))
        return rows

    def _play(self) -> None:
        for job in sorted(self.jobs, key=lambda j: j.submit_s):
            if self._stop.wait(max(0.0, self._begin + job.submit_s - time.time())):
                return
            minutes = math.ceil(job.limit_s / 60)
            command = f"date +%s.%N > {self.directory}/{job.number}.start; sleep {job.run_s:.2f}"
            options = (f"--nodes={job.nodes}", "--exclusive", f"--time={minutes}", f"--job-name=main{job.number}")
            self._submitted[job.number] = time.time()
            try:
                self.ids[job.number] = self.lab.submit(command, *options, user=self.user)
            except LabError as error:
                self._refused[job.number] = str(error)
