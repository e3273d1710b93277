"""How much more memory this process may take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def bytes_free(root: Path = Path("/")) -> int:
    """Bytes that can be taken now without a process being ended for it: of the machine, and within the limits of this
    process's control groups (cgroup v1 and v2).

    Args:
        root: where /proc and /sys lie.
    """
    free = [_free_of_machine(root)]
    for folder, limit, used in _groups(root):
        for each in (folder, *folder.parents):
            try:
                free.append(int((each / limit).read_text("ascii")) - int((each / used).read_text("ascii")))
            except (OSError, ValueError):  # no limit ("max"), or none here
                continue
    return min(free)


def resident_bytes(root: Path = Path("/")) -> int:
    """What this process has in memory."""
    return _kibibytes(root / "proc/self/status", "VmRSS:")


def _free_of_machine(root: Path) -> int:
    return _kibibytes(root / "proc/meminfo", "MemAvailable:")


def _kibibytes(file: Path, field: str) -> int:
    for line in file.read_text("ascii", errors="replace").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def _groups(root: Path) -> Iterator[tuple[Path, str, str]]:
    """Folder of each memory group of this process, its file of the limit, and of what is used."""
    for line in (root / "proc/self/cgroup").read_text("ascii", errors="replace").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield root / "sys/fs/cgroup" / path.lstrip("/"), "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            folder = root / "sys/fs/cgroup/memory" / path.lstrip("/")
            yield folder, "memory.limit_in_bytes", "memory.usage_in_bytes"
