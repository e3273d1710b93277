"""Runs `malletrain check` where it can harm nothing: `python -m ...launch.confined_check FOLDER SEEN SECONDS BYTES
SCRIPT ARGUMENTS...` prints a `CheckAnswer` as JSON.

What it starts can write into one folder alone (Landlock, Linux 5.13: landlock(7)), reaches no network where the node
lets users leave it (network_namespaces(7)), yields to the training (nice), is the first to go if memory runs out, and
is ended beyond its time or memory. It ends with the process that started it. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

#: Below training, but not so far that an import takes minutes on a busy node (sched(7): a tenth of its weight).
NICE = 10

#: How often time and memory are looked at.
LOOK_S = 0.25

#: Of a check's output; and characters of a sentence.
MAX_OUTPUT_BYTES, MAX_TEXT = 1 << 20, 300

#: Entries of the script's folder that the check sees.
MAX_ENTRIES = 10_000

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38  # prctl(2)
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # landlock(7), the same on all architectures
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000  # unshare(2)
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1  # netdevice(7)

#: landlock(7): to write, remove and make files; from its second version on to move, from its third to truncate.
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_WRITES = {1: _WRITE_FILE | sum(1 << bit for bit in range(4, 13)), 2: 1 << 13, 3: _TRUNCATE}

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - shm_overview(7): where workers of a loader hand tensors over

_COMMAND = ("-P", "-c", "from malletrain.cli.main import main; main()", "check", "--json")

#: What `malletrain check` calls a script that trains otherwise as workers come and go; one that is stopped while it
#: trains alone (`during`) says nothing of that.
_DIFFERENT, _ALONE = ("different", "wrong"), "alone"


class CheckAnswer(NamedTuple):
    """A verdict (`equal`, `different`, `undecided`) and its first sentence."""

    verdict: str
    text: str = ""


def run(folder: str, seen: str, seconds: float, most_bytes: int, command: Sequence[str]) -> CheckAnswer:
    """Check, in this process and those that it starts. This process has one thread, and is confined from then on.

    Args:
        folder: the one that it may write to; it is there, empty, and the user's alone.
        seen: the folder whose entries the check finds in its own.
        seconds, most_bytes: of all its processes together.
        command: the script and its arguments; paths are absolute.
    """
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # proc(5): the first to be ended
    work = _folder_like(seen, Path(folder))
    if _would_leave_network(library):
        _leave_network(library)
    if not _confine_writes(library, folder):
        return CheckAnswer("undecided", "this node cannot keep a check from the job's files (Landlock, Linux 5.13)")
    output, errors = Path(folder) / "found", Path(folder) / "errors"
    check = ["nice", "-n", str(NICE), sys.executable, *_COMMAND, *command]
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(check, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=work)
    try:
        beyond = _watch(process, seconds, most_bytes)
    finally:
        _end_all()
    if beyond:
        return CheckAnswer("undecided", f"too large to be checked beside its training: {beyond}")
    return answer_of(_head(output), _head(errors))


def answer_of(found: bytes, errors: bytes) -> CheckAnswer:
    """What `malletrain check --json` has found, in one word and one sentence; of a difference also the likeliest
    line, or where it begins."""
    try:
        said: dict[str, Any] = json.loads(found)
        word, text = str(said["verdict"]), first_sentence(str(said.get("text", "")))
    except (ValueError, TypeError, KeyError):
        return no_answer(errors)
    if word == "equal":
        return CheckAnswer("equal", text)
    if word in _DIFFERENT and said.get("during") != _ALONE:
        where = [str(each) for each in [*said.get("causes", []), said.get("begins", "")] if each][:1]
        return CheckAnswer("different", _printable("; ".join([text or word, *where]))[:MAX_TEXT])
    return CheckAnswer("undecided", ": ".join(filter(None, (word, text))))


def no_answer(errors: bytes) -> CheckAnswer:
    """That a check said nothing of the script, with its last words."""
    lines = errors.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
    return CheckAnswer("undecided", f"the check did not end: {first_sentence(lines[-1])}")


def first_sentence(text: str) -> str:
    """The first line or sentence of a text, without what does not print."""
    return _printable(text.strip().partition("\n")[0].partition(". ")[0])[:MAX_TEXT]


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)


def _folder_like(seen: str, folder: Path) -> Path:
    """A folder in which the entries of another are found by name, and new files are one's own."""
    work = folder / "work"
    work.mkdir(mode=0o700)
    with contextlib.suppress(OSError), os.scandir(seen) as entries:
        for _, entry in zip(range(MAX_ENTRIES), entries, strict=False):
            if entry.name != ".malletrain":  # checkpoints
                (work / entry.name).symlink_to(entry.path)
    return work


def _confine_writes(library: ctypes.CDLL, folder: str) -> bool:
    """Have this process, and all that it starts, write below `folder` alone; False where the kernel cannot."""
    version = library.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < 1:
        return False
    writes = sum(rights for since, rights in _WRITES.items() if since <= version)
    handled = ctypes.create_string_buffer(struct.pack("=Q", writes), 8)
    rules = library.syscall(_CREATE_RULESET, handled, ctypes.c_size_t(8), ctypes.c_uint32(0))
    if rules < 0:
        return False
    content = writes & (_WRITE_FILE | _TRUNCATE)
    for path, rights in ((folder, writes), (_SHARED_MEMORY, writes), ("/dev", content), ("/proc", content)):
        with contextlib.suppress(OSError):
            beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, beneath), 12)
            library.syscall(_ADD_RULE, rules, 1, rule, ctypes.c_uint32(0))
            os.close(beneath)
    return not library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) and not library.syscall(
        _RESTRICT_SELF, rules, ctypes.c_uint32(0)
    )


def _would_leave_network(library: ctypes.CDLL) -> bool:
    """Whether a process like this one can have a network of its own that works: tried in one that then ends."""
    child = os.fork()
    if not child:
        try:
            os._exit(0 if _leave_network(library) else 1)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _leave_network(library: ctypes.CDLL) -> bool:
    """Have a network of its own, in which this machine alone is; whether it works."""
    user, group = os.getuid(), os.getgid()
    try:
        if library.unshare(_CLONE_NEWNET if user == 0 else _CLONE_NEWUSER | _CLONE_NEWNET):
            return False
        if user != 0:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        with socket.socket() as probe:
            fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
            probe.bind(("127.0.0.1", 0))
    except OSError:
        return False
    return True


def _watch(process: subprocess.Popen[bytes], seconds: float, most_bytes: int) -> str:
    """Wait for the check; which bound it has met, or ""."""
    end = time.monotonic() + seconds
    while process.poll() is None:
        if time.monotonic() > end:
            return f"it was not over after {seconds:.0f} s"
        if sum(map(_own_bytes, _descendants())) > most_bytes:
            return f"it took more than {most_bytes / 2**30:.1f} GiB"
        time.sleep(LOOK_S)
    return ""


def _descendants(of: int | None = None) -> Iterator[int]:
    """All processes that this one has started, and those that they have."""
    with contextlib.suppress(OSError):  # it has just ended
        for thread in Path(f"/proc/{of or os.getpid()}/task").iterdir():
            with contextlib.suppress(OSError, ValueError):
                for child in map(int, (thread / "children").read_text().split()):
                    yield child
                    yield from _descendants(child)


def _own_bytes(process: int) -> int:
    """Memory that a process shares with no file (proc(5), statm)."""
    try:
        resident, shared = Path(f"/proc/{process}/statm").read_text().split()[1:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * resource.getpagesize()


def _end_all() -> None:
    """Kill all that this process has started. As their reaper it meets those whose parent has ended."""
    while children := list(_descendants()):
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_OUTPUT_BYTES)


def main(folder: str, seen: str, seconds: str, most_bytes: str, *command: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(json.dumps(run(folder, seen, float(seconds), int(most_bytes), command)._asdict()))


if __name__ == "__main__":
    main(*sys.argv[1:])
