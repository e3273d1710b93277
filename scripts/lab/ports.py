"""Ports for a lab: found free, and held for it as long as it lives.

A port that was only tested can be taken before the daemon binds it. So labs first agree among themselves: the range
is cut into blocks, and a lab holds its blocks by sockets bound to abstract names (unix(7)), which the kernel gives to
one process only, which leave no file, and which vanish with their holder. Other programs are noticed by binding every
port.
"""

import hashlib
import itertools
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FIRST, LAST = 10240, 32767  # above the registered services most used, below Linux's ephemeral ports
BLOCK = 64


@dataclass(frozen=True)
class Reservation:
    """Ports that are the lab's while one process keeps the `holders` open."""

    ports: tuple[int, ...]
    holders: tuple[socket.socket, ...]

    @property
    def descriptors(self) -> tuple[int, ...]:
        return tuple(h.fileno() for h in self.holders)

    def close(self) -> None:
        """Lets go of the reservation in this process; one that inherited the descriptors still holds it."""
        for holder in self.holders:
            holder.close()


def reserve(count: int, seed: str) -> Reservation:
    """`count` free ports in a row; the search begins at a place derived from `seed`. OSError if there are none."""
    total = (LAST + 1 - FIRST) // BLOCK
    needed = -(-count // BLOCK)
    start = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big")
    for attempt in range(total):
        first = (start + attempt) % total
        if first + needed > total:
            continue
        ports = tuple(range(FIRST + first * BLOCK, FIRST + first * BLOCK + count))
        holders = _hold(range(first, first + needed))
        if holders is None:
            continue
        reservation = Reservation(ports, holders)
        if all(map(free, ports)):
            return reservation
        reservation.close()
    raise OSError(f"no {count} free ports in a row between {FIRST} and {LAST}")


def free_port() -> int:
    """A free port that is this process's for as long as it lives, and is not given twice. No client socket gets it by
    chance, as it could get one of the kernel's ephemeral ports: so a daemon that stops may listen on it again."""
    with _keeping:
        return next(p for p in _kept.setdefault(os.getpid(), _ports_of(os.getpid())) if free(p))


def free(port: int) -> bool:
    """Whether a daemon could listen on `port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Slurm does: TIME_WAIT is no hindrance
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def listening(port: int) -> bool:
    """Whether something listens on `port`, read from the kernel: a trial connection would be noise in Slurm's log."""
    suffix, listen = f":{port:04X}", "0A"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with Path(table).open(encoding="ascii") as lines:
                if any((f := line.split())[1].endswith(suffix) and f[3] == listen for line in lines):
                    return True
        except FileNotFoundError:  # a kernel without IPv6
            continue
    return False


_keeping = threading.Lock()
_kept: dict[int, Iterator[int]] = {}  # by process: a fork must not give what its parent gives
_held: list[Reservation] = []


def _ports_of(process: int) -> Iterator[int]:
    for number in itertools.count():
        _held.append(reserve(BLOCK, f"{process}.{number}"))
        yield from _held[-1].ports


def _hold(blocks: range) -> tuple[socket.socket, ...] | None:
    held: list[socket.socket] = []
    for block in blocks:
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        held.append(holder)
        try:
            holder.bind(f"\0malletrain-slurm-lab/{FIRST + block * BLOCK}")
        except OSError:
            for h in held:
                h.close()
            return None
    return tuple(held)
