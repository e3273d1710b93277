"""MUNGE credentials: who is calling, as the cluster's own authentication says it (munge(3), munge_enum(3)).

Every Slurm site runs munged on every node with one shared key. A credential carries the uid and gid of the process
that made it, sealed by the local munged; any other munged with the key opens it, once: a second decoding on the same
machine is refused as a replay. The credential of one purpose must not serve another, nor another daemon, so the
payload names both (`statement`), and whoever decodes compares (`Credential.check`).

libmunge is called directly: the programs `munge` and `unmunge` and Slurm's plug-in need it, too.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import cache

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

        Raises:
            CredentialRejected: it was made for another purpose or another daemon.
        """
        if self.payload not in {statement(purpose, audience) for audience in audiences}:
            raise CredentialRejected(
                "the MUNGE credential was made for another purpose or another daemon: "
                "use the URL that the daemon itself is configured with"
            )


def statement(purpose: str, audience: str) -> bytes:
    """The payload that binds a credential to one purpose (`malletrain-session-v1`) and one daemon (its URL)."""
    return f"{purpose} {audience.rstrip('/')}".encode()


def _socket_of(chosen: str | None) -> str | None:
    """munged's socket where it is not the system's: `chosen`, or MUNGE_SOCKET's for a whole session or job."""
    return chosen or os.environ.get("MUNGE_SOCKET") or None


def encode(payload: bytes, socket: str | None = None) -> str:
    """Make a credential of this process's uid and gid with `payload` in it.

    `socket` is munged's; None: that which MUNGE_SOCKET names, else the system's own.

    Raises:
        MungeUnavailable: munged does not answer, or munge is not installed.
        MungeError: the payload is too long.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise MungeError(f"a MUNGE payload of {len(payload)} bytes: at most {MAX_PAYLOAD_BYTES} are allowed")
    return _library().encode(payload, _socket_of(socket))


def decode(credential: str, socket: str | None = None) -> Credential:
    """Open a credential, once.

    Raises:
        MungeUnavailable: munged does not answer, or munge is not installed.
        CredentialRejected: nothing is proven.
    """
    text = credential.strip()
    if not text.isascii() or not text.isprintable() or len(text) > MAX_CREDENTIAL_BYTES or not text:
        raise CredentialRejected("not a MUNGE credential: it is one line of `MUNGE:...:`")
    return _library().decode(text, _socket_of(socket))


# --- libmunge -------------------------------------------------------------------------------------------------

# munge_err_t and munge_opt_t of munge.h; the numbers are part of the library's ABI.
_SUCCESS, _SOCKET, _TIMEOUT, _EXPIRED, _REWOUND, _REPLAYED = 0, 6, 7, 15, 16, 17
_OPT_ENCODE_TIME, _OPT_SOCKET = 6, 8


class _Library:
    """The five calls of libmunge.so.2 that are used."""

    def __init__(self, handle: ctypes.CDLL) -> None:
        self._c = handle
        self._free = ctypes.CDLL(None).free
        self._free.argtypes = [ctypes.c_void_p]
        self._free.restype = None
        handle.munge_ctx_create.restype = ctypes.c_void_p
        handle.munge_ctx_destroy.argtypes = [ctypes.c_void_p]
        handle.munge_ctx_destroy.restype = None
        handle.munge_ctx_strerror.argtypes = [ctypes.c_void_p]
        handle.munge_ctx_strerror.restype = ctypes.c_char_p
        handle.munge_strerror.argtypes = [ctypes.c_int]
        handle.munge_strerror.restype = ctypes.c_char_p
        handle.munge_encode.argtypes = [
            ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int,
        ]  # fmt: skip
        handle.munge_decode.argtypes = [
            ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int),
            ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_uint32),
        ]  # fmt: skip

    def encode(self, payload: bytes, socket: str | None) -> str:
        context = self._context(socket)
        out = ctypes.c_void_p()
        try:
            status = self._c.munge_encode(ctypes.byref(out), context, payload, len(payload))
            if status != _SUCCESS:
                raise _error(status, self._words(context, status), socket)
            return ctypes.string_at(out.value or 0).decode("ascii").strip()
        finally:
            self._free(out)
            self._c.munge_ctx_destroy(context)

    def decode(self, credential: str, socket: str | None) -> Credential:
        context = self._context(socket)
        buffer, length = ctypes.c_void_p(), ctypes.c_int()
        uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
        try:
            status = self._c.munge_decode(
                credential.encode("ascii"), context, ctypes.byref(buffer), ctypes.byref(length),
                ctypes.byref(uid), ctypes.byref(gid),
            )  # fmt: skip
            if status != _SUCCESS:
                raise _error(status, self._words(context, status), socket)
            encoded_at = ctypes.c_long()  # time_t
            self._c.munge_ctx_get(ctypes.c_void_p(context), _OPT_ENCODE_TIME, ctypes.byref(encoded_at))
            payload = ctypes.string_at(buffer.value, length.value) if buffer.value else b""
            return Credential(uid.value, gid.value, payload, float(encoded_at.value))
        finally:
            self._free(buffer)
            self._c.munge_ctx_destroy(context)

    def _context(self, socket: str | None) -> int:
        context: int | None = self._c.munge_ctx_create()
        if not context:
            raise MungeUnavailable("libmunge could not make a context: out of memory")
        if socket is not None:
            value = ctypes.c_char_p(socket.encode())  # variadic in C
            status = self._c.munge_ctx_set(ctypes.c_void_p(context), ctypes.c_int(_OPT_SOCKET), value)
            if status != _SUCCESS:
                words = self._words(context, status)
                self._c.munge_ctx_destroy(context)
                raise _error(status, words, socket)
        return context

    def _words(self, context: int, status: int) -> str:
        words: bytes = self._c.munge_ctx_strerror(context) or self._c.munge_strerror(status) or b""
        return words.decode("utf-8", "replace")


@cache
def _library() -> _Library:
    """libmunge. The soname is tried as it is: finding it by name runs ldconfig."""
    try:
        return _Library(ctypes.CDLL("libmunge.so.2"))
    except OSError as error:
        raise MungeUnavailable(
            "libmunge.so.2 is not on this machine: install munge (Debian: apt install munge), as on every Slurm node"
        ) from error


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
