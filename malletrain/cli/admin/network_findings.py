"""What `malletrain doctor` finds of the network: where the daemon listens, and what is encrypted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

from malletrain.api.roles import user_name
from malletrain.config import Config
from malletrain.slurm.site.site_facts import ERROR, OK, WARNING, Finding, findings

#: Any user may listen on this port and above.
FIRST_UNPRIVILEGED_PORT = 1024

#: Users below this are the system's (login.defs(5), UID_MIN).
FIRST_USER = 1000

GUIDE = "docs/how-to/admin-network.md"


def network_findings(config: Config, proc: Path = Path("/proc/net")) -> Iterator[Finding]:
    """What is found, also when all is well. `proc`: where the kernel lists this machine's sockets."""
    api = config.api
    tls, loopback = urlsplit(api.url).scheme == "https", api.host in ("127.0.0.1", "::1", "localhost")
    yield from findings([
        (tls and loopback, OK, f"callers reach the daemon by TLS alone ({api.url})", ""),
        (tls and not loopback, WARNING,
         f"{api.url} is TLS, but {api.host}:{api.port} also accepts callers without it",
         'set api.host = "127.0.0.1" once no job has the http URL in its script'),
        (not tls, OK, f"callers authenticate by MUNGE, and nothing is encrypted; TLS: {GUIDE}", ""),
        (api.host in ("0.0.0.0", "::", ""), WARNING,  # noqa: S104  it is looked for, not listened on
         f"the API listens on every interface of this machine (api.host = {api.host!r})",
         "set api.host to the address that login and compute nodes reach, or filter the port"),
    ])  # fmt: skip
    yield from _holders_of_port(api.port, proc)


def _holders_of_port(port: int, proc: Path) -> Iterator[Finding]:
    """Who on this machine listens on the daemon's port. Nothing is said where nobody does: on another machine."""
    held = _listeners(port, proc)
    uids = {uid for uid, _, _ in held}
    if not port or not uids:
        return
    # Where both families are, every IPv6 address is every IPv4 address too.
    family = "tcp6" if (proc / "tcp6").exists() else "tcp"
    strange = sorted(uid for uid in uids if uid >= FIRST_USER and uid != os.geteuid())
    names = ", ".join(map(user_name, strange or sorted(uids)))
    every = findings([
        (strange or len(uids) > 1, ERROR,
         f"port {port} of this machine is held by {names}: callers' credentials and reports may go there",
         f"unless malletraind runs as that user alone, find the process (`ss -ltnp sport = :{port}`) and end it"),
        ((0, family, True) in held, OK, f"root holds port {port}: nobody can take the daemon's place", ""),
        (uids == {0}, WARNING,
         f"root holds port {port} on some addresses only: any account of this machine can take it on others",
         f"systemctl edit malletraind.socket: an empty ListenStream=, then ListenStream={port} without an address"),
        (port >= FIRST_UNPRIVILEGED_PORT, WARNING,
         f"any account of this machine can take port {port} while the daemon is away: no socket unit holds it",
         "systemctl enable malletraind.socket && systemctl restart malletraind"),
    ])  # fmt: skip
    yield from islice(every, 1)


def _listeners(port: int, proc: Path) -> set[tuple[int, str, bool]]:
    """The sockets that listen on a port (proc(5), /proc/net/tcp): user id, family, and whether on every address."""
    found = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for words in map(str.split, lines):
            if len(words) > 7 and words[3] == "0A" and words[1].endswith(f":{port:04X}"):
                found.add((int(words[7]), name, not words[1].partition(":")[0].strip("0")))
    return found
