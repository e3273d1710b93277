"""Trainings as processes of this machine: the same study without a daemon, for trying it out."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from malletrain.elastic.link.standalone_record import RECORD_VARIABLE
from malletrain.study.ports import Ending, Figure, TrialEnd, read_fault, tail_of
from malletrain.study.trial_main import LIFELINE_FD
from malletrain.study.trial_spec import TrialSpec, node_range
from malletrain.wire import messages
from malletrain.wire.errors import WireError

#: Seconds between two reads of a training's record.
POLL_INTERVAL_S = 0.1

#: Seconds between SIGTERM and SIGKILL for a training that is ended.
GRACE_S = 5.0


class LocalRun:
    """The port `Run` over one process group. Its output goes to `output.txt` in the trial's folder."""

    def __init__(self, spec: TrialSpec, environ: Mapping[str, str]) -> None:
        self._spec = spec
        self._began = time.monotonic()
        self._over: TrialEnd | None = None
        self._read = 0
        self._result: Mapping[str, Any] | None = None
        self._memory_kills = _memory_kills()
        folder = Path(spec.folder)
        descriptor, name = tempfile.mkstemp(prefix="record-", suffix=".jsonl", dir=folder)
        os.close(descriptor)
        self._record = Path(name)
        # The study itself may run in a pilot or a trial.
        passed = {k: v for k, v in environ.items() if not k.startswith(("MALLETRAIN_", "SLURM_"))}
        theirs, self._lifeline = os.pipe()
        try:
            with (folder / "output.txt").open("ab") as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "malletrain.study.trial_main", spec.folder],
                    env={**passed, RECORD_VARIABLE: name, LIFELINE_FD: str(theirs), "PYTHONUNBUFFERED": "1"},
                    cwd=Path(spec.file).parent,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(theirs,),
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(theirs)
        self._ended_after: float | None = None

    @property
    def key(self) -> str:
        return ""  # it ends with the study: nothing is left to be found

    def next(self, wait_s: float) -> Figure | TrialEnd | None:
        end = time.monotonic() + wait_s
        while self._over is None:
            ended = self._process.poll() is not None  # before reading: what it said last is not missed
            figure = self._next_figure()
            if figure is not None:
                return figure
            if ended:
                self._over = self._verdict()
                self._close()
            elif time.monotonic() >= end:
                return None
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(min(POLL_INTERVAL_S, max(0.0, end - time.monotonic())))
        return self._over

    def stop(self) -> None:
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
            try:
                self._process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                self._process.wait()
        self._close()

    def trained_s(self) -> float:
        return self._ended_after if self._ended_after is not None else time.monotonic() - self._began

    def facts(self) -> Mapping[str, float]:
        return {"node_seconds": self.trained_s()}

    def _next_figure(self) -> Figure | None:
        """The next figure of the record; its other lines are read on the way."""
        with self._record.open("rb") as record:
            record.seek(self._read)
            for line in record:
                if not line.endswith(b"\n"):
                    return None  # still being written
                self._read += len(line)
                try:
                    said = messages.message_of(json.loads(line))
                except (WireError, ValueError):
                    continue
                if isinstance(said, messages.Metric):
                    return Figure(said.name, math.nan if said.value is None else said.value, said.samples)
                if isinstance(said, messages.Finished):
                    self._result = said.result
        return None

    def _verdict(self) -> TrialEnd:
        status = self._process.returncode
        if self._result is not None and status >= 0:
            return TrialEnd(Ending.COMPLETED, "training finished", self._result)
        left = read_fault(self._spec, str(self._process.pid))
        if left is not None:
            return left
        if status == -signal.SIGKILL and _memory_kills() > self._memory_kills:
            return TrialEnd(Ending.OUT_OF_MEMORY, "the kernel killed it: memory ran out")
        if status in (-signal.SIGKILL, -signal.SIGTERM, 143):
            return TrialEnd(Ending.NODE_FAILED, f"killed from outside ({_name(status)})")
        tail = tail_of(Path(self._spec.folder) / "output.txt")
        return TrialEnd(Ending.USER_ERROR, f"its process ended with {_name(status)}", traceback=tail)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _close(self) -> None:
        if self._ended_after is None:
            self._ended_after = time.monotonic() - self._began
            self._signal(signal.SIGKILL)  # what it left behind
            os.close(self._lifeline)
            self._record.unlink(missing_ok=True)


class LocalRuns:
    """Up to `most` processes at a time."""

    def __init__(self, most: int, environ: Mapping[str, str] | None = None) -> None:
        self._most = most
        self._environ = dict(os.environ if environ is None else environ)

    def check(self, nodes: str) -> None:
        node_range(nodes)  # as many as it asks for or not, it gets this machine

    def start(self, spec: TrialSpec) -> LocalRun:
        self.check(spec.nodes)
        spec.write()
        return LocalRun(spec, self._environ)

    def find(self, spec: TrialSpec, key: str) -> LocalRun | None:
        return None

    def has_capacity(self, active: int) -> bool:
        return active < self._most

    def forget(self, prefix: str, known: Collection[str]) -> None:
        """Nothing to do: processes end with their study."""


def _memory_kills() -> int:
    """How often this machine's kernel has killed for want of memory (proc(5), /proc/vmstat, oom_kill)."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return 0


def _name(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
