"""What a worker tells of its training.

What tells of a step waits until the next round is committed: that needs every member, so the step stands with all of
them, and whoever is lost from then on takes nothing back that was told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from malletrain.elastic.data.proportional_shares import ProportionalShares
from malletrain.elastic.link.standalone_record import Record
from malletrain.elastic.link.throughput_meter import memory_bytes
from malletrain.elastic.resize.reconfigure import Reconfigurer
from malletrain.wire import messages


class Reports:
    """To the daemon, or into a record where there is none.

    Args:
        switch: has the link to the daemon.
        record: where there is no pilot; None where nobody reads.
        paces: of the members.
        noise_scale: the gradient noise scale in samples; None while it is not known.
    """

    def __init__(
        self,
        reconfigurer: Reconfigurer,
        record: Record | None,
        proportional_shares: ProportionalShares,
        noise_scale: Callable[[], float | None],
    ) -> None:
        self._reconfigurer = reconfigurer
        self._record = record
        self._proportional_shares = proportional_shares
        self._noise_scale = noise_scale
        self._held: list[messages.Message] = []

    def hold(self, message: messages.Message) -> None:
        """Say it when what it tells of stands."""
        self._held.append(message)
        if self._reconfigurer.committer.world.size == 1:
            self.stands()

    def stands(self) -> None:
        """All that was committed so far is committed everywhere, or it is too late to ask: say what was held."""
        held, self._held = self._held, []
        for message in held:
            self.say(message)

    def say(self, message: messages.Message) -> None:
        """Queue a message; training does not wait for it."""
        if self._reconfigurer.link is not None:
            self._reconfigurer.link.say(message)
        elif self._record is not None:
            self._record.say(message)

    def samples(self, window: messages.Samples) -> None:
        """A window of training. What every member knows, the main one tells."""
        world = self._reconfigurer.committer.world
        if world.rank != 0:
            return
        by_process = self._proportional_shares.samples_per_s()
        rates = {
            name: sum(by_process[n * world.local_size : (n + 1) * world.local_size])
            for n, name in enumerate(world.workers)
        }
        self.hold(replace(window, noise_scale=self._noise_scale(), rates=rates, memory_bytes=memory_bytes()))
