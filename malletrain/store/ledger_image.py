"""The image of the ledger: what was folded from the events up to a number, kept in the journal's own file.

It is a cache. A restored backup or a copied journal brings its own along, as of the same moment as its events, so
an image never belongs to another journal. What cannot be used (another release folded it, a bit has flipped) is
passed over, and the start reads every event."""

import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, delete, insert, select

from malletrain.store import schema as t
from malletrain.store.database import reader_engine, storage_errors
from malletrain.store.errors import StoreError
from malletrain.store.journal import SqliteJournal, last_number

#: Of zlib: the fastest. An image of 1,000 jobs shrinks to a tenth.
_COMPRESSION = 1


@dataclass(frozen=True, slots=True)
class LedgerImage:
    """`state`, folded from the events up to number `seq` by the code that `fold` names."""

    seq: int
    fold: str
    state: bytes


def keep_image(journal: SqliteJournal, image: LedgerImage) -> None:
    """Put an image in the place of the one before. The caller must not have merged or deleted events since `image`
    was begun to be folded.
    Raises StoreError: it is of events that the journal does not have, or the disk refuses; the one before stays."""
    packed = zlib.compress(image.state, _COMPRESSION)
    with journal.writing() as connection:
        if not 0 < image.seq <= last_number(connection):
            raise StoreError(f"{journal.path}: has no event {image.seq}, up to which an image was folded")
        connection.execute(delete(t.ledger_image))
        row = {"seq": image.seq, "fold": image.fold, "state": packed}
        digest = _digest(image.seq, image.fold, packed)
        connection.execute(insert(t.ledger_image), row | {"sha256": digest})


def image_of(path: Path, fold: str) -> LedgerImage | None:
    """The image that the journal at `path` has, if the code named `fold` made it and it is sound.
    Raises StoreError: the journal cannot be read."""
    engine = reader_engine(path, connections=1)
    try:
        with storage_errors(path), engine.begin() as connection:
            row = connection.execute(select(t.ledger_image)).first()
            last = last_number(connection)
    finally:
        engine.dispose()
    if row is None or row.fold != fold or row.seq > last or row.sha256 != _digest(row.seq, row.fold, row.state):
        return None
    return LedgerImage(row.seq, row.fold, zlib.decompress(row.state))


def image_boundary(connection: Connection) -> int:
    """The number of the last event that is folded into the image; 0 without one."""
    return int(connection.execute(select(t.ledger_image.c.seq)).scalar() or 0)


def _digest(seq: int, fold: str, packed: bytes) -> str:
    return hashlib.sha256(f"{seq} {fold} ".encode() + packed).hexdigest()
