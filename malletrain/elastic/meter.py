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
        self._started = 0.0
        self._steps = 0
        self._samples = 0
        self._parts: dict[str, float] = {}

    def disturbed(self) -> None:
        """Something else than training took time: begin again."""
        self._skip, self._steps, self._samples = DROP_STEPS, 0, 0
        self._parts = {}

    def paused(self) -> None:
        """The script does something between steps: what was measured so far is one window, and a new one begins."""
        if self._steps:
            self._steps = self._samples = 0
            self._parts = {}
        self._skip = max(self._skip, 1)

    def step(self, nodes: int, samples: int, step: int, total: int, parts: dict[str, float]) -> None:
        """A step of `samples` samples was committed."""
        now = self._clock()
        if self._skip:
            self._skip -= 1
            self._started = now
            return
        self._steps += 1
        self._samples += samples
        for name, seconds in parts.items():
            self._parts[name] = self._parts.get(name, 0.0) + seconds
        if self._steps >= MIN_STEPS and now - self._started >= MIN_SECONDS:
            self._send(
                Samples(step, nodes, self._samples, now - self._started, self._steps, total, dict(self._parts))
            )
            self._started, self._steps, self._samples, self._parts = now, 0, 0, {}
