"""Wakes long polls when the journal has grown."""

import asyncio
from contextlib import suppress


class JournalNotifier:
    """Rung by the thread that appends (`SqliteJournal.on_append`), heard by coroutines of the API."""

    def __init__(self) -> None:
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._last = 0
        self.is_over = False  #: nothing is waited for any more: the daemon ends

    def ring(self, last: int) -> None:
        """The journal has grown to number `last`. Safe from any thread."""
        self._last = max(self._last, last)
        for loop, event in tuple(self._waiting):
            with suppress(RuntimeError):  # its loop has just closed
                loop.call_soon_threadsafe(event.set)

    def end(self) -> None:
        """Ends every wait at once, now and from now on."""
        self.is_over = True
        self.ring(self._last)

    async def wait(self, after: int, seconds: float) -> bool:
        """Wait until the journal has grown beyond `after`, or the time is over; returns whether it has."""
        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        self._waiting.add(entry)
        try:
            # Looked at only after being in the set: a ring in between is not missed.
            if self._last > after or self.is_over:
                return self._last > after
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()
            return self._last > after
        finally:
            self._waiting.discard(entry)
