"""A network of nodes on one machine: a network namespace for each, on one bridge with the daemon.

Any one direction between two of them can be cut: what is sent there is dropped in silence, as by a switch that has
lost a port, and neither side is told. A sender's frames then go to a hardware address that nobody has.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from scripts.lab.conf import NodeAddresses
from scripts.lab.errors import LabError

#: Stands for the daemon's side, which is the machine's own namespace, where a node is asked for.
DAEMON = -1

#: A hardware address that nobody has: administered locally (IEEE 802, second bit of the first byte), and made up.
NOWHERE = "02:00:00:00:00:01"

_COMMAND_TIMEOUT_S = 30.0


class NetworkError(LabError):
    """The machine does not let this user make or change a network."""


def why_not_permitted() -> str:
    """Why no network of namespaces can be made here; "" where it can."""
    if shutil.which("ip") is None:
        return "there is no ip(8): install iproute2"
    if os.geteuid() != 0:
        return "network namespaces with a bridge need root"
    try:
        NodeNetwork(1).close()
    except NetworkError as error:
        return f"network namespaces are not permitted here: {error}"
    return ""


class NodeNetwork:
    """`nodes` namespaces, numbered from 0. Close it when the processes in them have ended.

    Attributes:
        daemon_host: the address at which nodes reach what listens on this machine.

    Raises:
        NetworkError: it cannot be made; nothing is left of it.
    """

    def __init__(self, nodes: int) -> None:
        self.count = nodes
        mark = secrets.token_hex(3)
        # An interface's name has at most 15 characters.
        self._bridge, self._names = f"mtb{mark}", [f"mt{mark}n{node}" for node in range(nodes)]
        try:
            network = _free_network()
            self.daemon_host = f"{network}.1"
            self._hosts = [f"{network}.{10 + node}" for node in range(nodes)]
            _run("link", "add", self._bridge, "type", "bridge")
            _run("addr", "add", f"{self.daemon_host}/24", "dev", self._bridge)
            _run("link", "set", self._bridge, "up")
            for name, host in zip(self._names, self._hosts, strict=True):
                _run("netns", "add", name)
                _run("link", "add", name, "type", "veth", "peer", "name", "node0", "netns", name)
                _run("link", "set", name, "master", self._bridge, "up")
                _run("-n", name, "addr", "add", f"{host}/24", "dev", "node0")
                for interface in ("node0", "lo"):
                    _run("-n", name, "link", "set", interface, "up")
            self._hardware = {DAEMON: _hardware_address((), self._bridge)}
            self._hardware |= {
                node: _hardware_address(("-n", name), "node0") for node, name in enumerate(self._names)
            }
        except BaseException:
            self.close()
            raise

    @property
    def addresses(self) -> NodeAddresses:
        """For `LabConfig.addresses`: a lab whose nodes are these. Take it down before this is closed."""
        namespaces = tuple(self.namespace(node) for node in range(self.count))
        return NodeAddresses(self.daemon_host, tuple(self._hosts), namespaces)

    def namespace(self, node: int) -> str:
        """The path of a node's namespace, for setns(2) of a process that is to be on it."""
        return f"/run/netns/{self._names[node]}"

    def command(self, node: int) -> list[str]:
        """What a command line begins with whose process is to be on this node."""
        return ["ip", "netns", "exec", self._names[node]]

    def host(self, node: int) -> str:
        """The address of a node, or of the daemon's side."""
        return self.daemon_host if node == DAEMON else self._hosts[node]

    def cut_one_way(self, source: int, target: int) -> None:
        """Drop what `source` sends to `target` from now on; the other direction is as before."""
        self._send_to(source, target, NOWHERE)

    def mend_one_way(self, source: int, target: int) -> None:
        """Deliver it again."""
        self._send_to(source, target, self._hardware[target])

    def cut(self, one: int, other: int) -> None:
        """Drop what either of two sends to the other."""
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def mend(self, one: int, other: int) -> None:
        """Deliver it again."""
        self.mend_one_way(one, other)
        self.mend_one_way(other, one)

    def isolate(self, node: int) -> None:
        """Cut a node off from the daemon and from every other node."""
        for other in self._others(node):
            self.cut(node, other)

    def rejoin(self, node: int) -> None:
        """Undo `isolate`."""
        for other in self._others(node):
            self.mend(node, other)

    def close(self) -> None:
        """Remove all of it. Idempotent."""
        for name in self._names:
            _try("netns", "del", name)
            _try("link", "del", name)  # goes with its namespace, unless a process is still in there
        _try("link", "del", self._bridge)

    def _others(self, node: int) -> Sequence[int]:
        return [each for each in range(DAEMON, self.count) if each != node]

    def _send_to(self, source: int, target: int, hardware: str) -> None:
        inside, interface = ((), self._bridge) if source == DAEMON else (("-n", self._names[source]), "node0")
        _run(*inside, "neigh", "replace", self.host(target), "lladdr", hardware, "dev", interface, "nud", "permanent")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _free_network() -> str:
    """Three bytes of a network that no interface of this machine has."""
    taken = set(re.findall(r"inet (10\.231\.\d+)\.", _run("-o", "-4", "addr", "show")))
    free = [name for name in (f"10.231.{number}" for number in range(256)) if name not in taken]
    if not free:
        raise NetworkError("all networks of 10.231.0.0/16 are in use: remove bridges that a run has left (ip link)")
    return secrets.choice(free)


def _hardware_address(inside: Sequence[str], interface: str) -> str:
    found = re.search(r"link/ether (\S+)", _run(*inside, "-o", "link", "show", interface))
    if found is None:
        raise NetworkError(f"{interface} has no hardware address")
    return found[1]


def _run(*arguments: str) -> str:
    try:
        made = subprocess.run(
            ["ip", *arguments], capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NetworkError(f"ip {' '.join(arguments)}: {error}") from error
    if made.returncode:
        raise NetworkError(f"ip {' '.join(arguments)}: {made.stderr.strip() or made.returncode}")
    return made.stdout


def _try(*arguments: str) -> None:
    """As `_run`, for what may be gone already."""
    try:
        _run(*arguments)
    except NetworkError:
        pass
