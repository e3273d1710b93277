"""How fast this world trains, measured on undisturbed steps only.

After each switch the first steps are dropped (caches, allocators and connections settle), then windows of at least
`MIN_STEPS` steps and `MIN_SECONDS` are reported. What does not fill a window is reported too, as progress alone.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import torch

from malletrain.wire.messages import Samples

DROP_STEPS = 4
MIN_STEPS = 10
MIN_SECONDS = 3.0


def memory_bytes() -> int:
    """The most memory that this process has held: on its GPU if it uses one, else of the host (getrusage(2))."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Meter:
    """Windows of steps, each sent to `send` once it is long enough."""

    def __init__(self, send: Callable[[Samples], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._skip = DROP_STEPS
        self._since = clock()
        self._latest = (1, 0, 0)  #: nodes, step, total
        self._told, self._told_at = 0, self._since
        self._empty()

    def disturbed(self) -> None:
        """The world changed: what was measured so far is progress, what follows is another size's."""
        self._skip = DROP_STEPS
        self._tell(steady=False)

    def paused(self) -> None:
        """The script does something between steps (it evaluates, it saves): that time does not count."""
        self._skip = max(self._skip, 1)

    def step(self, nodes: int, samples: int, step: int, total: int, parts: dict[str, float]) -> None:
        """A step of `samples` samples was committed, the job's `total` with it."""
        now = self._clock()
        if not self._latest[2]:
            self._told = total - samples  # a newcomer has no part in what was before it
        self._latest = (nodes, step, total)
        if self._skip:
            self._skip -= 1
            self._since = now
            return
        self._seconds += now - self._since
        self._since = now
        self._steps += 1
        self._samples += samples
        for name, seconds in parts.items():
            self._parts[name] = self._parts.get(name, 0.0) + seconds
        if self._steps >= MIN_STEPS and self._seconds >= MIN_SECONDS:
            self._tell(steady=True)

    def flush(self) -> None:
        """Send what there is, if there is anything: training ends."""
        self._tell(steady=self._steps >= MIN_STEPS)

    def _tell(self, *, steady: bool) -> None:
        nodes, step, total = self._latest
        now = self._clock()
        if total > self._told:
            # Progress counts all samples since the last message, those of dropped steps too, and all the time.
            samples = self._samples if steady else total - self._told
            seconds = self._seconds if steady else max(now - self._told_at, 1e-6)
            self._send(Samples(step, nodes, samples, seconds, self._steps, total, steady, dict(self._parts)))
            self._told, self._told_at = total, now
        self._empty()

    def _empty(self) -> None:
        self._steps = self._samples = 0
        self._seconds = 0.0
        self._parts: dict[str, float] = {}
