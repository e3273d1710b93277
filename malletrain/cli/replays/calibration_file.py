"""What `--calibration` names: a table of plays, or a daemon's journal."""

from __future__ import annotations

from pathlib import Path

from malletrain.domain.errors import InvalidInput
from malletrain.replay.scoring.realism import Calibration, of_journal, of_plays

#: How every SQLite file begins.
SQLITE_MAGIC = b"SQLite format 3\x00"
#: Bytes read of a table of plays.
MAX_TABLE_BYTES = 1 << 20


def read_calibration(path: Path) -> Calibration:
    """The calibration in the file, told apart by its content.

    Raises:
        InvalidInput: the file cannot be read, or holds neither.
        StoreError: it is a journal that cannot be read.
    """
    try:
        with path.open("rb") as file:
            begin = file.read(MAX_TABLE_BYTES)
    except OSError as error:
        raise InvalidInput("--calibration", f"{path} cannot be read: {error.strerror}") from error
    if not begin.startswith(SQLITE_MAGIC):
        return of_plays(begin.decode("utf-8", "replace"), path.name)
    from malletrain.store.event_reader import read_events

    return of_journal(read_events(path), path.name)
