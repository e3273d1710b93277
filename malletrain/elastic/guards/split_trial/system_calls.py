"""Takes from a process, for good, the system calls by which it could change what others see: seccomp(2).

Python's audit hooks do not see what libraries of other languages open or remove; the kernel does.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

#: prctl(2), seccomp(2)
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_TRAP, _ALLOW = 0x00030000, 0x7FFF0000

#: linux/bpf_common.h: load a word of `struct seccomp_data`, jump if it equals a number or has a bit of it, return.
_LOAD, _EQUALS, _HAS, _RETURN = 0x20, 0x15, 0x45, 0x06

#: Places in `struct seccomp_data`.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@dataclass(frozen=True, slots=True)
class _Table:
    """Of one architecture.

    Attributes:
        number: AUDIT_ARCH_* of linux/audit.h.
        opens: calls that open a file, and which of their arguments has the flags.
        denied: numbers of other calls: what creates, renames, removes, links, truncates or changes the mode or owner
            of a file, connect, bind, kill.
    """

    number: int
    opens: Mapping[int, int]
    denied: tuple[int, ...]


_TABLES = {
    "x86_64": _Table(
        0xC000003E,
        {2: 1, 257: 2},
        (85, 437, 76, 82, 264, 316, 83, 258, 133, 259, 84, 87, 263, 86, 265, 88, 266, 90, 268, 452, 92, 94, 260, 42,
         49, 62),
    ),
    "aarch64": _Table(0xC00000B7, {56: 2}, (437, 45, 38, 276, 34, 33, 35, 37, 36, 53, 452, 54, 203, 200, 129)),
}  # fmt: skip


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("first", ctypes.POINTER(_Instruction)))


def is_possible() -> bool:
    """Whether the calls are known here, of this architecture."""
    return platform.machine() in _TABLES


def give_up_writing() -> bool:
    """From now on, end (SIGSYS) at a call that would open a file to write, or create, change or remove one, connect,
    or signal another process. Returns whether the kernel has agreed; what is open stays so."""
    table = _TABLES.get(platform.machine())
    if table is None:
        return False
    rows = list(_filter(table))
    program = _Program(len(rows), (_Instruction * len(rows))(*rows))
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return not library.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program))


def _filter(table: _Table) -> Iterator[_Instruction]:
    yield _Instruction(_LOAD, 0, 0, _ARCHITECTURE)
    yield _Instruction(_EQUALS, 1, 0, table.number)
    yield _Instruction(_RETURN, 0, 0, _TRAP)
    yield _Instruction(_LOAD, 0, 0, _NUMBER)
    for number in table.denied:
        yield _Instruction(_EQUALS, 0, 1, number)
        yield _Instruction(_RETURN, 0, 0, _TRAP)
    for number, argument in table.opens.items():
        yield _Instruction(_EQUALS, 0, 4, number)
        yield _Instruction(_LOAD, 0, 0, _ARGUMENTS + 8 * argument)  # the low half: both machines are little-endian
        yield _Instruction(_HAS, 0, 1, _WRITES)
        yield _Instruction(_RETURN, 0, 0, _TRAP)
        yield _Instruction(_RETURN, 0, 0, _ALLOW)
    yield _Instruction(_RETURN, 0, 0, _ALLOW)
