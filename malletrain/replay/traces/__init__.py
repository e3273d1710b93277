"""Readers of job logs and node events.

`read_trace` tells the formats apart by content and gives columns of numbers with an account of what was skipped.
"""

from __future__ import annotations

from malletrain.replay.traces.read import read_trace
from malletrain.replay.traces.trace import Account, JobRecords, NodeChanges, Trace

__all__ = ["Account", "JobRecords", "NodeChanges", "Trace", "read_trace"]
