"""`malletrain logs`: the files of a job's tasks, the main worker's first, followed as they grow."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from glob import escape
from pathlib import Path

import pytest

from malletrain.cli.logs import tasks_of
from malletrain.domain.job import output_file
from malletrain.wire.rows import EventRow, JobRow
from tests.api.house import House
from tests.cli.conftest import Desk
from tests.world import event_of

ROW = JobRow(3, "a*b", "ada", 1001, "", "running", 1, 4, 0.0)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("/w/slurm-%A_%a.out", "/w/slurm-47_2.out"),
        ("/w/[x]/%x-%u-%4a.log", "/w/[[]x]/a[*]b-ada-0002.log"),
        ("/w/%j-%N-%%.out", "/w/*-*-%.out"),
    ],
)
def test_sbatchs_patterns_become_file_names(pattern: str, found: str) -> None:
    assert output_file(pattern, "47_2", ROW.name, ROW.user, quote=escape) == found


def test_tasks_of_the_last_world_come_first_in_rank_order() -> None:
    def event(kind: str, **data: object) -> EventRow:
        return EventRow(1, 0.0, kind, 3, data=data)  # type: ignore[arg-type]

    pattern, tasks = tasks_of(
        [
            event("job_announced", output=["/w/%A_%a.out"]),
            event("tasks_added", array_id=47, tasks=[0, 1, 2]),
            event("generation", members=["47_0", "47_2"]),
            event("generation", members=["47_2", "47_1"]),
            event("generation", members=[]),
        ]
    )
    assert pattern == ("/w/%A_%a.out",)
    assert list(tasks.items()) == [("47_2", 0), ("47_1", 1), ("47_0", None)]


@pytest.fixture
def job(desk: Desk, api: House) -> int:
    """A job whose second task is the main worker."""
    number = int(desk.mtbatch("--parsable", "train.sh").out)
    events = [
        event_of(2.0, "tasks_added", number, data={"array_id": 47, "tasks": [0, 1, 2]}),
        event_of(3.0, "generation", number, data={"generation": 2, "members": ["47_1", "47_0"]}),
    ]
    api.journal.append(events)
    return number


def put(desk: Desk, task: int, text: str) -> Path:
    path = desk.work / f"slurm-47_{task}.out"
    with path.open("a") as stream:
        stream.write(text)
    return path


def test_the_main_workers_output_comes_first(desk: Desk, job: int) -> None:
    first, second = put(desk, 0, "zero\n"), put(desk, 1, "one\ntwo\nthree\n")
    done = desk.malletrain("logs", str(job))
    assert (done.status, done.err) == (0, "")
    assert done.out == (
        f"==> 47_1, rank 0 (main): {second} <==\none\ntwo\nthree\n==> 47_0, rank 1: {first} <==\nzero\n"
    )
    assert desk.malletrain("logs", str(job), "--rank", "1").out == f"==> 47_0, rank 1: {first} <==\nzero\n"
    assert "one" not in desk.malletrain("logs", str(job), "-n", "1").out


def test_what_cannot_be_read_is_said(desk: Desk, job: int) -> None:
    done = desk.malletrain("logs", str(job))
    assert done.status == 1
    assert re.search(r"job \d+ .* /.*/slurm-%A_%a.out", done.err)
    os.mkfifo(desk.work / "slurm-47_1.out")
    assert desk.malletrain("logs", str(job)).out == "", "a FIFO is not waited for"


def test_followed_as_it_grows_until_the_job_is_over(desk: Desk, api: House, job: int) -> None:
    put(desk, 1, "one\n")
    process = subprocess.Popen(
        [sys.executable, "-c", "from malletrain.cli.main import main; main()", "logs", "-f", str(job)],
        env={**desk.environ, "PYTHONPATH": str(Path.cwd())}, cwd=desk.work, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert "main" in process.stdout.readline()
        assert process.stdout.readline() == "one\n"
        put(desk, 1, "two\n")
        assert process.stdout.readline() == "two\n"
        desk.malletrain("cancel", str(job))
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()


def test_status_ends_with_the_last_line_of_a_job_that_failed(desk: Desk, api: House, job: int) -> None:
    put(desk, 0, "an older word\n")
    put(
        desk,
        1,
        "malletrain: n1 has no /opt/x/python: see mtbatch --python\n"
        "slurmstepd-n1: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-23T20:00:00 DUE TO JOB REQUEUE ***\n"
        "srun: got SIGCONT\nsrun: forcing job termination\n"
        "srun: error: n1: task 0: Exited with exit code 1\n",
    )
    os.utime(desk.work / "slurm-47_0.out", (1.0, 1.0))
    assert "printed last" not in desk.malletrain("status", str(job)).out
    api.journal.append([event_of(4.0, "job_failed", job, reason="5 pilots in a row ended")])
    said = desk.malletrain("status", str(job)).out
    where = desk.work / "slurm-47_1.out"
    assert f"printed last: malletrain: n1 has no /opt/x/python: see mtbatch --python ({where})\n" in said
