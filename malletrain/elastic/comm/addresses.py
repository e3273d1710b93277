"""Network addresses of workers. Standard library only: restart mode uses it without torch."""

from __future__ import annotations

import socket


def join_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """The inverse of `join_address`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def free_port(host: str = "") -> int:
    """A TCP port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def own_host(daemon_host: str | None, override: str | None, family: int = socket.AF_UNSPEC) -> str:
    """The address at which peers reach this machine: `override` if given, else that of the interface that routes to
    the daemon, else that of the host name. `family` restricts it to IPv4 or IPv6."""
    if override:
        return override
    if daemon_host:
        for kind, _, _, _, where in socket.getaddrinfo(daemon_host, 9, family, socket.SOCK_DGRAM):
            with socket.socket(kind, socket.SOCK_DGRAM) as probe:
                probe.connect(where)
                return str(probe.getsockname()[0])
    return socket.gethostbyname(socket.gethostname())
