"""Messages about training: samples, metrics, results.

A message about a step is held until the next commit round is done. That round needs every member, so the step is then
committed everywhere and the loss of a worker cannot undo what was reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from malletrain.elastic.comm.step_commit import StepCommitter
from malletrain.elastic.link.throughput_meter import memory_bytes
from malletrain.wire import messages

#: Weight of a new step in the moving average of how fast members are.
SMOOTHING = 0.1


class Reports:
    """Sends messages as soon as what they report is final.

    Args:
        say: queues a message without blocking.
        committer: of this member.
        noise_scale: returns the gradient noise scale in samples, or None while it is unknown.
    """

    def __init__(
        self,
        say: Callable[[messages.Message], None],
        committer: StepCommitter,
        noise_scale: Callable[[], float | None],
    ) -> None:
        self.say = say
        self._committer = committer
        self._ns_per_sample: list[float] = []  #: smoothed, by rank; 0 where it is not known
        self._noise_scale = noise_scale
        self._held: list[messages.Message] = []
        self._steps_before = self._samples_before = 0

    def begin_at(self, steps: int, samples: int) -> None:
        """Count on from what earlier sessions of the script have committed."""
        self._steps_before, self._samples_before = steps, samples

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

    def hold(self, message: messages.Message) -> None:
        """Send `message` once the steps it reports are committed at every member."""
        self._held.append(message)
        if self._committer.world.size == 1:
            self.send_held()

    def send_held(self) -> None:
        """Send what was held. Call it when all steps so far are committed everywhere, and at the end."""
        held, self._held = self._held, []
        for message in held:
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
                step=window.step + self._steps_before,
                total=window.total + self._samples_before,
                noise_scale=self._noise_scale(),
                rates=rates,
                memory_bytes=memory_bytes(),
            )
        )
