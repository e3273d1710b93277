"""Restart mode: a script without any use of this package is relaunched at each new size; and where more tasks are
submitted from."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from malletrain.domain.event import Event
from malletrain.elastic.launch.array_resubmit import (
    ArrayResubmitter,
    comment_of_script,
    environment_outside_pilot,
)
from malletrain.elastic.launch.restart import MAX_FAILURES, seconds_of, signal_named, torchrun_environment
from malletrain.loop.membership.next_world import JobTerms
from malletrain.slurm.submission.sbatch import BatchRequest
from malletrain.wire import messages
from malletrain.wire.errors import WireError
from tests.elastic.coordinator import ARRAY, HERE, JOB, another, kill_node, last_generation, running
from tests.waiting import wait_until
from tests.world import data_of

RELAUNCHED = (sys.executable, str(HERE / "restartable.py"))


def sizes(directory: Path) -> list[int]:
    path = directory / "counts"
    return [int(line.split()[2]) for line in path.read_text().splitlines()] if path.exists() else []


def assert_pauses_end_with_a_step(switched: Sequence[Event]) -> None:
    """Each relaunch is reported twice: the time to end the script, and the time until it trained again."""
    first = data_of(switched[0])["generation"]
    for generation in {data_of(event)["generation"] for event in switched} - {first}:
        ended, trains = [data_of(e)["pause_s"] for e in switched if data_of(e)["generation"] == generation]
        assert isinstance(ended, int | float) and isinstance(trains, int | float)
        assert trains > ended + 0.5, "Python and torch have to be loaded in between"


@pytest.mark.parametrize("saves_s", ["0", pytest.param("4", marks=pytest.mark.nightly)])
def test_any_script_is_relaunched_at_the_new_size(tmp_path: Path, saves_s: str) -> None:
    with running(tmp_path, JobTerms(restarts=True)) as (daemon, pod):
        pod.launch(daemon.url, 0, *RELAUNCHED, MALLETRAIN_TEST_SAVE_S=saves_s)
        wait_until(lambda: 1 in sizes(tmp_path), 180, "steps of one")
        pod.launch(daemon.url, 1, *RELAUNCHED, MALLETRAIN_TEST_SAVE_S=saves_s)
        wait_until(lambda: 2 in sizes(tmp_path), 180, "steps of two")
        daemon.leave(0)
        wait_until(lambda: sizes(tmp_path)[-1:] == [1], 180, "steps of one again")
        pod.kill(0, signal.SIGTERM)
        assert pod.wait(0, 90) == 143
        pod.finish(1)
        assert daemon.seen("job_completed")
        assert not daemon.seen("worker_lost")
        assert_pauses_end_with_a_step(daemon.seen("switched"))
    lines = [line.split() for line in (tmp_path / "counts").read_text().splitlines()]
    counts = [int(count) for count, rank, _ in lines if rank == "0"]
    assert counts == list(range(1, 401)), "each step is done once: none began from an older checkpoint"


#: Says how large its world is, and waits for a file; with another size it would be started anew.
WAITS = ("sh", "-c", "cd $MALLETRAIN_TEST_DIR; echo x 0 $WORLD_SIZE >> counts; until [ -e go ]; do sleep .1; done")


def test_a_launcher_whose_script_has_finished_waits_for_the_daemon_to_hear_of_it(tmp_path: Path) -> None:
    terms = JobTerms(restarts=True)
    with running(tmp_path, terms) as (daemon, pod):
        pod.launch(daemon.url, 0, *WAITS)
        wait_until(lambda: sizes(tmp_path) == [1], 180, "a script of one")
        generations = last_generation(daemon)
        daemon.stop()
        (tmp_path / "go").touch()
        with pytest.raises(subprocess.TimeoutExpired):
            pod.wait(0, 12)
        with another(generations, daemon.port, terms) as again:
            assert pod.wait(0, 90) == 0
            again.wait_seen("job_completed")
    assert sizes(tmp_path) == [1], "it is not started again"


#: Says how large its world is, and fails as soon as another member of it is gone.
FAILS_WITH_ITS_PEER = """
cd $MALLETRAIN_TEST_DIR
echo x $RANK $WORLD_SIZE >> counts
trap 'exit 143' TERM
until [ $WORLD_SIZE = 2 ] && [ -e gone-$MASTER_PORT-$TORCHELASTIC_RESTART_COUNT ]; do sleep .05; done
exit 1
"""


def test_failures_that_lost_peers_caused_do_not_end_the_job(tmp_path: Path) -> None:
    """A script whose peer is gone fails, each time soon after its start."""
    script = ("sh", "-c", FAILS_WITH_ITS_PEER)
    with running(tmp_path, JobTerms(restarts=True)) as (daemon, pod):
        pod.launch(daemon.url, 0, *script)
        wait_until(lambda: sizes(tmp_path) == [1], 180, "a script alone")
        for task in range(1, MAX_FAILURES + 1):
            pod.launch(daemon.url, task, *script)
            wait_until(lambda: sizes(tmp_path)[-2:] == [2, 2], 180, "scripts of two")
            world = daemon.membership.world(JOB)
            assert world is not None
            kill_node(pod.processes[task].pid)
            port = world.store.rpartition(":")[2]
            (tmp_path / f"gone-{port}-{world.generation}").touch()
            wait_until(lambda: sizes(tmp_path)[-1:] == [1], 180, "a script alone again")
        assert pod.processes[0].poll() is None
        assert not daemon.seen("job_failed")
        lost = [event.pilot for event in daemon.seen("worker_lost")]
        assert lost == [f"{ARRAY}_{task}" for task in range(1, MAX_FAILURES + 1)], "nodes that failed"
        assert not daemon.seen("worker_left")


def test_a_script_that_failed_is_started_again_with_another_port(tmp_path: Path) -> None:
    """Another process may have taken its port since the last script listened there."""
    ports = tmp_path / "ports"
    script = ("sh", "-c", f"echo $MASTER_PORT >> {ports}; [ $(wc -l < {ports}) = 1 ] && exit 1; exec sleep 600")
    with running(tmp_path, JobTerms(restarts=True)) as (daemon, pod):
        pod.launch(daemon.url, 0, *script)
        wait_until(lambda: ports.exists() and len(ports.read_text().split()) == 2, 180, "a second script")
        before, after = ports.read_text().split()
        assert before != after


def test_a_script_that_fails_by_itself_ends_the_job(tmp_path: Path) -> None:
    with running(tmp_path, JobTerms(restarts=True)) as (daemon, pod):
        for task in (0, 1):
            pod.launch(daemon.url, task, "sh", "-c", "exit 7")
        assert "3 times" in daemon.wait_seen("job_failed").reason


def test_the_environment_is_that_of_torchrun() -> None:
    plan = messages.Plan(9, (messages.Seat("a", "h1:1"), messages.Seat("b", "h2:2")), "h1:1")
    wanted = {"MASTER_ADDR": "h1", "MASTER_PORT": "1", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    assert torchrun_environment(plan, 1).items() >= wanted.items()


def test_invalid_settings_are_named() -> None:
    assert signal_named("USR2") is signal.SIGUSR2
    assert signal_named("SIGTERM") is signal.SIGTERM
    assert signal_named("10") is signal.SIGUSR1
    with pytest.raises(WireError, match="MALLETRAIN_SIGNAL is 'FOO'"):
        signal_named("FOO")
    for wrong in ("x", "-1", "nan", "1e9"):
        with pytest.raises(WireError, match="MALLETRAIN_GRACE_S"):
            seconds_of({"MALLETRAIN_GRACE_S": wrong}, "MALLETRAIN_GRACE_S", 1.0)


def test_new_tasks_inherit_the_cluster_but_no_variable_of_this_pilot() -> None:
    environ = {
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SLURM_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "1",
        "SBATCH_ACCOUNT": "x",
        "MALLETRAIN_STEP_OF": "7",
        "PMI_RANK": "0",
        "PATH": "/usr/bin",
        "PYTHONPATH": "/opt/lib",
        "MALLETRAIN_PYTHONPATH": "src:/opt/lib",
        "MUNGE_SOCKET": "/run/munge",
    }
    assert environment_outside_pilot(environ) == {
        "PYTHONPATH": "src:/opt/lib",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "PATH": "/usr/bin",
        "MUNGE_SOCKET": "/run/munge",
    }


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Fakes of Slurm's commands that note how they were called; squeue shows what sbatch was called with."""
    programs = {"sbatch": "cat DIR/printed; exit $(cat DIR/status)", "squeue": "cat DIR/shown", "scancel": ""}
    note = 'for word in "$@"; do case "$word" in --comment=*) echo "78 ${word#*=}" > DIR/shown;; esac; done\n'
    for name, body in programs.items():
        text = f'#!/bin/sh\necho "{name} $*" >> DIR/asked\n{note if name == "sbatch" else ""}{body}\n'
        (tmp_path / name).write_text(text.replace("DIR", str(tmp_path)))
        (tmp_path / name).chmod(0o755)
    request = BatchRequest("a", 1, 2, "harvest", "/", b"true\n", passed=(("comment", 'a "quoted" \\ sweep'),))
    script = request.materialize(7, "http://127.0.0.1:1", "/python", {}, mark="aa").script
    (tmp_path / "train.sh").write_bytes(script)
    return tmp_path


def test_more_tasks_are_submitted_as_the_jobs_owner_when_they_run_out(tmp_path: Path, tools: Path) -> None:
    """With a real Slurm: scripts/bench/arrivals."""
    (tools / "printed").write_text("77\n")
    (tools / "status").write_text("0")
    more = {"PATH": f"{tools}:{os.environ['PATH']}", "MALLETRAIN_BATCH_SCRIPT": f"{tools}/train.sh"}
    with running(tmp_path, JobTerms(restarts=True)) as (daemon, pod):
        pod.launch(daemon.url, 0, *WAITS, **more)
        wait_until(lambda: sizes(tmp_path) == [1], 180, "a script of one")
        with daemon.lock:
            assert daemon.membership.top_up(7, 8)
        said = tools / "asked"
        wait_until(lambda: said.exists() and "\n" in said.read_text(), 90, "tasks were submitted")
    asked = said.read_text().splitlines()
    assert asked[0].startswith("sbatch --parsable")
    assert asked[0].endswith(f"--array=0-7 {tools}/train.sh")


@pytest.mark.parametrize(
    ("printed", "status", "found"),
    [
        ("77;alpha", 0, 77),
        ("77\nYour project has 99% of its budget left.", 0, 78),
        ("Job 77 submitted", 0, 78),
        ("", 0, 78),
        ("budget: no such project", 1, 78),
    ],
)
def test_no_array_stays_that_the_daemon_does_not_know(tools: Path, printed: str, status: int, found: int) -> None:
    """The daemon takes none here. The array goes, whatever a site's sbatch prints of it."""
    (tools / "printed").write_text(f"{printed}\n")
    (tools / "status").write_text(str(status))
    environ = {"PATH": f"{tools}:/usr/bin:/bin", "MALLETRAIN_BATCH_SCRIPT": f"{tools}/train.sh"}
    with pytest.raises(WireError):
        ArrayResubmitter("http://127.0.0.1:1", 7, environ).submit(4)
    asked = (tools / "asked").read_text().splitlines()
    assert '--comment=malletrain job 7; aa; a "quoted" \\ sweep; ' in asked[0]
    assert asked[-1] == f"scancel {found}"


def test_a_script_without_a_comment_is_submitted_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("#!/bin/bash\n")
    assert comment_of_script(str(tmp_path / "train.sh")) == ""
    assert comment_of_script(str(tmp_path / "none.sh")) == ""
