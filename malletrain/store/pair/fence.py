"""The fencing token of a journal: the epoch of the daemon that may write it, kept in the journal itself.

Each takeover has a higher epoch. It is compared in the transaction that writes, so a writer that was suspended
between a check and its write is refused all the same.
"""

from __future__ import annotations

from sqlalchemy import Connection

from malletrain.store.errors import Fenced


def stored_epoch(connection: Connection) -> int:
    """The epoch that last wrote; 0 where the journal never had two daemons."""
    return int(connection.exec_driver_sql("SELECT COALESCE(MAX(epoch), 0) FROM fence").scalar_one())


def stored_pairing(connection: Connection) -> int:
    """The pairing in which this journal holds all that was acknowledged; 0: none."""
    return int(connection.exec_driver_sql("SELECT COALESCE(MAX(pairing), 0) FROM fence").scalar_one())


def check_epoch(connection: Connection, epoch: int) -> None:
    """Make sure, within a transaction that writes, that no later epoch has written.

    Raises:
        Fenced: one has.
    """
    stored = stored_epoch(connection)
    if stored > epoch:
        raise Fenced(f"the journal has been written in epoch {stored}, and this daemon's is {epoch}: it steps down")


def raise_epoch(connection: Connection, epoch: int) -> None:
    """Store `epoch`, so that no earlier one writes any more.

    Raises:
        Fenced: a later one has written.
    """
    check_epoch(connection, epoch)
    if stored_epoch(connection) != epoch:
        connection.exec_driver_sql(
            "INSERT INTO fence (id, epoch) VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch",
            (epoch,),
        )


def store_pairing(connection: Connection, epoch: int, pairing: int) -> None:
    """Store, as the daemon of `epoch` says, in which pairing this journal holds all that was acknowledged.

    Raises:
        Fenced: a later epoch has written.
    """
    raise_epoch(connection, epoch)
    connection.exec_driver_sql("UPDATE fence SET pairing = ? WHERE id = 1", (pairing,))
