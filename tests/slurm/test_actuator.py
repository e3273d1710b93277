"""The actuator's socket: who is heard, and what becomes of those who stall, babble or vanish. No Slurm is needed."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from malletrain.domain.decision import CancelTasks, CutLimit, RecyclePilot, StartPilot
from malletrain.domain.errors import ClusterUnavailable, InvalidInput
from malletrain.slurm.actuator import server as module
from malletrain.slurm.actuator.bounds import ActuatorBounds
from malletrain.slurm.actuator.client import ActuatorClient
from malletrain.slurm.actuator.server import Actuator, ActuatorServer, AuditLog
from malletrain.slurm.cluster import SlurmCluster
from malletrain.slurm.command import Commands
from malletrain.slurm.site.site_facts import Harvest

HARVEST = Harvest("harvest")
Serve = Callable[..., Path]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """An actuator whose Slurm is the given shell text; its socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path is short
        made: list[tuple[ActuatorServer, threading.Thread]] = []

        def begin(slurm: str = "exit 1", allowed: frozenset[int] | None = None, command_s: float = 30.0) -> Path:
            for name in ("scontrol", "squeue", "scancel"):
                (tmp_path / name).write_text(f"#!/bin/sh\n{slurm}\n")
                (tmp_path / name).chmod(0o755)
            hands = Actuator(
                Commands({"PATH": f"{tmp_path}:/usr/bin:/bin"}, command_s),
                HARVEST,
                ActuatorBounds(3600.0),
                AuditLog(tmp_path / "acts", time.time),
            )
            path = Path(folder) / "socket"
            server = ActuatorServer(
                path, hands, frozenset({os.geteuid()}) if allowed is None else allowed, lambda: None
            )
            thread = threading.Thread(target=server.run)
            thread.start()
            made.append((server, thread))
            return path

        yield begin
        for server, thread in made:
            server.stop()
            thread.join()
            server.close()


def cluster(path: Path, patience_s: float = 60.0) -> ActuatorClient:
    looks = SlurmCluster(Commands({"PATH": "/nowhere"}, 1.0), HARVEST, {1: 1001}.get)
    return ActuatorClient(looks, path, {1: 1001}.get, patience_s)


RECYCLE = RecyclePilot(1, "7_0", "n0", "")


def test_the_socket_is_for_its_group_alone(serve: Serve) -> None:
    assert stat.S_IMODE(serve().stat().st_mode) == 0o660


def test_another_user_is_not_heard(serve: Serve) -> None:
    path = serve(slurm="touch $0.ran", allowed=frozenset({os.geteuid() + 12345}))
    done = cluster(path).recycle([RECYCLE])
    assert [(o.done, "requests" in o.detail) for o in done] == [(False, True)]


def test_slurm_that_does_not_answer_the_actuator_is_unavailable(serve: Serve) -> None:
    with pytest.raises(ClusterUnavailable, match="Unable to contact"):
        cluster(serve(slurm="echo 'Unable to contact slurm controller' >&2; exit 1")).recycle([RECYCLE])


def test_without_an_actuator_the_message_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnavailable, match="is malletrain-actuator running"):
        cluster(tmp_path / "none").cut(CutLimit(1, "7_0", "n0", 1e9, ""))


def test_a_job_whose_owner_is_not_known_is_not_asked_for(serve: Serve) -> None:
    start = StartPilot(2, "7_0", "n0", 600.0, "")
    assert [o.done for o in cluster(serve()).start([start])] == [False]
    assert cluster(serve()).cancel(CancelTasks(1, (), "")).done


def test_a_limit_above_the_sites_is_refused_by_the_actuator_itself(serve: Serve) -> None:
    done = cluster(serve()).start([StartPilot(1, "7_0", "n0", 9999.0, "")])
    assert not done[0].done
    assert "limit_s" in done[0].detail


def test_who_stalls_babbles_or_vanishes_holds_nobody_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST_TIMEOUT_S", 2.0)
    path = serve(slurm="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    open_ones = []
    for said in (b"", b'{"verb": "start"', b"\xff\xfe\n", b"[" * 100_000 + b"\n"):
        line = socket.socket(socket.AF_UNIX)
        line.connect(str(path))
        with suppress(OSError):  # given up before all was sent
            line.sendall(said)
        open_ones.append(line)
    vanished = socket.socket(socket.AF_UNIX)
    vanished.connect(str(path))
    with suppress(OSError):
        vanished.sendall(b'{"verb"')
    vanished.close()
    done = cluster(path).recycle([RECYCLE])
    assert [o.done for o in done] == [True], "it is gone, says Slurm"
    for line in open_ones:
        line.close()


def test_the_end_of_the_daemon_waits_for_no_actuator(serve: Serve) -> None:
    apart = cluster(serve(slurm="sleep 300", command_s=3.0), patience_s=300.0)
    told: list[str] = []

    def ask() -> None:
        try:
            apart.recycle([RECYCLE])
        except ClusterUnavailable as error:
            told.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    apart.end_within(0.3)
    asking.join(60)
    assert len(told) == 1


def test_a_place_where_no_socket_can_be_is_told(tmp_path: Path) -> None:
    hands = Actuator(Commands({}, 1.0), HARVEST, ActuatorBounds(3600.0), AuditLog(tmp_path / "acts", time.time))
    with pytest.raises(InvalidInput, match=r"actuator\.socket"):
        ActuatorServer(tmp_path / "no" / "such" / "folder", hands, frozenset(), time.time)
