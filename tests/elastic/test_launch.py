"""The launcher: passes the token by descriptor, reports the exit status, leaves nothing running; and signals that ask
a worker to end before it trains."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from malletrain.domain import pilot_life
from malletrain.elastic.errors import Released
from malletrain.elastic.launch import NO_DAEMON_STATUS, launcher
from malletrain.elastic.launch.launcher import WATCHDOG_OFF, with_defaults
from malletrain.elastic.resize.lifecycle import WorkerLifecycle
from malletrain.loop.membership.next_world import JobTerms
from scripts.lab.ports import free_port
from tests.elastic.coordinator import ARRAY, JOB, outside_slurm, running
from tests.elastic.digits import SCRIPT
from tests.waiting import wait_until
from tests.world import data_of

#: Quoted for a shell: the path of a checkout may contain a space.
PYTHON, QUOTED = shlex.quote(sys.executable), shlex.quote(SCRIPT)


@pytest.mark.parametrize(("script", "status", "kind"), [
    ("exit 3", 3, "job_failed"),
    ("kill -9 $$", 137, "worker_lost"),
])  # fmt: skip
def test_the_exit_status_is_reported(tmp_path: Path, script: str, status: int, kind: str) -> None:
    with running(tmp_path) as (daemon, pod):
        process = pod.launch(daemon.url, 0, "/bin/bash", "-c", script)
        assert process.wait(90) == status
        assert daemon.seen("worker_joined")[0].pilot == f"{ARRAY}_0"
        assert daemon.seen(kind)


def test_what_a_script_said_last_before_it_had_a_session_is_reported_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the owner reads it in `malletrain status`."""
    out = tmp_path / "train-4_0.out"
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f"#!/bin/sh\necho 'JobId=7 JobName=train'\necho '   StdErr={out}'\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scontrol.parent}:{os.environ['PATH']}")
    said = "ModuleNotFoundError: No module named 'timm'"
    script = f'printf "%s\\n" "Traceback" "{said}" "srun: error: node0: task 0: Exited" >> {out}; exit 1'
    with running(tmp_path) as (daemon, pod):
        process = pod.launch(daemon.url, 0, "/bin/bash", "-c", script)
        assert process.wait(90) == 1
        (failed,) = daemon.seen("job_failed")
    assert failed.reason == f"exit status 1: {said} ({out})"


def test_an_earlier_run_of_the_pilot_has_said_nothing_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").write_text("OSError: earlier\n")
    monkeypatch.setattr(launcher, "_file_of", lambda _: tmp_path / "out")
    monkeypatch.setattr(launcher, "ARRIVAL_LIMIT_S", 0.2)
    assert launcher.last_words({}, time.time() + 3600.0) == ""
    assert launcher.last_words({}, time.time() - 3600.0) == f"OSError: earlier ({tmp_path / 'out'})"


def test_the_token_is_in_neither_arguments_nor_environment(tmp_path: Path) -> None:
    look = (
        "import os, json; welcome = json.loads(os.pread(int(os.environ['MALLETRAIN_WELCOME_FD']), 65536, 0));"
        "told = open('/proc/self/environ').read() + open('/proc/self/cmdline').read();"
        "print('leaked' if welcome['token'] in told else 'kept', len(welcome['token']) >= 32)"
    )
    with running(tmp_path) as (daemon, pod):
        pod.launch(daemon.url, 0, "/bin/bash", "-c", f'{PYTHON} -c "{look}"; {PYTHON} -c "{look}"')
        pod.wait(0, 120)
    assert pod.log(0).split("\n")[:2] == ["kept True"] * 2, "and it can be read twice"


def test_without_a_daemon_it_gives_the_node_back(tmp_path: Path) -> None:
    with running(tmp_path) as (_, pod):
        pod.launch(f"http://127.0.0.1:{free_port()}", 0, "/bin/true", PATIENCE="1")
        assert pod.wait(0, 120) == NO_DAEMON_STATUS == pilot_life.NO_DAEMON_STATUS
    assert "given up" in pod.log(0)
    assert len(pod.log(0).strip().splitlines()) == 1


def test_a_rejected_pilot_prints_one_line(tmp_path: Path) -> None:
    with running(tmp_path) as (daemon, pod):
        daemon.gate.end_job(JOB, "cancelled by alice")
        pod.launch(daemon.url, 0, "/bin/true")
        assert pod.wait(0, 120) == NO_DAEMON_STATUS
    assert "job 7 is over (cancelled by alice)" in pod.log(0)
    assert len(pod.log(0).strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ([], 2, "usage:"),
        (["--"], 2, "usage:"),
        (["/bin/true"], 2, "usage:"),
        (["--", "/bin/true"], 1, ".* MALLETRAIN_JOB is None, .*mtbatch"),
    ],
)
def test_a_call_by_hand_is_told_what_it_lacks(arguments: list[str], status: int, says: str) -> None:
    command = [sys.executable, "-m", "malletrain.elastic.launch", *arguments]
    done = subprocess.run(command, env=outside_slurm(), stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == status
    assert re.match(says, done.stderr), done.stderr


def test_a_worker_that_leaves_ends_its_script_and_waits_to_be_ended(tmp_path: Path) -> None:
    """Commands after python in the batch script do not run once the worker has left."""
    body = f"trap 'exit 143' TERM; {PYTHON} {QUOTED} --epochs 100 --step-seconds 0.1; touch {tmp_path}/after"
    with running(tmp_path) as (daemon, pod):
        process = pod.launch(daemon.url, 0, "/bin/bash", "-c", body, REQUEUE="120")
        daemon.wait_world([0])
        daemon.leave(0)
        left = daemon.wait_seen("worker_left")
        assert process.poll() is None, "its task must still run when it is requeued"
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 143
        assert str(data_of(left)["saved"]).startswith(str(tmp_path / ".malletrain" / str(JOB)))
    assert not (tmp_path / "after").exists()


def signal_another_thread(pid: int) -> None:
    """The kernel may give a process's signal to any of its threads."""
    threads = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
    other = next(thread for thread in threads if thread != pid)
    assert ctypes.CDLL(None, use_errno=True).tgkill(pid, other, signal.SIGTERM) == 0  # tgkill(2)


@pytest.mark.parametrize("mode", ["live", "restart"])
def test_a_signal_that_another_thread_gets_reaches_the_script(tmp_path: Path, mode: str) -> None:
    body = f"trap 'touch {tmp_path}/told; exit 143' TERM; touch {tmp_path}/runs; while :; do sleep 0.1; done"
    with running(tmp_path, JobTerms(restarts=mode == "restart")) as (daemon, pod):
        process = pod.launch(daemon.url, 0, "/bin/bash", "-c", body, THREAD="1")
        wait_until((tmp_path / "runs").exists, 90, "the script runs")
        signal_another_thread(process.pid)
        wait_until((tmp_path / "told").exists, 90, "the script has the signal")
        assert process.wait(90) == 143


def test_a_script_from_stdin_is_kept_and_stdin_is_empty_afterwards() -> None:
    text = b"#!/bin/bash\necho kept\n" * 10_000
    reading, writing = os.pipe()

    def write() -> None:
        os.write(writing, text)
        os.close(writing)

    thread = threading.Thread(target=write)
    thread.start()
    path = launcher.keep_script(reading)
    thread.join()
    assert Path(path).read_bytes() == text
    assert (
        subprocess.run(["/bin/bash", path], capture_output=True, text=True, timeout=120).stdout == "kept\n" * 10_000
    )
    assert os.read(reading, 1) == b""
    os.close(reading)


def test_the_watchdog_is_off_unless_the_site_says_otherwise() -> None:
    assert with_defaults({}).items() >= WATCHDOG_OFF.items()
    assert with_defaults({"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"})["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"


def test_the_launcher_needs_no_torch() -> None:
    code = "import sys, malletrain.elastic.launch.launcher; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ), timeout=60).returncode == 0


def test_only_an_open_pmi_descriptor_is_inherited() -> None:
    reading, writing = os.pipe()
    assert launcher.pmi_descriptors({"PMI_FD": str(reading)}) == (reading,)
    os.close(reading)
    os.close(writing)
    for environ in ({"PMI_FD": str(reading)}, {"PMI_FD": "x"}, {}):
        assert launcher.pmi_descriptors(environ) == ()


def lifecycle() -> WorkerLifecycle:
    anything: Any = SimpleNamespace(link=None, released="", committer=None)
    return WorkerLifecycle(anything, anything, anything, anything, anything, in_pilot=True)


def test_a_second_signal_does_not_break_what_ends_for_the_first() -> None:
    """Slurm signals each process, and a launcher passes its own on: two come within a moment. One that raised
    while Python left a lock ended the script by "release unlocked lock", as its own failure."""
    before = signal.signal(signal.SIGTERM, lifecycle().terminated)
    try:
        with pytest.raises(Released) as ended:
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.__context__ is None


def test_a_signal_is_heard_again_where_the_first_was_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, clock = lifecycle(), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    for _ in range(2):
        with pytest.raises(Released):
            ends.terminated(signal.SIGTERM, None)
        ends.terminated(signal.SIGTERM, None)
        clock[0] += 60.0
