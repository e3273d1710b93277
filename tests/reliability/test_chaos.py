"""Faults on a real Slurm (docs/reliability.md): every job ends as its static run does, and nothing is left."""

from __future__ import annotations

import random
import socket
import subprocess
from collections.abc import Sequence
from math import inf
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from malletrain.domain.event import DaemonStarted, Event
from malletrain.store.journal import SqliteJournal, read_events
from scripts.chaos import faults
from scripts.chaos.__main__ import play
from scripts.chaos.faults import (
    Chaos,
    daemon_frozen,
    journal_full,
    node_drained,
    node_isolated,
    nodes_parted,
    reservation_made,
    resume,
    work_folder_full,
)
from scripts.chaos.laws import Outcome
from scripts.chaos.scene import MainQueue, Network, Scene, keep
from scripts.lab import Lab, LabError, UsageError
from scripts.lab.node_network import DAEMON
from tests.messages import says
from tests.small_disk import small_disk as small_disk


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

    nodes: tuple[str, ...] = ("n1",)

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


def test_nodes_that_slurm_itself_has_drained_serve_again(lab: Lab) -> None:
    chaos = Chaos(cast(Scene, SimpleNamespace(lab=lab)), random.Random(1))
    drained, here, *_ = lab.nodes
    for node, reason in ((drained, "Kill task failed"), (here, faults.DRAINED_HERE)):
        lab.run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"])
    lab.wait_for(lambda: lab.node_states()[here].rstrip("*") == "drained", 90)
    chaos.resume_drained()
    assert lab.node_states()[drained].rstrip("*") == "idle"
    assert lab.node_states()[here].rstrip("*") == "drained"
    assert [what for _, what in chaos.done] == [f'{drained}, drained with "Kill task failed", resumed']
    resume(lab, here)


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
    assert [says(what, "daemon_frozen: not done") for _, what in chaos.done] == [True]


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


class RememberedNetwork:
    """What is cut, by source and target, as `NodeNetwork` is told."""

    def __init__(self, nodes: int) -> None:
        self.count, self.lost = nodes, set[tuple[int, int]]()

    def cut_one_way(self, source: int, target: int) -> None:
        self.lost.add((source, target))

    def mend_one_way(self, source: int, target: int) -> None:
        self.lost.discard((source, target))

    def cut(self, one: int, other: int) -> None:
        self.lost |= {(one, other), (other, one)}

    def mend(self, one: int, other: int) -> None:
        self.lost -= {(one, other), (other, one)}

    def isolate(self, node: int) -> None:
        for other in set(range(DAEMON, self.count)) - {node}:
            self.cut(node, other)

    def rejoin(self, node: int) -> None:
        for other in set(range(DAEMON, self.count)) - {node}:
            self.mend(node, other)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("fault", [node_isolated, nodes_parted])
def test_what_was_cut_of_the_nodes_network_is_whole_afterwards(fault: Any, seed: int) -> None:
    slurm, network = ForgetfulSlurm(), RememberedNetwork(3)
    chaos = Chaos(cast(Scene, SimpleNamespace(lab=slurm, nodes=network)), random.Random(seed))
    slurm.nodes = ("n0", "n1", "n2")
    assert fault(chaos)
    assert network.lost
    assert chaos.unsure, "Slurm may not serve its main queue meanwhile"
    chaos.mend_due(float("inf"))
    assert network.lost == set()


@pytest.mark.parametrize("fault", [node_isolated, nodes_parted])
def test_nothing_is_cut_where_nodes_have_no_network_of_their_own(fault: Any) -> None:
    assert fault(Chaos(cast(Scene, SimpleNamespace(nodes=None)), random.Random(1))) == ""


def test_a_main_job_that_was_requeued_ends_with_its_last_run(tmp_path: Path) -> None:
    queue = MainQueue(cast(Lab, SimpleNamespace(output=tmp_path)), random.Random(1), submitted={7: (1.0, 2)})
    for noted, times in (("", (inf, inf)), ("2.0\n", (2.0, inf)), ("2.0\n30.0\n40.0\n", (2.0, 40.0))):
        (tmp_path / "main-7").write_text(noted)
        assert [(job.begun, job.ended) for job in queue.times()] == [times]


@pytest.mark.parametrize("fault", [journal_full, work_folder_full])
def test_a_full_folder_takes_nothing_until_it_is_mended(fault: Any, small_disk: Path) -> None:
    chaos = Chaos(cast(Scene, SimpleNamespace(disk=small_disk, work_folder=small_disk)), random.Random(1))
    assert "full for" in fault(chaos)
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "state").write_bytes(b"x" * 8192)
    chaos.mend_due(float("inf"))
    (small_disk / "state").write_bytes(b"x" * 8192)


def test_of_a_broken_run_the_journal_and_all_logs_are_kept(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("disk", "slurm", "work", "site")}
    for folder in folders.values():
        folder.mkdir()
    (folders["slurm"] / "slurmctld.log").write_text("error: no room")
    (folders["work"] / "slurm-7_1.out").write_text("epoch 3")
    (folders["work"] / "state.pt").write_bytes(b"x" * 100)
    database, log = folders["disk"] / "malletrain.db", folders["site"] / "malletraind.log"
    log.write_text("ready")
    with SqliteJournal(database) as journal:
        journal.append([Event(1.0, DaemonStarted())])
        scene = SimpleNamespace(
            database=database,
            site=SimpleNamespace(log=log),
            lab=SimpleNamespace(log=folders["slurm"]),
            work_folder=folders["work"],
        )
        kept = tmp_path / "evidence"
        for _ in range(2):
            keep(cast(Scene, scene), kept)
        found = sorted(str(each.relative_to(kept)) for each in kept.rglob("*") if each.is_file())
        assert found == ["malletrain.db", "malletraind.log", "slurm/slurmctld.log", "work/slurm-7_1.out"]
        assert [each.payload for each in read_events(kept / "malletrain.db")] == [DaemonStarted()]
