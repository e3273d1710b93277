"""A member's store whose generations have the secret of the tests."""

from __future__ import annotations

from malletrain.elastic.comm.authentication import Meeting
from malletrain.elastic.comm.peer_store import StoreServer

SECRET = "secret-of-tests"


def meeting(address: str, generation: int = 1) -> Meeting:
    """Where members of a generation meet."""
    return Meeting(address, generation, SECRET)


def serve(*generations: int) -> StoreServer:
    """A store that lets members of these generations in; of the first by default."""
    server = StoreServer("127.0.0.1")
    for generation in generations or (1,):
        server.trust(meeting(server.address, generation))
    return server
