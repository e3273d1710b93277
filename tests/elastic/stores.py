"""Worlds of a test without a daemon: where their members meet, and members that are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

from malletrain.elastic.comm.authentication import Meeting
from malletrain.elastic.comm.gloo_group import make_group
from malletrain.elastic.comm.group import Group
from malletrain.elastic.comm.peer_store import StoreServer
from malletrain.elastic.errors import PeerLost

SECRET = "secret-of-tests"
HOST, PATIENCE = "127.0.0.1", timedelta(seconds=30)


class Calm:
    """A world in which nothing happens, for step commits without a daemon."""

    def check(self, generation: int) -> None:
        pass

    def fault(self, generation: int, how: str, detail: str) -> None:
        raise RuntimeError(f"{how}: {detail}")

    def ready_for(self) -> int:
        return 0

    def is_ending(self) -> bool:
        return False


def meeting(address: str, generation: int = 1) -> Meeting:
    """Where members of a generation meet."""
    return Meeting(address, generation, SECRET)


def serve(*generations: int) -> StoreServer:
    """A store that lets members of these generations in; of the first by default."""
    server = StoreServer(HOST)
    for generation in generations or (1,):
        server.trust(meeting(server.address, generation))
    return server


def run(
    size: int, act: Callable[[Group], object], make: Callable[[Meeting, int], Group] | None = None
) -> list[object]:
    """`act(group)` in a thread for each member of a world; what it returned, or its error, by rank.

    Args:
        make: a member's group, by where they meet and its rank; by default one of gloo.
    """
    server = serve()
    results: list[object] = [None] * size
    done = threading.Barrier(size)

    def member(rank: int) -> None:
        there = meeting(server.address)
        group = make(there, rank) if make else make_group(there, rank, size, HOST, PATIENCE)
        try:
            results[rank] = act(group)
        except (AssertionError, PeerLost) as error:
            results[rank] = error
        finally:
            done.wait(60)
            group.abandon()

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    server.close()
    return results
