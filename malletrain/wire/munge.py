"""MUNGE credentials: who is calling, as the cluster's own authentication says it (munge(3), munge_enum(3)).

Every Slurm site runs munged on every node with one shared key. A credential carries the uid and gid of the process
that made it, sealed by the local munged; any other munged with the key opens it, once: a second decoding on the same
machine is refused as a replay. The credential of one purpose must not serve another, nor another daemon, so the
payload names both (`statement`), and whoever decodes compares (`Credential.check`).

libmunge is called directly: the programs `munge` and `unmunge` and Slurm's plug-in need it, too.
"""

import ctypes
import os
import pwd
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from malletrain.wire.errors import WireError

#: A credential that says only who and what for is about 250 bytes; what is much longer is not one of ours.
MAX_CREDENTIAL_BYTES = 8192
MAX_PAYLOAD_BYTES = 4096


class MungeError(WireError):
    """MUNGE refused, or cannot be asked."""


class MungeUnavailable(MungeError):
    """munged is not installed, not running, or its socket cannot be reached."""


class CredentialRejected(MungeError):
    """The credential proves nothing: it is none of this cluster's key, damaged, used before, from another time or
    made for another purpose. Make a new one."""


@dataclass(frozen=True, slots=True)
class Credential:
    """What munged proves: the process that made the credential at `encoded_at` (Unix seconds) ran as `uid`,
    `gid` and put `payload` into it."""

    uid: int
    gid: int
    payload: bytes
    encoded_at: float

    def check(self, purpose: str, *audiences: str) -> None:
        """Make sure that the credential was made for `purpose`, towards one of `audiences`.
        Raises CredentialRejected: it was made for another purpose or another daemon."""
        if self.payload not in {statement(purpose, audience) for audience in audiences}:
            raise CredentialRejected(
                "the MUNGE credential was made for another purpose or another daemon: use the daemon's own URL, "
                + " or ".join(audiences)
            )


def user_id(name: str) -> int | None:
    """The user's number; None where this machine has no such user."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):  # a name with a NUL
        return None


def user_name(uid: int) -> str:
    """The user's name, or the number where this machine has no such user."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def statement(purpose: str, audience: str) -> bytes:
    """The payload that binds a credential to one purpose (`malletrain-session-v1`) and one daemon (its URL)."""
    return f"{purpose} {audience.rstrip('/')}".encode()


def encode(payload: bytes, socket: str | None = None) -> str:
    """Make a credential of this process's uid and gid with `payload` in it.

    `socket` is munged's; None: that which MUNGE_SOCKET names, else the system's own.
    Raises MungeUnavailable: munged does not answer, or munge is not installed; MungeError: the payload is too
    long."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise MungeError(f"a MUNGE payload of {len(payload)} bytes: at most {MAX_PAYLOAD_BYTES} are allowed")
    c, free = _library()
    out = ctypes.c_void_p()
    with _context(c, socket) as (context, check):
        try:
            check(c.munge_encode(ctypes.byref(out), context, payload, len(payload)))
            return ctypes.string_at(out.value or 0).decode("ascii").strip()
        finally:
            free(out)


def decode(credential: str, socket: str | None = None) -> Credential:
    """Open a credential, once.
    Raises MungeUnavailable: munged does not answer, or munge is not installed; CredentialRejected: nothing is
    proven."""
    text = credential.strip()
    if not text.isascii() or not text.isprintable() or len(text) > MAX_CREDENTIAL_BYTES or not text:
        raise CredentialRejected("not a MUNGE credential: it is one line of `MUNGE:...:`")
    c, free = _library()
    buffer, length, uid, gid = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint32(), ctypes.c_uint32()
    with _context(c, socket) as (context, check):
        try:
            check(c.munge_decode(text.encode("ascii"), context, *map(ctypes.byref, (buffer, length, uid, gid))))
            encoded_at = ctypes.c_long()  # time_t
            c.munge_ctx_get(ctypes.c_void_p(context), _OPT_ENCODE_TIME, ctypes.byref(encoded_at))
            payload = ctypes.string_at(buffer.value, length.value) if buffer.value else b""
            return Credential(uid.value, gid.value, payload, float(encoded_at.value))
        finally:
            free(buffer)


# --- libmunge -------------------------------------------------------------------------------------------------

# munge_err_t and munge_opt_t of munge.h; the numbers are part of the library's ABI.
_SUCCESS, _SOCKET, _TIMEOUT, _EXPIRED, _REWOUND, _REPLAYED = 0, 6, 7, 15, 16, 17
_OPT_ENCODE_TIME, _OPT_SOCKET = 6, 8


@cache
def _library() -> tuple[ctypes.CDLL, Any]:
    """libmunge, and free(3). The soname is tried as it is: finding it by name runs ldconfig."""
    try:
        c = ctypes.CDLL("libmunge.so.2")
    except OSError as error:
        raise MungeUnavailable(
            "libmunge.so.2 is not on this machine: install munge (Debian: apt install munge), as on every Slurm node"
        ) from error
    pointer, to = ctypes.c_void_p, ctypes.POINTER
    for name, result, arguments in (
        ("munge_ctx_create", pointer, []),
        ("munge_ctx_destroy", None, [pointer]),
        ("munge_ctx_strerror", ctypes.c_char_p, [pointer]),
        ("munge_strerror", ctypes.c_char_p, [ctypes.c_int]),
        ("munge_encode", ctypes.c_int, [to(pointer), pointer, ctypes.c_char_p, ctypes.c_int]),
        (
            "munge_decode",
            ctypes.c_int,
            [ctypes.c_char_p, pointer, to(pointer), to(ctypes.c_int), to(ctypes.c_uint32), to(ctypes.c_uint32)],
        ),
    ):
        function = getattr(c, name)
        function.restype, function.argtypes = result, arguments
    free = ctypes.CDLL(None).free
    free.restype, free.argtypes = None, [pointer]
    return c, free


@contextmanager
def _context(c: ctypes.CDLL, chosen: str | None) -> Iterator[tuple[int, Callable[[int], None]]]:
    """A context for munged's socket, and what raises where a call with it was no success."""
    socket = chosen or os.environ.get("MUNGE_SOCKET") or None
    context: int | None = c.munge_ctx_create()
    if not context:
        raise MungeUnavailable("libmunge could not make a context: out of memory")

    def check(status: int) -> None:
        if status != _SUCCESS:
            words: bytes = c.munge_ctx_strerror(context) or c.munge_strerror(status) or b""
            raise _error(status, words.decode("utf-8", "replace"), socket)

    try:
        if socket is not None:  # variadic in C
            check(
                c.munge_ctx_set(ctypes.c_void_p(context), ctypes.c_int(_OPT_SOCKET), ctypes.c_char_p(socket.encode()))
            )
        yield context, check
    finally:
        c.munge_ctx_destroy(context)


def _error(status: int, words: str, socket: str | None) -> MungeError:
    """munge_err_t as an error that says what to do."""
    if status in (_SOCKET, _TIMEOUT):
        where = f" at {socket}" if socket else ""
        return MungeUnavailable(
            f"munged does not answer{where} ({words}): start it (systemctl start munge), "
            "or name its socket where it is another one"
        )
    why = {
        _EXPIRED: "the MUNGE credential has expired: make a new one (or the clocks differ: check NTP)",
        _REWOUND: "the MUNGE credential is from the future: the machines' clocks differ, check NTP",
        _REPLAYED: "the MUNGE credential was used before: make a new one for each request",
    }
    otherwise = f"MUNGE refuses the credential ({words}): do both machines have the same munge.key?"
    return CredentialRejected(why.get(status, otherwise))
