"""Connections between workers on which both ends have proven that they are members of the same generation.

The daemon gives the members of a generation a random secret. A connection begins with an HMAC challenge in both
directions; afterwards each frame carries a number and an HMAC under keys of this connection alone, so that what is
read is what a member sent, in order. Nothing is encrypted. Standard library only.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from malletrain.elastic.comm.addresses import split_address
from malletrain.elastic.errors import PeerLost
from malletrain.wire.messages import Plan

#: How long a connection may take to prove itself, in seconds.
PROOF_TIMEOUT_S = 5.0

#: Longest frame of a connection that has proven itself.
MAX_FRAME_BYTES = 64 * 1024 * 1024

NONCE_BYTES = MAC_BYTES = 32

#: Both ends must speak the same release of this protocol.
_GREETING = struct.Struct(f"!8sQ{NONCE_BYTES}s")
_PROTOCOL = b"mtrain-1"
_LENGTH = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the members of a generation meet, and what proves that they are members."""

    address: str  #: `host:port` of a member's store
    generation: int
    secret: str = field(repr=False)  #: known to its members alone

    @staticmethod
    def of(plan: Plan) -> Meeting:
        """Where and as what the members of a plan meet."""
        return Meeting(plan.store, plan.generation, plan.secret)


def mac(secret: str | bytes, *parts: bytes | str | int) -> bytes:
    """The HMAC-SHA256 of several parts, each with its length."""
    encoded = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    key = secret if isinstance(secret, bytes) else secret.encode()
    return hmac.digest(key, b"".join(_LENGTH.pack(len(part)) + part for part in encoded), "sha256")


def derived_secret(secret: str, *purpose: str | int) -> str:
    """The secret that the holders of `secret` have for something else without a word; "" of none."""
    return mac(secret, "derived", *purpose).hex() if secret else ""


class NotKnownYet(PeerLost):
    """The other end closed the connection before it proved itself: it may not have heard of the generation yet."""


class Channel:
    """A connection whose ends have proven themselves. `sends`, `receives`: the key of each direction."""

    def __init__(self, connection: socket.socket, sends: bytes, receives: bytes) -> None:
        self._connection = connection
        self._sends, self._receives = sends, receives
        self._sent = self._received = 0

    def send(self, payload: bytes) -> None:
        """Send a frame. Raises `PeerLost`."""
        frame = mac(self._sends, self._sent, payload)
        self._sent += 1
        try:
            self._connection.sendall(_LENGTH.pack(len(payload)) + frame + payload)
        except OSError as error:
            raise PeerLost(str(error)) from error

    def receive(self, seconds: float | None) -> bytes:
        """The next frame. Raises `PeerLost`, also when none comes within `seconds`."""
        end = None if seconds is None else time.monotonic() + seconds
        head = _read(self._connection, _LENGTH.size + MAC_BYTES, end)
        (length,) = _LENGTH.unpack_from(head)
        if length > MAX_FRAME_BYTES:
            raise PeerLost(f"a frame of {length} bytes")
        payload = _read(self._connection, length, end)
        if not hmac.compare_digest(head[_LENGTH.size :], mac(self._receives, self._received, payload)):
            raise PeerLost("a frame was altered on its way")
        self._received += 1
        return payload

    def close(self) -> None:
        """Close the connection. A `receive` of another thread ends."""
        close_socket(self._connection)


def connect(meeting: Meeting, seconds: float) -> Channel:
    """Connect to the store of a meeting, prove membership, and have it proven. Raises `NotKnownYet`: the store closed
    the connection first; `PeerLost`: nothing answers within `seconds`, or not with the secret."""
    end = time.monotonic() + seconds
    try:
        connection = socket.create_connection(split_address(meeting.address), seconds)
    except OSError as error:
        raise PeerLost(f"{meeting.address}: {error}") from error
    try:
        return _prove(connection, meeting, end)
    except BaseException:
        connection.close()
        raise


def _prove(connection: socket.socket, meeting: Meeting, end: float) -> Channel:
    greeting = _GREETING.pack(_PROTOCOL, meeting.generation, os.urandom(NONCE_BYTES))
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(greeting)
        answer = _read(connection, NONCE_BYTES + MAC_BYTES, end, NotKnownYet)
        said = (meeting.address, greeting, answer[:NONCE_BYTES])
        if not hmac.compare_digest(answer[NONCE_BYTES:], mac(meeting.secret, "store", *said)):
            raise PeerLost(f"{meeting.address}: what listens there has not the secret of this generation")
        connection.sendall(mac(meeting.secret, "member", *said))
    except OSError as error:
        raise PeerLost(f"{meeting.address}: {error}") from error
    return Channel(connection, mac(meeting.secret, "to store", *said), mac(meeting.secret, "from store", *said))


def accept(connection: socket.socket, address: str, secret_of: Callable[[int], str]) -> Channel:
    """The other end of `connect`; reads a few bytes only before membership is proven. `address`: at which the peer
    has connected. `secret_of`: the secret of a generation, "" where it is unknown; may wait. Raises `PeerLost`: the
    peer has not proven that it is a member."""
    end = time.monotonic() + PROOF_TIMEOUT_S
    greeting = _read(connection, _GREETING.size, end)
    protocol, generation, _ = _GREETING.unpack(greeting)
    secret = secret_of(generation) if protocol == _PROTOCOL else ""
    if not secret:
        raise PeerLost(f"a peer asks for generation {generation}, which is not known here")
    said = (address, greeting, os.urandom(NONCE_BYTES))
    try:
        connection.sendall(said[-1] + mac(secret, "store", *said))
    except OSError as error:
        raise PeerLost(str(error)) from error
    proof = _read(connection, MAC_BYTES, end)
    if not hmac.compare_digest(proof, mac(secret, "member", *said)):
        raise PeerLost(f"a stranger has asked to be a member of generation {generation}")
    return Channel(connection, mac(secret, "from store", *said), mac(secret, "to store", *said))


def close_socket(connection: socket.socket) -> None:
    """Close a connection, also under a thread that reads from it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is not connected any more
    connection.close()


def _read(connection: socket.socket, size: int, end: float | None, closed: type[PeerLost] = PeerLost) -> bytes:
    content = bytearray()
    try:
        while len(content) < size:
            if end is not None and time.monotonic() >= end:
                raise PeerLost("a peer does not answer in time")
            connection.settimeout(None if end is None else max(0.001, end - time.monotonic()))
            got = connection.recv(min(size - len(content), 1 << 20))
            if not got:
                raise closed("a peer has closed the connection")
            content += got
    except OSError as error:
        kind = closed if isinstance(error, ConnectionError) else PeerLost
        raise kind(str(error) or "a peer does not answer in time") from error
    return bytes(content)
