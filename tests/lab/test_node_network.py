"""The network of namespaces in which tests cut nodes off: what is cut is dropped in silence, in one direction."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.lab import Lab, LabConfig
from scripts.lab.node_network import DAEMON, NodeNetwork, why_not_permitted
from tests.node_network import network_of
from tests.slurm_fixtures import LabFactory

#: Sends to argument 1, port 9, what argument 2 says.
SEND = "import socket, sys; socket.socket(type=socket.SOCK_DGRAM).sendto(sys.argv[2].encode(), (sys.argv[1], 9000))"

#: Prints what comes to port 9000, until `end`.
LISTEN = """
import socket
heard = socket.socket(type=socket.SOCK_DGRAM)
heard.bind(("0.0.0.0", 9000))
print("listening", flush=True)
while (word := heard.recv(100).decode()) != "end":
    print(word, flush=True)
"""


@pytest.fixture
def network() -> Iterator[NodeNetwork]:
    yield from network_of(2)


def test_each_direction_is_cut_alone_and_in_silence(network: NodeNetwork) -> None:
    listener = subprocess.Popen(
        [*network.command(1), sys.executable, "-c", LISTEN], stdout=subprocess.PIPE, text=True
    )
    assert listener.stdout is not None
    assert listener.stdout.readline() == "listening\n"

    def send(source: int, word: str) -> None:
        inside = [] if source == DAEMON else network.command(source)
        sent = subprocess.run([*inside, sys.executable, "-c", SEND, network.host(1), word], check=False)
        assert sent.returncode == 0, "a sender is not told that what it sends is dropped"

    send(0, "whole")
    network.cut_one_way(0, 1)
    send(0, "lost")
    send(DAEMON, "of the daemon")
    network.cut_one_way(1, 0)
    network.mend_one_way(0, 1)
    send(0, "the other way")
    network.isolate(1)
    send(DAEMON, "lost")
    network.rejoin(1)
    send(DAEMON, "end")
    said, _ = listener.communicate(timeout=60)
    assert said.splitlines() == ["whole", "of the daemon", "the other way"]


def test_a_connection_outlives_a_cut_as_through_a_switch(network: NodeNetwork) -> None:
    serve = f"""
import socket
listener = socket.create_server(("{network.host(0)}", 9000))
print("listening", flush=True)
peer, _ = listener.accept()
while said := peer.recv(100):
    peer.sendall(said)
"""
    echo = subprocess.Popen([*network.command(0), sys.executable, "-c", serve], stdout=subprocess.PIPE, text=True)
    assert echo.stdout is not None
    assert echo.stdout.readline() == "listening\n"
    with socket.create_connection((network.host(0), 9000), timeout=60) as connection:
        connection.sendall(b"one")
        assert connection.recv(100) == b"one"
        network.cut_one_way(0, DAEMON)
        connection.sendall(b"two")
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(100)
        network.mend_one_way(0, DAEMON)
        connection.settimeout(60)
        assert connection.recv(100) == b"two"
    assert echo.wait(60) == 0
    echo.stdout.close()


def test_nothing_is_left_of_it() -> None:
    if why := why_not_permitted():
        pytest.skip(why)
    with NodeNetwork(2) as made:
        names = [made.namespace(0).rpartition("/")[2], made._bridge]
    left = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    left += subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert not [name for name in names if name in left]


@pytest.mark.slurm
def test_slurm_loses_a_node_that_is_cut_off_and_has_it_again(
    network: NodeNetwork, lab_factory: LabFactory, lab_directory: Path
) -> None:
    lab_factory()  # skips where there is no Slurm
    config = LabConfig(nodes=2, addresses=network.addresses, settings=(("SlurmdTimeout", "3"),))
    with Lab.up(lab_directory, config) as lab:
        job = lab.submit("srun --ntasks=2 ip -4 -brief address show node0", "--nodes=2")
        lab.wait_for_state(job, "COMPLETED")
        said = (lab.output / f"{job}.txt").read_text()
        assert {host for host in network.addresses.nodes if f" {host}/24" in said} == set(network.addresses.nodes)
        network.isolate(1)
        lab.wait_for(lambda: lab.node_states()["n001"].startswith("down"), 90, "a node that is down")
        lab.wait_for(lambda: lab.node_states()["n000"] == "idle", 60, "the other one, idle")
        network.rejoin(1)
        lab.run(["scontrol", "update", "NodeName=n001", "State=RESUME"])
        lab.wait_for(lambda: set(lab.node_states().values()) == {"idle"}, 60, "both nodes idle")
