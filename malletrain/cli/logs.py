"""`malletrain logs`: what a job's workers have printed, read as the caller from the files that Slurm writes."""

import os
import re
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from glob import escape, glob
from pathlib import Path

import click

from malletrain.cli.common_options import CommandFailed
from malletrain.cli.render import printable
from malletrain.domain.job import output_file
from malletrain.wire.daemon import DaemonClient, connect
from malletrain.wire.rows import EventRow, JobRow

#: Seconds between two looks at the files, and at the list of tasks.
LOOK_S, LIST_S = 0.5, 5.0

#: What srun says once a task has failed: not why.
_SAYS_NOT_WHY = re.compile(r"srun: (?!error: )|srun: error: \S+: tasks? |slurmstepd(?:-\S+)?: ")

#: Bytes of a file that are read at once; and its end, in which the last lines are looked for.
_READ_BYTES, _TAIL_BYTES = 1 << 22, 1 << 18


@click.command(epilog="Example:  malletrain logs -f 3")
@click.argument("job", type=click.IntRange(min=1))
@click.option("--follow", "-f", is_flag=True, help="Go on until the job is over.")
@click.option("--rank", type=click.IntRange(min=0), help="Only this rank; 0 is the main worker.")
@click.option("--lines", "-n", type=click.IntRange(min=0), help="Only the last N lines at first.")
def logs(job: int, follow: bool, rank: int | None, lines: int | None) -> None:
    """Print the output of JOB's workers, the main worker first.

    It reads Slurm's output files as you, on this machine.
    """
    daemon, reader = connect(), _Reader()
    events: list[EventRow] = []
    listed = -LIST_S
    while True:
        if time.monotonic() - listed >= LIST_S:
            listed, row = time.monotonic(), daemon.job(job)
            events += _events(daemon, job, events[-1].seq if events else 0)
            patterns, tasks = tasks_of(events)
            files = _found(patterns, tasks, row, rank)
        if not patterns:
            raise CommandFailed(f"job {job}: the daemon does not know its output: look for slurm-ARRAY_TASK.out")
        if not files and not follow:
            of_rank = "" if rank is None else f" of rank {rank}"
            raise CommandFailed(f"job {job} has no output yet at {', '.join(patterns)}{of_rank}")
        any_more = reader.show(files, lines, is_foreign=row.uid != os.getuid())
        if not follow or (not any_more and row.ended_at is not None):
            return
        lines = None
        time.sleep(LOOK_S)


def _events(daemon: DaemonClient, job: int, after: int) -> Iterator[EventRow]:
    """The events that name a job's files, tasks and worlds."""
    while True:
        rows, last = daemon.events(after=after, job=job, kinds=("job_announced", "tasks_added", "generation"))
        yield from rows
        if not rows or last <= after:
            return
        after = last


def last_words(daemon: DaemonClient, row: JobRow) -> str:
    """The last line that says why, in the file of a job that was written last, and that file; "" where there is
    none."""
    files = [path for path, _ in _found(*tasks_of(_events(daemon, row.id, 0)), row, None) if path.is_file()]
    if not files:
        return ""
    path = max(files, key=lambda each: each.stat().st_mtime)
    printed = _Reader().more(path, is_tail=True).decode("utf-8", "replace")
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    why = [line for line in lines if not _SAYS_NOT_WHY.match(line)] or lines
    return f"{printable(why[-1])[:400]} ({path})" if why else ""


def tasks_of(events: Iterable[EventRow]) -> tuple[tuple[str, ...], dict[str, int | None]]:
    """The patterns of a job's files, and the rank of each of its tasks (`123_4`): those of the last world first, in
    rank order, then those that are in none."""
    pattern: tuple[str, ...] = ()
    names: dict[str, None] = {}
    members: Sequence[str] = ()
    for event in events:
        if event.kind == "job_announced":
            pattern = tuple(str(each) for each in _list(event.data, "output"))
        elif event.kind == "tasks_added":
            names |= dict.fromkeys(f"{event.data.get('array_id')}_{task}" for task in _list(event.data, "tasks"))
        elif event.kind == "generation" and (now := _list(event.data, "members")):
            members = [str(each).partition("+")[0] for each in now]
    tasks: dict[str, int | None] = {}
    for rank, name in enumerate(members):
        tasks.setdefault(name, rank)
    return pattern, tasks | {name: None for name in names if name not in tasks}


def _list(data: Mapping[str, object], key: str) -> list[object]:
    found = data.get(key)
    return found if isinstance(found, list) else []


def _found(
    patterns: Sequence[str], tasks: Mapping[str, int | None], row: JobRow, rank: int | None
) -> list[tuple[Path, str]]:
    """The files that are there, each with its title. What is not known beforehand, such as the node, may be any."""
    found: dict[Path, str] = {}
    for task, at in tasks.items():
        which = "" if at is None else f", rank {at}" + (" (main)" if at == 0 else "")
        for each in patterns if rank is None or at == rank else ():
            pattern = output_file(each, task, row.name, row.user, quote=escape)
            for name in sorted(glob(pattern)):  # noqa: PTH207 - absolute
                found.setdefault(Path(name), f"{task}{which}: {name}")
    return list(found.items())


class _Reader:
    """Prints what files have gained since the last look, with a title where the file is another than before."""

    def __init__(self) -> None:
        self._last = Path()
        self._at: dict[Path, int] = {}

    def show(self, files: Iterable[tuple[Path, str]], lines: int | None, *, is_foreign: bool) -> bool:
        """Print the rest of each file; with `lines`, its last lines alone. In those of another user (`is_foreign`)
        what could steer the terminal is replaced. Whether there was any."""
        any_more = False
        for path, title in files:
            while more := self.more(path, is_tail=lines is not None):
                any_more = True
                if lines is not None:
                    more = b"".join(more.splitlines(keepends=True)[-lines:]) if lines else b""
                if more and self._last != path:
                    self._last = path
                    click.echo(f"==> {printable(title)} <==")
                for line in more.decode("utf-8", "replace").splitlines(keepends=True):
                    click.echo(printable(line.rstrip("\n")) + "\n" if is_foreign else line, nl=False)
        sys.stdout.flush()
        return any_more

    def more(self, path: Path, *, is_tail: bool) -> bytes:
        """What a file has gained, or its end."""
        try:
            # A FIFO would wait for a writer.
            with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
                known = os.fstat(stream.fileno())
                if not stat.S_ISREG(known.st_mode):
                    return b""
                at = self._at.get(path, max(0, known.st_size - _TAIL_BYTES) if is_tail else 0)
                stream.seek(at)
                data = stream.read(_READ_BYTES)
        except OSError as error:
            if path not in self._at:
                self._at[path] = 0
                click.echo(f"malletrain: {printable(str(path))}: {os.strerror(error.errno or 0)}", err=True)
            return b""
        self._at[path] = at + len(data)
        return data
