"""Running commands: ones that hang, fork, print without end, fail in words, or fail with exit status 0."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from malletrain.domain.errors import ClusterUnavailable
from malletrain.slurm import command
from malletrain.slurm.command import Commands
from malletrain.slurm.read_commands import CommandReader
from tests.messages import naming, says
from tests.waiting import runs, wait_until


def commands(folder: Path, timeout_s: float = 30.0, **programs: str) -> Commands:
    """Programs of the given shell text on a PATH of their own."""
    for name, text in programs.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    return Commands({"PATH": f"{folder}:/usr/bin:/bin", "SQUEUE_FORMAT": "%j", "SLURM_CONF": "/x"}, timeout_s)


def test_the_answer_and_the_environment(tmp_path: Path) -> None:
    run = commands(
        tmp_path, squeue='echo "$LC_ALL $SLURM_TIME_FORMAT $SLURM_BITSTR_LEN $SLURM_CONF [$SQUEUE_FORMAT] $1"'
    )
    assert run.ask(["squeue", "x y"]) == "C %s 0 /x [] x y\n"


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    noted = tmp_path / "child"
    for patience_s in (0.5, 5.0, 50.0):  # on a busy machine the shell is killed before it has begun
        run = commands(tmp_path, patience_s, squeue=f"sleep 300 & echo $! > {noted}; wait")
        started = time.monotonic()
        with pytest.raises(ClusterUnavailable, match=naming("squeue:", f"{patience_s:g} s")):
            run.ask(["squeue"])
        assert time.monotonic() - started < patience_s + 60
        if noted.exists() and noted.read_text().endswith("\n"):
            break
    child = int(noted.read_text())
    wait_until(lambda: not runs(child), 60, "the child's end")


def test_the_end_of_the_daemon_cuts_off_what_runs_and_begins_nothing(tmp_path: Path) -> None:
    run = commands(tmp_path, 120.0, squeue=f"echo $$ > {tmp_path}/pid; sleep 300", scontrol="echo done")
    told: list[str] = []

    def ask() -> None:
        try:
            run.ask(["squeue"])
        except ClusterUnavailable as error:
            told.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until((tmp_path / "pid").exists, 60, "the command's start")
    run.end_within(0.2)
    asking.join(60)
    (said,) = told
    assert says(said, "squeue: given up", "ending")
    with pytest.raises(ClusterUnavailable, match=naming("scontrol: not run", "ending")):
        run.ask(["scontrol"])


def test_a_child_that_keeps_the_pipe_open_does_not_hold_us(tmp_path: Path) -> None:
    run = commands(tmp_path, 0.5, squeue="sleep 300 &\necho done")
    with pytest.raises(ClusterUnavailable, match="no answer"):
        run.ask(["squeue"])


def test_output_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "MAX_OUTPUT_BYTES", 1 << 20)
    with pytest.raises(ClusterUnavailable, match="MiB of output"):
        commands(tmp_path, squeue="yes").ask(["squeue"])


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("echo 'squeue: error: Invalid user: x' >&2; exit 1", "squeue: error: Invalid user: x"),
        ("echo one >&2; echo two >&2; echo one >&2; exit 1", "one; two"),
        ("exit 3", "exit status 3"),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2", "Unable to contact"),
        ("echo 'slurm_load_nodes: Socket timed out'", "Socket timed out"),
        ("kill -9 $$", "exit status -9"),
    ],
)
def test_failures_are_one_line(tmp_path: Path, program: str, said: str) -> None:
    with pytest.raises(ClusterUnavailable) as caught:
        commands(tmp_path, squeue=program).ask(["squeue"])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_program_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnavailable, match="install Slurm's commands"):
        Commands({"PATH": str(tmp_path)}).ask(["no-such-slurm-command"])


def test_harmless_words_on_stderr_are_no_failure(tmp_path: Path) -> None:
    run = commands(tmp_path, sinfo="echo 'sinfo: warning: something' >&2; echo fine")
    assert run.ask(["sinfo"]) == "fine\n"


def test_marks_differ() -> None:
    assert len({Commands.mark() for _ in range(100)}) == 100


NODE = "NodeName=n1 State=IDLE Partitions=batch,harvest CPUTot=4 CPUAlloc=0"


@pytest.mark.parametrize(
    ("scontrol", "squeue", "said"),
    [
        (f"printf '{NODE}'", "", "cut off"),
        ("true", "", "cut off"),
        ("echo", "", "no node"),
        ("echo NodeName=n1 Arch=x", "", "a state"),
        (f"echo '{NODE}'", "echo 12345", "wrong shape"),
        (f"echo '{NODE}'", "exit 1", "squeue: exit status 1"),
    ],
)
def test_half_an_answer_is_no_snapshot(tmp_path: Path, scontrol: str, squeue: str, said: str) -> None:
    run = commands(
        tmp_path, scontrol=f'case "$*" in *reservation*) ;; *) {scontrol};; esac', squeue=squeue, sdiag="true"
    )
    with pytest.raises(ClusterUnavailable, match=said):
        CommandReader(run, time.time, "harvest").snapshot()


def test_no_sdiag_leaves_the_plan_unknown(tmp_path: Path) -> None:
    run = commands(
        tmp_path, scontrol=f"case \"$*\" in *reservation*) ;; *) echo '{NODE}';; esac", squeue="true", sdiag="exit 1"
    )
    seen = CommandReader(run, time.time, "harvest").snapshot()
    assert seen.plan.last_cycle_at is None
    assert seen.is_free("n1")
    assert os.environ.get("SLURM_TIME_FORMAT") != "%s", "the caller's own environment is left alone"
