"""Faults on a real Slurm (docs/reliability.md): every job ends as its static run does, and nothing is left."""

from __future__ import annotations

import random
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from scripts.chaos import faults
from scripts.chaos.__main__ import play
from scripts.chaos.faults import Chaos, daemon_frozen, node_drained, reservation_made
from scripts.chaos.laws import Outcome
from scripts.chaos.network import Network
from scripts.chaos.scene import Scene
from scripts.lab import LabError, UsageError


def played(directory: Path, *, minutes: float = 0.0, seed: int = 0, crash_points: int = 0) -> Outcome:
    try:
        found = play(minutes, seed, crash_points, 4, directory)
    except UsageError as error:
        pytest.skip(f"no Slurm lab here: {error}")
    for at, what in found.faults:
        print(f"{at:.1f} s {what}")
    print(found.summary())
    return found


class ForgetfulSlurm:
    """scontrol's answers: no answer at first, and what was mended is forgotten once, as when slurmctld dies early."""

    nodes = ("n1",)

    def __init__(self) -> None:
        self.broken, self.silent = set[str](), 0

    def run(self, command: Sequence[str], *, check: bool = True, timeout: float = 60.0) -> CompletedProcess[str]:
        if self.silent:
            self.silent -= 1
            if check:
                raise LabError("Unable to contact slurm controller")
            return CompletedProcess(command, 1, "", "Unable to contact slurm controller")
        words = " ".join(command)
        if "State=DRAIN" in words or "create reservation" in words:
            self.broken.add("drained" if "DRAIN" in words else "reserved")
        elif "State=RESUME" in words or "delete" in words:
            self.broken.discard("drained" if "RESUME" in words else "reserved")
        node = f"NodeName=n1 State=IDLE{'+DRAIN' if 'drained' in self.broken else ''} "
        reservation = "ReservationName=chaos0 Nodes=n1" if "reserved" in self.broken else ""
        return CompletedProcess(command, 0, node if "node" in command else reservation, "")


@pytest.mark.parametrize("fault", [node_drained, reservation_made])
def test_what_was_broken_is_mended_also_when_slurm_does_not_answer_or_forgets_it(fault: Any) -> None:
    slurm = ForgetfulSlurm()
    chaos = Chaos(cast(Scene, SimpleNamespace(lab=slurm)), random.Random(1))
    fault(chaos)
    broken = set(slurm.broken)
    slurm.silent = 3
    chaos.mend_due(float("inf"))
    assert slurm.broken == broken, "there was no answer"
    chaos.mend_due(float("inf"))
    chaos.mend_due(float("inf"))
    assert slurm.broken == set()
    slurm.broken = broken  # slurmctld starts from what it had saved
    chaos.mend_all()
    assert slurm.broken == set()


def test_a_daemon_that_has_just_ended_cannot_be_frozen_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    chaos = Chaos(cast(Scene, SimpleNamespace(site=SimpleNamespace(pid=ended.pid))), random.Random(1))
    monkeypatch.setattr(faults, "FAULTS", ((daemon_frozen, 1.0),))
    chaos.step()
    assert [what for _, what in chaos.done] == ["daemon_frozen: not done (the process had ended)"]


def test_a_cut_network_delivers_afterwards_what_was_sent_meanwhile() -> None:
    with socket.create_server(("127.0.0.1", 0)) as daemon:
        network = Network(daemon.getsockname()[1])
        try:
            with socket.create_connection(("127.0.0.1", urlsplit(network.url).port or 0), 60.0) as worker:
                worker.sendall(b"hello")
                far, _ = daemon.accept()
                with far:
                    far.settimeout(60.0)
                    assert far.recv(100) == b"hello"
                    network.cut()
                    worker.sendall(b"report")
                    far.settimeout(0.1)
                    with pytest.raises(TimeoutError):
                        far.recv(100)
                    network.mend()
                    far.settimeout(60.0)
                    assert far.recv(100) == b"report"
        finally:
            network.close()


@pytest.mark.slurm
def test_faults_of_all_kinds(lab_directory: Path) -> None:
    found = played(lab_directory, minutes=0.3, seed=4, crash_points=2)
    assert found.broken == []
    assert found.jobs >= 2
    assert len(found.faults) >= 1
    assert found.crashes


@pytest.mark.slurm
@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_twenty_minutes_of_faults(lab_directory: Path, seed: int) -> None:
    assert played(lab_directory, minutes=20.0, seed=seed).broken == []


@pytest.mark.slurm
@pytest.mark.nightly
def test_three_hundred_crash_points(lab_directory: Path) -> None:
    assert played(lab_directory, crash_points=300).broken == []
