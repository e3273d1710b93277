"""Mallory reaches the ports of a node and has no secret: what is behind them stays as it is, and with its owner."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from malletrain.elastic.comm import authentication, gloo_group
from malletrain.elastic.comm.authentication import Meeting, accept, connect, derived_secret
from malletrain.elastic.comm.gloo_group import make_group
from malletrain.elastic.comm.group import Group
from malletrain.elastic.comm.peer_store import MAX_STRANGERS, PeerStore, StoreServer
from malletrain.elastic.errors import ElasticError, PeerLost
from malletrain.wire.messages import Plan, Seat
from scripts.lab.ports import free_port
from tests.elastic.coordinator import JOB, Coordinator, Pod, running
from tests.elastic.digits import SCRIPT, diary
from tests.elastic.stores import meeting, serve
from tests.messages import naming
from tests.waiting import wait_until
from tests.world import data_of

GUESSES = ("", "0" * 64, "secret-of-somebody-else")


def listening(pid: int) -> list[tuple[str, int]]:
    return [
        (each.laddr.ip, each.laddr.port)
        for each in psutil.Process(pid).net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    ]


def steps(directory: Path) -> int:
    return max((line["step"] for line in diary(directory) if "step" in line), default=0)


def says(port: int, content: bytes) -> bytes:
    """What a port answers to bytes, within a second."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as connection:
        connection.settimeout(1.0)
        connection.sendall(content)
        return connection.recv(4096)
    return b""


#: In processes of their own, which an alarm ends: a client of torch's store waits for ever at gloo's port.
TRY_TORCH_STORES = """
import os, signal, sys
from datetime import timedelta
import torch.distributed as dist
children = {}
for port in map(int, sys.argv[1:]):
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        try:
            dist.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=1), wait_for_workers=False)
        except RuntimeError:
            os._exit(1)
        os._exit(0)
    children[child] = port
for _ in list(children):
    child, status = os.wait()
    if status == 0:
        print(children[child])
"""


def torch_stores(ports: list[int]) -> list[int]:
    """The ports at which a TCPStore of torch answers."""
    words = [sys.executable, "-c", TRY_TORCH_STORES, *map(str, ports)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    return [int(line) for line in done.stdout.splitlines()]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[Coordinator, Pod, Path]]:
    """A job of two real workers that train, slowly until `go`: for longer than any test attacks them."""
    options = ["--epochs", "12", "--step-seconds", "0.2", "--slow-until", str(tmp_path / "go")]
    with running(tmp_path) as (daemon, pod):
        for task in (0, 1):
            pod.spawn(daemon.url, task, [SCRIPT, *options])
        daemon.wait_world([0, 1])
        wait_until(lambda: steps(tmp_path) > 2, 60, "both train")
        yield daemon, pod, tmp_path


def is_refused(meeting: Meeting) -> bool:
    try:
        PeerStore.at(meeting, 1.0)
    except PeerLost:
        return True
    return False


def test_nothing_is_had_from_the_ports_of_a_live_job(live: tuple[Coordinator, Pod, Path]) -> None:
    daemon, pod, directory = live
    world = daemon.membership.world(JOB)
    assert world is not None
    ports = [each for process in pod.processes.values() for each in listening(process.pid)]
    assert {host for host, _ in ports} == {"127.0.0.1"}, "they listen on the address of the job alone"
    assert len(ports) >= 3
    began = steps(directory)
    assert torch_stores([port for _, port in ports]) == []
    words = (b"", b"\0" * 60, os.urandom(60), struct.pack("<q", 1), b"GET / HTTP/1.0\r\n\r\n")
    meetings = [
        Meeting(seat.address, generation, guess)
        for seat in world.members
        for guess in GUESSES
        for generation in (world.generation, 0, world.generation + 1)
    ]
    # Each waits out a time limit; of as many as MAX_STRANGERS at once some would be turned away for that.
    with ThreadPoolExecutor(MAX_STRANGERS // 4) as strangers:
        answers = strangers.map(says, [port for _, port in ports for _ in words], [*words] * len(ports))
        assert set(answers) == {b""}, "strangers get no answer"
        assert all(strangers.map(is_refused, meetings))
    wait_until(lambda: steps(directory) > began, 90, "training goes on")
    assert not daemon.seen("worker_lost")

    (directory / "go").touch()
    assert [pod.wait(task) for task in (0, 1)] == [0, 0]


def test_a_stranger_is_not_given_the_state(live: tuple[Coordinator, Pod, Path]) -> None:
    """The attack that stole a model: rank 1 of a world to come, at the address that the seats name."""
    daemon, _, directory = live
    world = daemon.membership.world(JOB)
    assert world is not None
    for guess in GUESSES:
        with pytest.raises(PeerLost):
            make_group(Meeting(world.store, world.generation + 1, guess), 1, 2, "127.0.0.1", timedelta(seconds=2))
    began = steps(directory)
    wait_until(lambda: steps(directory) > began, 90, "training goes on")


def test_the_secret_is_nowhere_in_the_clear(live: tuple[Coordinator, Pod, Path]) -> None:
    daemon, pod, directory = live
    world = daemon.membership.world(JOB)
    assert world is not None
    assert len(world.secret) == 64
    for process in pod.processes.values():
        for name in ("cmdline", "environ"):
            assert world.secret.encode() not in Path(f"/proc/{process.pid}/{name}").read_bytes()
    assert world.secret not in pod.logs()
    assert world.secret not in json.dumps([dict(data_of(event)) for event in daemon.events], default=str)
    assert world.secret not in repr(world)
    assert not [
        path for path in directory.rglob("*") if path.is_file() and world.secret.encode() in path.read_bytes()
    ]


def test_who_has_no_seat_is_not_told_the_secret() -> None:
    plan = Plan(5, (Seat("7_0.0", "h:1"), Seat("7_1.0", "h:2")), "h:1", secret="s")
    assert plan.as_sent_to("7_1.0") is plan
    assert plan.as_sent_to("7_2.0").secret == ""


def test_workers_do_not_connect_without_a_secret(tmp_path: Path) -> None:
    """A daemon of an older release gives none."""
    with running(tmp_path) as (daemon, pod):
        daemon.membership._shared.make_secret = lambda: ""
        for task in (0, 1):
            pod.spawn(daemon.url, task, [SCRIPT, "--epochs", "20"])
        assert 1 in [pod.wait(task) for task in (0, 1)]
        assert "no secret" in pod.logs()


# --- The pairs of a gloo group ------------------------------------------------------------------------------------


class Thief:
    """Takes pairs before the members whose pairs they are, and asks for all that they have to say, as gloo does."""

    PAIRS = 3
    HEAD = struct.Struct("<6Q")  #: its length, an operation, slot, offset, length, offset at the receiver
    HAS_TO_SEND, IS_READY = 2, 3

    def __init__(self) -> None:
        self.taken: list[socket.socket] = []

    def take(self, ports: set[int]) -> None:
        for port in ports:
            for number in range(self.PAIRS):
                connection = socket.create_connection(("127.0.0.1", port), 1.0)
                connection.sendall(struct.pack("<q", number))
                self.taken.append(connection)

    def loot(self) -> bytes:
        got = b""
        for connection in self.taken:
            connection.settimeout(0.2)
            with contextlib.suppress(OSError):
                while content := connection.recv(1 << 20):
                    got += content
                    if len(content) == self.HEAD.size:
                        size, operation, *rest = self.HEAD.unpack(content)
                        if operation == self.HAS_TO_SEND:
                            connection.sendall(self.HEAD.pack(size, self.IS_READY, *rest))
        return got

    def close(self) -> None:
        for connection in self.taken:
            connection.close()


def with_a_thief(first: int) -> tuple[list[Group | str], bytes]:
    """What two members get of a group, of which `first` comes first and Mallory second; and Mallory's loot."""
    server, thief = serve(), Thief()
    results: list[Group | str] = ["", ""]
    model = torch.frombuffer(bytearray(b"model" * 100), dtype=torch.uint8)
    sent: list[Any] = []
    before = {port for _, port in listening(os.getpid())}

    def member(rank: int) -> None:
        try:
            group = make_group(meeting(server.address), rank, 2, "127.0.0.1", timedelta(seconds=5))
            results[rank] = group
        except PeerLost as lost:
            results[rank] = str(lost)

    def its() -> set[int]:
        return {port for _, port in listening(os.getpid())} - before

    members = [threading.Thread(target=member, args=(rank,)) for rank in (first, 1 - first)]
    try:
        members[0].start()
        wait_until(lambda: len(its()) == 1, 10, "the first member listens")
        thief.take(its())
        members[1].start()
        for thread in members:
            thread.join(30)
        for rank, group in enumerate(results):
            if not isinstance(group, str):
                sent.append(group._group.send([model], 1 - rank, 1))  # type: ignore[attr-defined]  # without waiting
        return results, thief.loot()
    finally:
        for group in results:
            if not isinstance(group, str):
                group.abandon()
        thief.close()
        server.close()


def test_a_stolen_pair_is_found_out_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gloo gives a pair to whoever connects first. Which member listens for the other depends on their ports."""
    monkeypatch.setattr(gloo_group, "ANSWER_TIMEOUT_S", 1.0)
    found_out = 0
    for attempt in range(12):
        results, loot = with_a_thief(attempt % 2)
        assert b"model" not in loot
        if any(isinstance(each, str) for each in results):
            assert all(isinstance(each, str) for each in results), results
            assert any("proven" in str(each) for each in results), results
            found_out += 1
        if found_out == 2:
            return
    raise AssertionError("the thief has never come first")


# --- The proof itself ---------------------------------------------------------------------------------------------


def ends(secret: str, other: str) -> tuple[object, object]:
    """What both ends of a connection make of it, if they have these secrets."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    found: list[object] = []

    def answer() -> None:
        connection, _ = listener.accept()
        try:
            found.append(accept(connection, address, lambda generation: secret if generation == 3 else ""))
        except PeerLost as lost:
            connection.close()
            found.append(lost)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        mine: object = connect(Meeting(address, 3, other), 5.0)
    except PeerLost as lost:
        mine = lost
    thread.join(10)
    listener.close()
    return found[0], mine


def test_both_ends_must_have_the_secret() -> None:
    for secret, other in (("a", "b"), ("", "b"), ("a", "")):
        assert all(isinstance(end, PeerLost) for end in ends(secret, other)), (secret, other)


def test_frames_that_were_altered_or_repeated_are_refused() -> None:
    server, client = ends("a", "a")
    assert isinstance(server, authentication.Channel)
    assert isinstance(client, authentication.Channel)
    client.send(b"one")
    assert server.receive(5.0) == b"one"
    for last in (b"e", b"x"):  # repeated, altered
        server, client = ends("a", "a")
        assert isinstance(server, authentication.Channel)
        assert isinstance(client, authentication.Channel)
        client.send(b"one")
        frame = server._connection.recv(1000)
        client._connection.sendall((frame[:-1] + last) * 2)
        with pytest.raises(PeerLost, match="altered"):
            for _ in range(2):
                server.receive(5.0)
        server.close()
        client.close()


def test_strangers_that_say_nothing_keep_nobody_out() -> None:
    server = serve()
    host, port = server.address.split(":")
    idle = [socket.create_connection((host, int(port)), 5.0) for _ in range(3 * MAX_STRANGERS)]
    peer_store = PeerStore.at(meeting(server.address), 5.0)
    peer_store.set("key", "value")
    assert server.look("key") == "value"
    assert len(server._strangers) <= MAX_STRANGERS
    for connection in idle:
        connection.close()
    peer_store.close()
    server.close()


def test_members_of_a_generation_that_is_not_heard_of_yet_are_waited_for() -> None:
    server = StoreServer("127.0.0.1")
    found: list[str | None] = []

    def come() -> None:
        peer_store = PeerStore.at(meeting(server.address, 2), 5.0)
        found.append(peer_store.look("key"))
        peer_store.close()

    server.set("key", "value")
    thread = threading.Thread(target=come)
    thread.start()
    wait_until(lambda: bool(server._strangers), 90, "it has come")
    server.trust(meeting(server.address, 2))
    thread.join(10)
    assert found == ["value"]
    server.close()


def test_a_member_that_has_left_does_not_know_the_next_secret() -> None:
    server = serve(1)
    server.trust(Meeting(server.address, 2, "another"))
    with pytest.raises(PeerLost, match=naming("secret")):
        PeerStore.at(meeting(server.address, 2), 1.0)
    assert derived_secret("a", "generation", 2) != derived_secret("a", "generation", 3)
    server.close()


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(ElasticError, match=naming("MALLETRAIN_ADDRESS")):
        StoreServer("192.0.2.1")
    assert free_port()
