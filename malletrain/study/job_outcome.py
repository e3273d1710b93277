"""Turns a job's events into reported figures and the trial's end. Reads the trace that a failed script left."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from malletrain.study.trial_endings import Ending, Figure, TrialEnd, read_fault, tail_of
from malletrain.study.trial_spec import TrialSpec
from malletrain.wire.rows import EventRow, JobRow

#: Seconds to wait for the file of a script's error: a shared file system shows it late on another machine.
FAULT_FILE_TIMEOUT_S = 3.0

_NODE = frozenset({"node_fail", "boot_fail"})


class JobOutcome:
    """Folds one job's events.

    Args:
        spec: the trial; error files are in its folder.
        run: the job's number.
    """

    def __init__(self, spec: TrialSpec, run: str) -> None:
        self._spec, self._run = spec, run
        self._ends: Counter[str] = Counter()

    def take(self, row: EventRow) -> Figure | TrialEnd | None:
        """The figure or the end that `row` carries, or None."""
        match row.kind:
            case "metric":
                name, value, samples = (row.data.get(key) for key in ("name", "value", "samples"))
                if isinstance(samples, (int, float)) and isinstance(value, (int, float, type(None))):
                    return Figure(str(name), math.nan if value is None else float(value), int(samples))
                return None
            case "pilot_ended":
                self._ends["preempted" if row.data.get("preempted") else str(row.data.get("state", ""))] += 1
                return None
            case "job_completed":
                result = row.data.get("result")
                return TrialEnd(Ending.COMPLETED, row.reason, result if isinstance(result, dict) else {})
            case "job_failed":
                return self.failed(row.reason)
            case "job_cancelled":
                return TrialEnd(Ending.CANCELLED, row.reason)
            case "array_refused":
                return TrialEnd(Ending.REFUSED, row.reason)
        return None

    def from_row(self, row: JobRow) -> TrialEnd | None:
        """The end that the job's row shows, for a job whose event was missed."""
        match row.phase:
            case "completed":
                return TrialEnd(Ending.COMPLETED, row.reason, row.result)
            case "failed":
                return self.failed(row.reason)
            case "cancelled":
                return TrialEnd(Ending.CANCELLED, row.reason)
        return None

    def failed(self, reason: str) -> TrialEnd:
        """Why a job failed: the script's own error first, then the states of its pilots in Slurm."""
        consumed = "no held task is left" in reason
        left = read_fault(self._spec, self._run, 0.0 if consumed else FAULT_FILE_TIMEOUT_S)
        if left is not None and not consumed:
            return left
        if self._ends["out_of_memory"]:
            return TrialEnd(Ending.OUT_OF_MEMORY, reason)
        nodes = sum(self._ends[state] for state in _NODE)
        if consumed:
            ending = Ending.NODE_FAILED if nodes and not self._ends["preempted"] else Ending.PREEMPTED
            return TrialEnd(ending, reason)
        if nodes and nodes == sum(self._ends.values()):
            return TrialEnd(Ending.NODE_FAILED, reason)
        outputs = sorted(Path(self._spec.folder).glob("*.out"), key=lambda path: path.stat().st_mtime)
        return TrialEnd(Ending.USER_ERROR, reason, traceback=tail_of(outputs[-1]) if outputs else "")
