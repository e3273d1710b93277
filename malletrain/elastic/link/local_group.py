"""The processes of one node: the leader has the link to the daemon, the followers get directives from the leader.

They are connected by Unix sockets, so that the loss of a process is seen at once. The leader sends the complete
present directives at every change, and forwards the daemon's check-ins; followers send faults. A node is one member:
when one of its processes is lost, all of them end.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Mapping
from typing import Any

from malletrain.elastic.comm.node_group import LocalRank
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.link.daemon_link import Directives, Link, LinkHandler
from malletrain.wire import messages

log = logging.getLogger("malletrain.elastic")

#: A process counts as lost when it does not answer a check-in within this time (the node itself has 2 s).
CHECK_IN_TIMEOUT_S = 1.5

#: How long the processes of a node wait for each other to start.
START_TIMEOUT_S = 300.0

#: Exit status of a process that ends because another one of its node is lost.
PEER_LOST_STATUS = 1

#: Environment variables that together identify this pilot's part of this node.
_PILOT_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_RESTART_COUNT",
    "SLURM_STEP_ID",
    "SLURMD_NODENAME",
    "MALLETRAIN_PART",
    "TORCHELASTIC_RUN_ID",
)


def meeting_name(environ: Mapping[str, str]) -> str:
    """Socket address of this node's leader: a name in Linux' abstract namespace, of this user and this pilot."""
    pilot = "-".join(environ.get(name, "") for name in _PILOT_VARIABLES)
    return f"\0malletrain-{os.getuid()}-{pilot}"[:107]


class LocalLeader:
    """The first process of a node: speaks to the daemon for all of them. `name`: see `meeting_name`. Raises
    `ElasticError`: another process leads this node."""

    def __init__(self, name: str, local_rank: LocalRank) -> None:
        self._local_rank = local_rank
        self._link: Link | None = None
        self._present: dict[str, Any] = {}
        self._asked = 0
        #: By rank: the last check-in answered, and whether it held the training state.
        self._answered: dict[int, tuple[int, bool]] = {}
        self._warm: set[int] = set()
        self._gone: set[int] = set()
        self._streams: dict[int, _Stream] = {}
        self._closed = False
        self._changed = threading.Condition()
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._server.bind(name)
        except OSError as error:
            raise ElasticError(
                f"another process leads this node already ({error}): give each a LOCAL_RANK"
            ) from error
        self._server.listen(local_rank.size)
        threading.Thread(target=self._accept, name="malletrain-accept", daemon=True).start()

    def lead(self, link: Link) -> None:
        """Begin to forward the directives of `link`."""
        self._link = link
        threading.Thread(target=self._tell, name="malletrain-tell", daemon=True).start()

    def wait_warm(self) -> None:
        """Wait until all processes of this node have warmed up. Raises `ElasticError`: one has not within
        `START_TIMEOUT_S`."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._warm) == self._local_rank.size - 1, START_TIMEOUT_S):
                missing = set(range(1, self._local_rank.size)) - self._warm
                raise ElasticError(
                    f"processes {sorted(missing)} of this node are not ready after {START_TIMEOUT_S:.0f} s"
                )

    def check(self) -> bool:
        """Ask every process. Returns whether all of them hold the training state; ends the node when one is lost."""
        with self._changed:
            self._asked += 1
            number = self._asked
        self._put({**self._present, "ask": number})
        others = range(1, self._local_rank.size)

        def late() -> list[int]:
            return [rank for rank in others if self._answered.get(rank, (0, False))[0] < number]

        with self._changed:
            if not self._changed.wait_for(lambda: not late(), CHECK_IN_TIMEOUT_S):
                self._lost(late()[0], f"was silent for {CHECK_IN_TIMEOUT_S} s")
            return all(self._answered[rank][1] for rank in others)

    def wait_gone(self, seconds: float) -> None:
        """Wait up to `seconds` until the others have ended: the node is given back when this process reports it."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._gone) == self._local_rank.size - 1, seconds)

    def end(self) -> None:
        """Ask the other processes to leave, as SIGTERM asks this one."""
        self._put({"ending": True})

    def close(self) -> None:
        """Tell the others that this process ends, and ignore them from now on."""
        self._closed = True
        self._put({"bye": True})
        with contextlib.suppress(OSError):
            self._server.close()

    def _put(self, values: Mapping[str, Any]) -> None:
        for stream in list(self._streams.values()):
            stream.put(values)

    # --- threads ----------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            if _user_of(connection) == os.getuid():
                threading.Thread(target=self._hear, args=(_Stream(connection),), daemon=True).start()
            else:
                connection.close()

    def _hear(self, stream: _Stream) -> None:
        rank = 0
        for line in stream.lines():
            if "rank" in line:
                rank = int(line["rank"])
                self._streams[rank] = stream
                stream.put(self._present)
            with self._changed:
                if "answer" in line:
                    self._answered[rank] = (int(line["answer"]), bool(line["whole"]))
                if line.get("warm"):
                    self._warm.add(rank)
                if line.get("bye"):
                    self._gone.add(rank)
                self._changed.notify_all()
            if "say" in line and self._link is not None:
                self._forward(messages.message_of(line["say"]))
            if line.get("bye"):
                return
        if rank and not self._closed:
            self._lost(rank, "is gone")

    def _forward(self, message: messages.Message) -> None:
        if isinstance(message, messages.Leaving):
            os.kill(os.getpid(), signal.SIGTERM)  # a node leaves as a whole
        elif self._link is not None:
            self._link.say(message)

    def _lost(self, rank: int, how: str) -> None:
        log.error("process %d of this node %s: the node ends", rank, how)
        if self._link is not None:
            self._link.say(messages.Exited(-signal.SIGKILL))
            self._link.flush(1.0)
        os._exit(PEER_LOST_STATUS)

    def _tell(self) -> None:
        """Send the complete directives at every change."""
        link = self._link
        while link is not None and not self._closed:
            present = link.plan, link.end, link.leave
            plan, end, leave = present
            self._present = {"end": end, "leave": leave, "plan": messages.to_json(plan) if plan is not None else None}
            self._put(self._present)
            with link.changed:
                while (link.plan, link.end, link.leave) == present and not self._closed:
                    link.changed.wait(1.0)


class Follower(Directives):
    """Any other process of a node: gets the directives from the leader. Replaces `Link` there. Raises `ElasticError`:
    the leader did not start, or is of another user."""

    def __init__(self, name: str, local_rank: LocalRank, handler: LinkHandler) -> None:
        super().__init__(handler)
        self._closed = False
        self._leader_gone = threading.Event()
        self._stream = _Stream(_connect(name))
        self._stream.put({"rank": local_rank.rank})

    @property
    def last_contact(self) -> float:
        """Always now: the leader decides when the daemon has been silent for too long."""
        return time.monotonic()

    def start(self) -> None:
        threading.Thread(target=self._hear, name="malletrain-follow", daemon=True).start()

    def close(self) -> None:
        """Tell the leader that this process ends, and ignore it from now on."""
        self._closed = True
        self._stream.put({"bye": True})

    def wait_leader_gone(self, seconds: float) -> None:
        """Wait up to `seconds` until the leader's process has ended. Call it after `close`."""
        self._leader_gone.wait(seconds)

    def say(self, message: messages.Message) -> None:
        """Forward faults and progress to the leader; it reports the rest itself."""
        if isinstance(message, messages.Warm):
            self._stream.put({"warm": True})
        elif isinstance(message, messages.Fault | messages.Failed | messages.Leaving):
            self._stream.put({"say": messages.to_json(message)})

    def flush(self, seconds: float) -> bool:
        """Nothing is queued here: returns True."""
        return True

    def deliver_end(self, unless: threading.Event | None = None) -> bool:
        """As `flush`: the leader reports the end."""
        return True

    # --- threads ----------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        for line in self._stream.lines():
            with self.changed:
                self.leave = line.get("leave", self.leave)
                self.end = line.get("end") or self.end
                if line.get("bye"):
                    self.end = self.end or "the first process of this node has ended"
                self.changed.notify_all()
            if line.get("plan") is not None:
                self._take(messages.parse(messages.Plan, line["plan"]))
            if line.get("ending"):
                os.kill(os.getpid(), signal.SIGTERM)
            if "ask" in line:
                self._stream.put({"answer": line["ask"], "whole": self._handler.check_in(0).whole})
            if line.get("bye"):
                self._closed = True
        self._leader_gone.set()
        if not self._closed:
            log.error("the first process of this node is gone: so is this one")
            os._exit(PEER_LOST_STATUS)


class _Stream:
    """JSON objects in both directions, one a line."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._writing = threading.RLock()  # a signal handler may write during a write

    def put(self, values: Mapping[str, Any]) -> None:
        """Send an object. Raises nothing: `lines` ends when the peer is gone."""
        with self._writing, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(values).encode() + b"\n")

    def lines(self) -> Any:
        """Objects as they arrive, until the peer is gone."""
        with contextlib.suppress(OSError), self._connection.makefile("rb") as stream:
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                yield json.loads(line)


def _connect(name: str) -> socket.socket:
    end = time.monotonic() + START_TIMEOUT_S
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(name)
        except OSError as error:
            connection.close()
            if time.monotonic() > end:
                raise ElasticError(f"the first process of this node did not come: {error}") from error
            time.sleep(0.05)
            continue
        if _user_of(connection) != os.getuid():
            connection.close()
            raise ElasticError("another user listens where the processes of this node meet")
        return connection


def _user_of(connection: socket.socket) -> int:
    """User id of the peer (unix(7), SO_PEERCRED)."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
