"""Throughput of the present world, measured over undisturbed steps.

The first steps after a resize are dropped, because caches, allocators and connections settle. Then windows of at
least `MIN_WINDOW_STEPS` steps and `MIN_WINDOW_S` seconds are reported as steady. Samples outside such a window are
reported as progress only, and so are those of steps that are too long to make a window soon.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import torch

from malletrain.wire.messages import Samples

DROPPED_STEPS = 4
MIN_WINDOW_STEPS = 10
MIN_WINDOW_S = 3.0

#: Steps are reported at least so often as they are committed: the daemon takes back nodes on which none is.
MAX_SILENCE_S = 300.0


def memory_bytes() -> int:
    """Peak memory of this process: on its GPU if it uses one, else in host memory (getrusage(2))."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Meter:
    """Collects steps into windows.

    Args:
        send: called with each complete window.
        clock: monotonic seconds.
    """

    def __init__(self, send: Callable[[Samples], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._skip = DROPPED_STEPS
        self._since = clock()
        self._latest = (1, 0, 0)  #: nodes, step, total samples
        self._sent_total, self._sent_at = 0, self._since
        self._reset()

    def disturbed(self) -> None:
        """The world changes: end the window, and drop the first steps of the next one."""
        self._skip = DROPPED_STEPS
        self._send_window(steady=False)

    def paused(self) -> None:
        """The script works between steps (it evaluates or saves): leave that time out of the window."""
        self._skip = max(self._skip, 1)

    def step(self, nodes: int, samples: int, step: int, total: int, parts: dict[str, float]) -> None:
        """Count a committed step.

        Args:
            nodes: of the present world.
            samples: of this step.
            step: its number.
            total: samples committed by the job so far, with those of this step.
            parts: seconds spent in each part of the step, by name.
        """
        now = self._clock()
        if not self._latest[2]:
            self._sent_total = total - samples  # a newcomer does not report the samples before its own
        self._latest = (nodes, step, total)
        if self._skip:
            self._skip -= 1
            self._since = now
            self._say_progress(now)
            return
        self._seconds += now - self._since
        self._since = now
        self._steps += 1
        self._samples += samples
        for name, seconds in parts.items():
            self._parts[name] = self._parts.get(name, 0.0) + seconds
        if self._steps >= MIN_WINDOW_STEPS and self._seconds >= MIN_WINDOW_S:
            self._send_window(steady=True)
        else:
            self._say_progress(now)

    def flush(self) -> None:
        """Report the incomplete window: training ends."""
        self._send_window(steady=self._steps >= MIN_WINDOW_STEPS)

    def _send_window(self, *, steady: bool) -> None:
        nodes, step, total = self._latest
        now = self._clock()
        if total > self._sent_total:
            # Progress covers all samples and all time since the last message, dropped steps included.
            samples = self._samples if steady else total - self._sent_total
            seconds = self._seconds if steady else max(now - self._sent_at, 1e-6)
            self._send(Samples(step, nodes, samples, seconds, self._steps, total, steady, dict(self._parts)))
            self._sent_total, self._sent_at = total, now
        self._reset()

    def _say_progress(self, now: float) -> None:
        nodes, step, total = self._latest
        if now - self._sent_at >= MAX_SILENCE_S:
            self._send(Samples(step, nodes, total - self._sent_total, now - self._sent_at, 0, total, False))
            self._sent_total, self._sent_at = total, now

    def _reset(self) -> None:
        self._steps = self._samples = 0
        self._seconds = 0.0
        self._parts: dict[str, float] = {}
