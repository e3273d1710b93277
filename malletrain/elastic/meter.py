"""How fast this world trains, measured on undisturbed steps only.

After each switch the first steps are dropped (caches, allocators and connections settle), then windows of at least
`MIN_STEPS` steps or `MIN_SECONDS` are reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from malletrain.wire.messages import Samples

DROP_STEPS = 4
MIN_STEPS = 10
MIN_SECONDS = 3.0


class Meter:
    """Windows of steps, each sent to `send` once it is long enough."""

    def __init__(self, send: Callable[[Samples], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._skip = DROP_STEPS
        self._since = 0.0
        self._empty()

    def disturbed(self) -> None:
        """Something else than training took time: what was measured since the last window is not believed."""
        self._skip = DROP_STEPS
        self._empty()

    def paused(self) -> None:
        """The script does something between steps (it evaluates, it saves): that time does not count."""
        self._skip = max(self._skip, 1)

    def step(self, nodes: int, samples: int, step: int, total: int, parts: dict[str, float]) -> None:
        """A step of `samples` samples was committed."""
        now = self._clock()
        if self._skip:
            self._skip -= 1
            self._since = now
            return
        self._seconds += now - self._since
        self._since = now
        self._last = (step, nodes, total)
        self._steps += 1
        self._samples += samples
        for name, seconds in parts.items():
            self._parts[name] = self._parts.get(name, 0.0) + seconds
        if self._steps >= MIN_STEPS and self._seconds >= MIN_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Send what there is, if there is anything: training ends."""
        if self._steps and self._seconds > 0:
            step, nodes, total = self._last
            self._send(Samples(step, nodes, self._samples, self._seconds, self._steps, total, dict(self._parts)))
        self._empty()

    def _empty(self) -> None:
        self._steps = self._samples = 0
        self._seconds = 0.0
        self._last = (0, 0, 0)
        self._parts: dict[str, float] = {}
