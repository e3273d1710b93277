"""The sockets that the API listens on: systemd's, where its socket unit holds the port, or the daemon's own.

An account of this machine that listens on the same port in the other family, or takes the port while the daemon is
away, is sent what callers send the daemon. So the port is held in both families, or the daemon does not start; and a
socket unit holds it while no daemon runs."""

import errno
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from malletrain.api.roles import Unavailable
from malletrain.domain.errors import InvalidInput

#: The first descriptor that systemd hands over (sd_listen_fds(3)).
FIRST_INHERITED = 3

#: What a kernel without a family says.
_NO_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)

_EVERY_ADDRESS = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}  # noqa: S104 - for guards


@dataclass(frozen=True, slots=True)
class Listening:
    """Sockets to accept from; `guards` are bound and never accept: they keep others from the port. `address`: the one
    that callers must have called, "" for any."""

    sockets: Sequence[socket.socket]
    guards: Sequence[socket.socket] = ()
    address: str = ""
    is_inherited: bool = False

    def close(self) -> None:
        """Give the sockets up; systemd keeps its own. Idempotent."""
        for each in (*self.sockets, *self.guards):
            each.close()


def listen(host: str, port: int, backlog: int, environ: Mapping[str, str] | None = None) -> Listening:
    """The sockets for `host` and `port`; 0 for any port.
    Raises InvalidInput: this user may not listen on that port; Unavailable: the address is taken, or not there yet,
    or the port is in the other family."""
    inherited = _inherited(port, os.environ if environ is None else environ)
    if inherited:
        # The unit listens on every address: `host` says which of them is served.
        every = (*_EVERY_ADDRESS.values(), "")
        address = "" if host in every else socket.getaddrinfo(host, port, _family(host))[0][4][0]
        return Listening(inherited, _guards(inherited, f"malletraind.socket's port {port}"), str(address), True)
    where = f"api.host, api.port {host}:{port}"
    try:
        sock = socket.create_server((host, port), family=_family(host), backlog=backlog)
    except OSError as error:
        why = f"cannot be listened on ({error.strerror}): choose another"
        if isinstance(error, PermissionError):
            raise InvalidInput(where, why) from error
        raise Unavailable(f"{where}: {why}") from error
    return Listening([sock], _guards([sock], where))


def _inherited(port: int, environ: Mapping[str, str]) -> list[socket.socket]:
    """Copies of the sockets on this port that systemd hands over. Those on another port are left alone."""
    count = environ.get("LISTEN_FDS", "")
    if environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
        return []
    found = [socket.socket(fileno=os.dup(FIRST_INHERITED + number)) for number in range(int(count))]
    ours = [each for each in found if each.family in _EVERY_ADDRESS and each.getsockname()[1] == port]
    for each in found:
        if each not in ours:
            each.close()
    return ours


def _family(host: str) -> socket.AddressFamily:
    """A name stands for its IPv4 address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _guards(sockets: Sequence[socket.socket], where: str) -> list[socket.socket]:
    """Guards of the port in the families that no socket accepts from. Closes the sockets where another has it."""
    port = sockets[0].getsockname()[1]
    found: list[socket.socket] = []
    for family, name in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "[::]")):  # noqa: S104 - for guards
        if any(_accepts(each, family) for each in sockets):
            continue
        try:
            guard = _guard(family, port)
        except OSError as error:
            for each in (*sockets, *found):
                each.close()
            raise Unavailable(
                f"{where}: another process has {name}:{port} ({error.strerror}), and callers may reach it instead: "
                f"find it with `ss -ltnp`, end it, or choose another port"
            ) from error
        found += [] if guard is None else [guard]
    return found


def _accepts(sock: socket.socket, family: socket.AddressFamily) -> bool:
    if sock.family == socket.AF_INET6 and family == socket.AF_INET:
        is_every = sock.getsockname()[0] == _EVERY_ADDRESS[socket.AF_INET6]
        return is_every and not sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
    return sock.family == family


def _guard(family: socket.AddressFamily, port: int) -> socket.socket | None:
    """A socket that has the port on every address of a family, so that nobody else may; without SO_REUSEADDR, which
    would let others share what does not listen. None where the kernel has no such family."""
    guard = None
    try:
        guard = socket.socket(family, socket.SOCK_STREAM)
        if family == socket.AF_INET6:
            guard.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        guard.bind((_EVERY_ADDRESS[family], port))
    except OSError as error:
        if guard is not None:
            guard.close()
        if error.errno in _NO_FAMILY:
            return None
        raise
    return guard
