"""Which processes are a lab's, and how they are started and ended. One that is not the lab's is never signalled.

Process ids are recycled, so a process is known by its id *and* its start time, and is signalled through a pidfd,
which stays with the process that was checked (pidfd_open(2)).
"""

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scripts.lab.layout import Layout

# Every daemon of a lab carries this in its environment, with the lab's directory; what it forks inherits it.
MARK = "MALLETRAIN_SLURM_LAB"

# Programs whose open files are looked at: another program's `tail -f` of a log does not make it the lab's.
DAEMONS = ("slurm", "munged", "mariadbd")

# Children of this very process, kept until they are reaped: a zombie would keep its id and look alive to others.
_children: dict[int, "subprocess.Popen[bytes]"] = {}


@dataclass(frozen=True)
class Process:
    """One process: its id, when it started (clock ticks after boot, field 22 of proc(5) stat), what it is for."""

    pid: int
    start_ticks: int
    name: str


@dataclass(frozen=True)
class Sighting:
    """What /proc shows of one process; what may not be read is empty.

    `program` is the name of its executable file. `files` are the files it has open, looked up for DAEMONS only.
    """

    pid: int
    parent: int
    session: int
    start_ticks: int
    name: str
    program: str
    environment: frozenset[str]
    files: frozenset[str] = frozenset()


def belonging(sightings: Iterable[Sighting], layout: Layout, spared: frozenset[int]) -> list[Process]:
    """The processes of the lab at `layout`: its daemons, its jobs' processes, and what either started.

    A shell or a test that merely points its SLURM_CONF at the lab is not the lab's; one that Slurm gave a job id is.
    `spared` are never named (the caller and its ancestors). Pure.
    """
    seen = {s.pid: s for s in sightings}
    daemons = {pid for pid, s in seen.items() if _is_daemon(s, layout)}
    # A job's process whose parent ended is init's child, but still in the session of the slurmstepd that started it.
    sessions = {seen[pid].session for pid in daemons}
    ours = {pid for pid, s in seen.items() if pid in daemons or s.session in sessions or _is_job(s, layout)} - spared
    while more := {pid for pid, s in seen.items() if s.parent in ours} - ours - spared:
        ours |= more
    return [Process(p, seen[p].start_ticks, seen[p].name) for p in sorted(ours)]


def _is_daemon(s: Sighting, layout: Layout) -> bool:
    """Started by the lab, or by its slurmd. A newer slurmstepd overwrites its environment, but has its log open."""
    if f"{MARK}={layout.root}" in s.environment:
        return True
    return s.program.startswith(DAEMONS) and any(f.startswith(f"{layout.root}/") for f in s.files)


def _is_job(s: Sighting, layout: Layout) -> bool:
    return f"SLURM_CONF={layout.slurm_conf}" in s.environment and any(
        v.startswith(("SLURM_JOB_ID=", "SLURM_JOBID=")) for v in s.environment
    )


def sight(pid: int) -> Sighting | None:
    """What /proc shows of process `pid`; None if there is none (a zombie counts as none)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name stands in parentheses and may itself hold spaces and parentheses: split after the last one.
    head, _, tail = stat.rpartition(")")
    fields = tail.split()
    # A first thread that ended before the others is a zombie too: so is one while another thread calls execve(2).
    threads = int(fields[17])
    if fields[0] == "X" or (fields[0] == "Z" and threads <= 1):
        return None
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        program = Path(f"/proc/{pid}/exe").readlink().name
        files = _open_files(pid) if program.startswith(DAEMONS) else frozenset[str]()
    except (PermissionError, FileNotFoundError, ProcessLookupError):
        environment, program, files = "", "", frozenset()  # another user's or a kernel thread, or it ended
    return Sighting(
        pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
        name=head.partition("(")[2],
        program=program,
        environment=frozenset(v for v in environment.split("\0") if v),
        files=files,
    )


def _open_files(pid: int) -> frozenset[str]:
    found: set[str] = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.add(str(link.readlink()))
    return frozenset(found)


def sight_all() -> list[Sighting]:
    """What /proc shows now."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [s for s in map(sight, pids) if s is not None]


def ancestry() -> frozenset[int]:
    """This process and its ancestors."""
    found: set[int] = set()
    pid = os.getpid()
    while pid > 0 and (seen := sight(pid)) is not None:
        found.add(pid)
        pid = seen.parent
    return frozenset(found)


def alive(process: Process) -> bool:
    """Whether this very process still runs."""
    reap()
    seen = sight(process.pid)
    return seen is not None and seen.start_ticks == process.start_ticks


def send(process: Process, number: signal.Signals) -> bool:
    """Signals this very process, and no other that got its id since; False if it is gone."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not alive(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def spawn(
    name: str, command: list[str], environment: Mapping[str, str], log: Path, keep_open: tuple[int, ...] = ()
) -> Process:
    """Starts a daemon in a session of its own (no Ctrl-C of a terminal reaches it), its output appended to `log`."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            start_new_session=True,
            pass_fds=keep_open,
        )
    _children[child.pid] = child
    seen = sight(child.pid)
    return Process(child.pid, seen.start_ticks if seen else 0, name)


def wait_for_end(process: Process) -> None:
    """Blocks until this very process has ended."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if alive(process):
            select.select([descriptor], [], [])
    finally:
        os.close(descriptor)


def reap() -> None:
    """Collects the children of this process that have ended."""
    for pid, child in list(_children.items()):
        if child.poll() is not None:
            del _children[pid]


def end_all(find: Callable[[], list[Process]], grace_s: float, deadline_s: float) -> list[Process]:
    """Ends all that `find` names: SIGTERM, SIGKILL after `grace_s` seconds; asks again until it names none.

    Again, because a daemon may fork while it is being ended; and one once named stays named, though what it was known
    by (its parent, its slurmstepd) may be gone. Returns those left after `deadline_s` seconds.
    """
    begun = time.monotonic()
    told: set[Process] = set()
    while found := list({*find(), *filter(alive, told)}):
        elapsed = time.monotonic() - begun
        if elapsed > deadline_s:
            return found
        for process in found:
            if elapsed >= grace_s:
                send(process, signal.SIGKILL)
            elif process not in told:
                told.add(process)
                send(process, signal.SIGTERM)
        reap()
        time.sleep(0.02)
    reap()
    return []
