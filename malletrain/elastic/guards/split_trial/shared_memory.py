"""Takes a forked process out of the memory that it shares with others: mapped files, tensors in shared memory."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

#: linux/mman.h
_MAP_FIXED = 0x10


def part_with_shared_memory(limit: int) -> bool:
    """Put private memory with the same content in the place of all that is mapped shared and can be written.

    Args:
        limit: bytes that may be copied; files that are still in their place need no copy.

    Returns:
        Whether all of it is private now.
    """
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    access = mmap.PROT_READ | mmap.PROT_WRITE
    for line in Path("/proc/self/maps").read_text("utf-8", "replace").splitlines():
        place, rights, offset, _, inode, *path = line.split(maxsplit=5)
        if rights[1] != "w" or rights[3] != "s":
            continue
        start, end = (int(each, 16) for each in place.split("-"))
        length = end - start
        file = _same_file(path[0] if path else "", int(inode))
        if file is not None:
            flags = mmap.MAP_PRIVATE | _MAP_FIXED
            private = library.mmap(start, length, access, flags, file, int(offset, 16))
            os.close(file)
            if private != start:
                return False
            continue
        limit -= length
        if limit < 0:
            return False
        content = ctypes.string_at(start, length)
        if library.mmap(start, length, access, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED, -1, 0) != start:
            return False
        ctypes.memmove(start, content, length)
    return True


def _same_file(path: str, inode: int) -> int | None:
    """A descriptor of the file at `path`; None if another one is there now, or none."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    if os.fstat(file).st_ino == inode:
        return file
    os.close(file)
    return None
