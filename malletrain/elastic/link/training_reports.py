"""Messages about training: throughput, samples, metrics.

A message about a step is held until the next commit round is done. That round needs every member, so the step is then
committed everywhere and the loss of a worker cannot undo what was reported.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from malletrain.elastic.comm.step_commit import StepCommitter
from malletrain.wire import messages
from malletrain.wire.messages import Samples

#: Weight of a new step in the moving average of how fast members are.
SMOOTHING = 0.1

#: After a resize, and the least of a window.
DROPPED_STEPS = 4
MIN_WINDOW_STEPS = 10
MIN_WINDOW_S = 3.0

#: Steps are reported at least so often as they are committed: the daemon takes back nodes on which none is.
MAX_SILENCE_S = 300.0


class Reports:
    """Sends messages, by `say`, as soon as what they report is final. `noise_scale`: in samples; None while new.
    `steps_before`, `samples_before`: what earlier sessions of the script have committed."""

    def __init__(
        self,
        say: Callable[[messages.Message], None],
        committer: StepCommitter,
        noise_scale: Callable[[], float | None],
        steps_before: int = 0,
        samples_before: int = 0,
    ) -> None:
        self.say = say
        self._committer = committer
        self._ns_per_sample: list[float] = []  #: smoothed, by rank; 0 where it is not known
        self._noise_scale = noise_scale
        self._held: list[tuple[int, messages.Message]] = []  #: each with the number of the round that it reports
        self.steps_before, self.samples_before = steps_before, samples_before

    def world_began(self) -> None:
        """Forget how fast members were: other ones are in the world now."""
        self._ns_per_sample = [0.0] * self._committer.world.size

    def measured(self, ns_per_sample: Sequence[int]) -> None:
        """Record how many nanoseconds of its own work a sample took each member in the last step, by rank; 0 for one
        without samples. Of another world's step it is empty."""
        known = self._ns_per_sample
        if len(ns_per_sample) != len(known):
            return
        for rank, new in enumerate(ns_per_sample):
            if new > 0:
                known[rank] = (1 - SMOOTHING) * known[rank] + SMOOTHING * new if known[rank] else float(new)

    def hold(self, message: messages.Message, *, committed: bool = True) -> None:
        """Send `message` once the round it reports, the last one or that under way, is committed at every member."""
        self._held.append((self._committer.rounds_done + (not committed), message))
        if self._committer.world.size == 1:
            self.send_held()

    def round_committed(self) -> None:
        """A round is committed here, and all before it at every member."""
        self._send(self._committer.rounds_done - (self._committer.world.size > 1))

    def send_held(self) -> None:
        """Send what was held. Call it when all steps so far are committed everywhere, and at the end."""
        self._send(self._committer.rounds_done)

    def round_void(self) -> None:
        """Forget what is held of the round under way, which will be repeated."""
        self._held = [each for each in self._held if each[0] <= self._committer.rounds_done]

    def _send(self, until: int) -> None:
        held, self._held = self._held, [each for each in self._held if each[0] > until]
        for number, message in held:
            if number <= until:
                self.say(message)

    def samples(self, window: messages.Samples) -> None:
        """Report a window of training; does nothing on other workers than the main one."""
        world = self._committer.world
        if world.rank != 0:
            return
        by_process = [1e9 / each if each else 0.0 for each in self._ns_per_sample]
        rates = {
            name: sum(by_process[n * world.local_size : (n + 1) * world.local_size])
            for n, name in enumerate(world.workers)
        }
        self.hold(
            replace(
                window,
                step=window.step + self.steps_before,
                total=window.total + self.samples_before,
                noise_scale=self._noise_scale(),
                rates=rates,
                memory_bytes=memory_bytes(),
            )
        )


def memory_bytes() -> int:
    """Peak memory of this process: on its GPU if it uses one, else in host memory (getrusage(2))."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Meter:
    """Measures the throughput of the present world over undisturbed steps.

    The first steps after a resize are dropped, because caches, allocators and connections settle. Then windows of at
    least `MIN_WINDOW_STEPS` steps and `MIN_WINDOW_S` seconds are reported as steady. Samples outside such a window
    are reported as progress only, and so are those of steps that are too long to make a window soon. `send`: called
    with each complete window. `clock`: monotonic seconds."""

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
        """Count a committed step. `total`: samples committed by the job so far, with those of this step; `parts`:
        seconds spent in each part of the step, by name."""
        now = self._clock()
        if not self._latest[2]:
            self._sent_total = total - samples  # a newcomer does not report the samples before its own
        self._latest = (nodes, step, total)
        if self._skip:
            self._skip -= 1
        else:
            self._seconds += now - self._since
            self._steps += 1
            self._samples += samples
            for name, seconds in parts.items():
                self._parts[name] = self._parts.get(name, 0.0) + seconds
        self._since = now
        if self._steps >= MIN_WINDOW_STEPS and self._seconds >= MIN_WINDOW_S:
            self._send_window(steady=True)
        elif now - self._sent_at >= MAX_SILENCE_S:
            self._say(now, steady=False)

    def flush(self) -> None:
        """Report the incomplete window: training ends."""
        self._send_window(steady=self._steps >= MIN_WINDOW_STEPS)

    def _send_window(self, *, steady: bool) -> None:
        if self._latest[2] > self._sent_total:
            self._say(self._clock(), steady=steady)
        self._reset()

    def _say(self, now: float, *, steady: bool) -> None:
        nodes, step, total = self._latest
        # Progress covers all samples and all time since the last message, dropped steps included.
        samples = self._samples if steady else total - self._sent_total
        seconds = self._seconds if steady else max(now - self._sent_at, 1e-6)
        self._send(Samples(step, nodes, samples, seconds, self._steps, total, steady, dict(self._parts)))
        self._sent_total, self._sent_at = total, now

    def _reset(self) -> None:
        self._steps = self._samples = 0
        self._seconds = 0.0
        self._parts: dict[str, float] = {}
