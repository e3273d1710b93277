"""The ledger of a passive daemon, folded while it waits, so that a takeover need not read a whole journal."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine

from malletrain.daemon.image.folded_state import REMEMBERED_S, last_image
from malletrain.loop.ledger import Ledger
from malletrain.store.database import reader_engine, storage_errors
from malletrain.store.event_reader import READ_BATCH, batch_after


class WarmLedger:
    """Follows the journal at `path`. Used by one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._engine: Engine | None = None
        self.ledger = Ledger()
        self._folded = 0

    def follow(self) -> bool:
        """Fold the next events, some thousands at most; returns whether there may be more.

        Raises:
            StoreError: the journal cannot be read.
        """
        if self._engine is None:
            self._engine = reader_engine(self._path, connections=1)
            if not self._folded:
                begun = last_image(self._path)
                self.ledger, self._folded = begun.ledger, begun.seq
        with storage_errors(self._path), self._engine.begin() as connection:
            events = batch_after(connection, self._folded)
        self.ledger.apply(events)
        self._folded = events[-1].seq if events else self._folded
        return len(events) == READ_BATCH

    def finish(self) -> Ledger:
        """Fold what is left; the ledger of the whole journal. The file is closed.

        Raises:
            StoreError: the journal cannot be read.
        """
        while self.follow():
            pass
        self.close()
        return self.ledger

    def tend(self, now: float) -> None:
        """Forget jobs that ended a day ago."""
        self.ledger.forget_over(now - REMEMBERED_S)

    def restart(self) -> None:
        """The file was replaced by another: fold it from its beginning."""
        self.close()
        self.ledger, self._folded = Ledger(), 0

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None
