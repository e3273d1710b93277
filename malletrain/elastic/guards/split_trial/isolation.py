"""A forked copy of a training process that can do nothing but compute."""

from __future__ import annotations

import builtins
import fcntl
import gc
import io
import os
import resource
import signal
import stat
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

from malletrain.elastic.child_process import end_with_parent
from malletrain.elastic.guards.split_trial.shared_memory import part_with_shared_memory
from malletrain.elastic.guards.split_trial.system_calls import give_up_writing

#: Audit events (docs.python.org, "Audit events table") of what would be seen outside of the process.
_OUTWARD = frozenset({
    "os.exec", "os.fork", "os.forkpty", "os.kill", "os.link", "os.mkdir", "os.posix_spawn", "os.remove", "os.rename",
    "os.rmdir", "os.symlink", "os.system", "os.truncate", "shutil.rmtree", "socket.bind",
    "socket.connect", "socket.sendto", "subprocess.Popen",
})  # fmt: skip

#: Shared memory of more bytes is not copied.
MAX_SHARED_BYTES = 256 * 2**20


def clocks() -> dict[str, float]:
    """What the clocks of `time` say, by name."""
    return {name: getattr(time, name)() for name in ("time", "monotonic", "perf_counter")}


def stop_clocks(said: dict[str, float]) -> None:
    """In a copy: let the clocks of `time` say this from now on, so that copies do not differ by when they look."""
    for name, seconds in said.items():
        setattr(time, name, lambda seconds=seconds: seconds)


def isolate(keep: Collection[int], parent: int, seconds: int, refuse: Callable[[str], None]) -> None:
    """Cut this process, which was forked a moment ago, off from everything outside: files that the parent writes,
    shared memory, connections, standard output, signals that it was sent. What it reads it reads at places of its
    own; what it writes is lost. It ends with its parent, is the first to go where memory runs out, and gets processor
    time within limits. Whatever else it would do outside of itself ends it.

    Args:
        keep: file descriptors that it needs.
        parent: the process that forked it.
        seconds: of processor time.
        refuse: called with what it is about to do outside of itself; must not return.
    """
    end_with_parent(parent, 1)
    gc.freeze()  # nothing of the parent's is collected here: some destructors wait for threads that only it has
    Path("/proc/self/oom_score_adj").write_text("1000", "ascii")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    nothing = _part_with_files(keep)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if not part_with_shared_memory(MAX_SHARED_BYTES):
        refuse("for too much shared memory")
    _write_to(nothing)
    if not give_up_writing():
        refuse("for system calls that it cannot be kept from")
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)  # the pool of threads that the parent had is not here

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _OUTWARD or (event == "open" and _writes(arguments)):
            refuse(event)

    sys.addaudithook(look)


def _writes(arguments: tuple[Any, ...]) -> bool:
    path, _, flags = arguments
    if isinstance(path, int) or not isinstance(flags, int):  # it is open already
        return False
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))


def _write_to(nothing: int) -> None:
    """Let what Python opens to write be `nothing`, which a script's lines of a log may go to."""
    plain: Any = io.open

    def opened(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if not isinstance(mode, str) or "r" in mode or "+" in mode or isinstance(file, int):
            return plain(file, mode, *args, **options)
        options.pop("opener", None)
        return plain(os.dup(nothing), "w" + mode.strip("wax"), *args, **options)

    builtins.open = io.open = opened
    torch.save = lambda *_, **__: None  # it opens files by itself


def _part_with_files(keep: Collection[int]) -> int:
    """Replace open files: those that are read by others of their own, all else by nothing. Returns a descriptor of
    nothing."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        if number in keep or number == nothing:
            continue
        try:
            own = _reopened(number)
        except OSError:  # the descriptor of the listing itself, or a file that cannot be opened any more
            own = None
        try:
            os.dup2(nothing if own is None else own, number)
        except OSError:
            continue
        if own is not None:
            os.close(own)
    return nothing


def _reopened(number: int) -> int | None:
    """A descriptor of the same file, at the same place, that does not share its place; None if it is not read."""
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode) or fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
        return None
    own = os.open(f"/proc/self/fd/{number}", os.O_RDONLY)
    os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
    return own
