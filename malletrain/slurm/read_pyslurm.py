"""Nodes and jobs through pyslurm, where a site has it for its very release; all else through Slurm's commands.

pyslurm is linked to one release of Slurm: used when it imports and its version is slurmctld's, and never needed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from malletrain.domain.errors import ClusterUnavailable, InvalidInput
from malletrain.domain.snapshot import MainQueue, Snapshot
from malletrain.slurm.command import MAX_OUTPUT_BYTES, Commands, readable
from malletrain.slurm.formats import normalise, sdiag
from malletrain.slurm.formats.records import JobRecord, NodeRecord
from malletrain.slurm.read_commands import CommandReader

#: The environment variable that names a Python that has pyslurm, where that is not the daemon's own.
PYTHON = "MALLETRAIN_PYSLURM_PYTHON"

#: Python, pyslurm and libslurm take so long to start, at most, on a busy machine.
START_S = 30.0


class SnapshotReader(Protocol):
    """Who looks at Slurm: `CommandReader`, or `PyslurmReader`."""

    def snapshot(self) -> Snapshot: ...
    def main_queue(self, known: frozenset[str]) -> MainQueue: ...
    def diagnosis(self) -> sdiag.SchedulerStatistics: ...


def choose(
    commands: Commands,
    now: Callable[[], float],
    harvest_partition: str,
    bf_interval_s: float,
    release: tuple[int, int],
    python: str = "",
) -> tuple[SnapshotReader, str]:
    """The reader for a Slurm of this release, and one line on why it is that.

    Args:
        python: the Python that has pyslurm; empty: this one.
    """
    text = CommandReader(commands, now, harvest_partition, bf_interval_s)
    if not python and importlib.util.find_spec("pyslurm") is None:
        return text, "Slurm is read by its commands: pyslurm is not installed"
    reader = PyslurmReader(text, commands, now, harvest_partition, [python or sys.executable])
    try:
        version = reader.version()
    except ClusterUnavailable as error:
        return text, f"Slurm is read by its commands: {error}"
    if as_release(version) != release:
        reader.close()
        ours = ".".join(f"{part:02d}" for part in release)
        return text, f"Slurm is read by its commands: pyslurm is for {version}, slurmctld is {ours}"
    return reader, f"Slurm is read by pyslurm {version}"


def as_release(version: str) -> tuple[int, int]:
    """(24, 11) for 24.11.0, pyslurm's version; (0, 0) where it is none."""
    parts = version.split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and all(p.isdigit() for p in parts[:2]) else (0, 0)


class PyslurmReader:
    """Reads the live cluster through pyslurm, which runs in a process of its own (`pyslurm_server`).

    A process that is silent for longer than a command may be is killed, and started again at the next look.

    Args:
        text: reads what pyslurm is not asked for (reservations, sdiag).
        python: the command line of the Python that has pyslurm.
    """

    def __init__(
        self,
        text: CommandReader,
        commands: Commands,
        now: Callable[[], float],
        harvest_partition: str,
        python: Sequence[str],
    ) -> None:
        self._text = text
        # The Python that has pyslurm need not have MalleTrain: it is given this one.
        path = [str(Path(__file__).parents[2]), *filter(None, [commands.environment.get("PYTHONPATH")])]
        self._environment = {**commands.environment, "PYTHONPATH": os.pathsep.join(path)}
        self._timeout_s = commands.timeout_s
        self._now = now
        self._harvest = harvest_partition
        self._argv = [*python, "-P", "-m", "malletrain.slurm.pyslurm_server"]
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._version = ""

    def version(self) -> str:
        """pyslurm's own.

        Raises:
            ClusterUnavailable: it cannot be imported, or its process cannot be started.
        """
        if self._process is None:
            self._start()
        return self._version

    def snapshot(self) -> Snapshot:
        """As `CommandReader.snapshot`, in the same order: nodes, jobs, reservations.

        Raises:
            ClusterUnavailable: no answer in time, an error, or an answer that cannot be right.
        """
        taken_at = self._now()
        answer = self._ask("nodes+jobs")
        reservations = self._text.reservations()
        plan = self._text.diagnosis().plan
        with readable("pyslurm"):
            return normalise.snapshot(
                taken_at,
                [_node(row) for row in _rows(answer, "nodes")],
                [_job(row) for row in _rows(answer, "jobs")],
                reservations,
                plan,
                task_by_task=self._harvest,
            )

    def main_queue(self, known: frozenset[str]) -> MainQueue:
        """As `CommandReader.main_queue`.

        Raises:
            ClusterUnavailable: as `snapshot`.
        """
        warnings = normalise.Warnings()
        with readable("pyslurm"):
            jobs = [normalise.job(_job(row), warnings) for row in _rows(self._ask("jobs"), "jobs")]
        return MainQueue.of((job for job in jobs if job.partition != self._harvest), known)

    def diagnosis(self) -> sdiag.SchedulerStatistics:
        """As `CommandReader.diagnosis`."""
        return self._text.diagnosis()

    def close(self) -> None:
        """End the process."""
        process, self._process, self._rest = self._process, None, b""
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _start(self) -> None:
        try:
            self._process = subprocess.Popen(
                self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(self._environment), cwd="/"
            )
        except OSError as error:
            raise ClusterUnavailable(f"{self._argv[0]}: cannot be run ({error.strerror})") from error
        self._version = str(self._line(START_S).get("version", ""))

    def _ask(self, what: str) -> Mapping[str, object]:
        if self._process is None:
            self._start()
        process = self._process
        if process is None or process.stdin is None:
            raise ClusterUnavailable("pyslurm does not run")
        try:
            process.stdin.write(f"{what}\n".encode())
            process.stdin.flush()
        except BrokenPipeError:
            self.close()
            raise ClusterUnavailable("pyslurm's process has ended; it is started again at the next look") from None
        return self._line(self._timeout_s)

    def _line(self, limit_s: float) -> Mapping[str, object]:
        """The next answer; the process is ended when it is none."""
        try:
            answer = json.loads(self._read(time.monotonic() + limit_s))
        except (ValueError, TimeoutError, EOFError) as error:
            self.close()
            raise ClusterUnavailable(f"pyslurm: {error or 'no answer'}") from error
        if not isinstance(answer, dict):
            self.close()
            raise ClusterUnavailable("pyslurm: an answer of the wrong shape")
        if "error" in answer:
            if not self._version:
                self.close()
            raise ClusterUnavailable(f"pyslurm: {str(answer['error'])[:400]}")
        return answer

    def _read(self, end: float) -> bytes:
        process = self._process
        if process is None or process.stdout is None:
            raise EOFError("it does not run")
        parts = [self._rest]
        size = 0
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in parts[-1]:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise TimeoutError("no answer in time; is slurmctld up? try `scontrol ping`")
                chunk = os.read(process.stdout.fileno(), 1 << 20)
                size += len(chunk)
                if not chunk:
                    raise EOFError("its process ended; is SLURM_CONF right?")
                if size > MAX_OUTPUT_BYTES:
                    raise EOFError(f"more than {MAX_OUTPUT_BYTES // 2**20} MiB, given up")
                parts.append(chunk)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line


def _rows(answer: Mapping[str, object], key: str) -> list[list[object]]:
    rows = answer.get(key)
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise InvalidInput("pyslurm", f"an answer without {key}")
    return rows


def _node(row: Sequence[object]) -> NodeRecord:
    try:
        found = NodeRecord(*row)  # type: ignore[arg-type]
        return found._replace(partitions=tuple(found.partitions), features=tuple(found.features))
    except TypeError as error:
        raise InvalidInput("pyslurm", f"a node of the wrong shape: {error}") from error


def _job(row: Sequence[object]) -> JobRecord:
    try:
        return JobRecord(*row)  # type: ignore[arg-type]
    except TypeError as error:
        raise InvalidInput("pyslurm", f"a job of the wrong shape: {error}") from error
