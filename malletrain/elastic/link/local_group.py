"""How the processes of one node stand by each other: the first one has the link to the daemon, the others follow.

They are joined by Unix sockets, so that each knows at once when another is gone. The first one tells what the daemon
wants, always whole, and asks whether the others are there when the daemon asks; they tell what they find wrong. A
node is one member: when one of its processes is lost, all of them end.
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
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from malletrain.elastic.comm.local_rank import LocalRank
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.link.daemon_link import Answers, Link, Wanted
from malletrain.wire import messages

log = logging.getLogger("malletrain.elastic")

#: A process that does not answer within this, when the daemon asks, is not there (the node has 2 s to answer).
SILENT_S = 1.5

#: One process mends a broken world, and another is in a collective of FSDP's in the step after or before: neither can
#: be done. After so long the node ends, and the others train on.
APART_S = 20.0

#: The processes of a node wait so long for each other to come.
MEET_S = 300.0

#: Status of a process that ends because another of its node is lost.
LOST = 1


#: What tells this pilot's processes on this node from all others.
_NAMES = (
    "SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "SLURMD_NODENAME", "MALLETRAIN_PART",
    "TORCHELASTIC_RUN_ID",
)  # fmt: skip


def meeting_name(environ: Mapping[str, str]) -> str:
    """Where the processes of this node meet: a name in Linux' abstract namespace, of this user and this pilot."""
    pilot = "-".join(environ.get(name, "") for name in _NAMES)
    return f"\0malletrain-{os.getuid()}-{pilot}"[:107]


class LocalPeer(Answers, Protocol):
    """What the processes of a node ask of the runtime in each."""

    def mending_s(self) -> float:
        """For how long this process has been mending a broken world, where each process of the node holds a part of
        the model; else 0."""
        ...


class LocalLeader:
    """At the first process of a node: the others, and what the daemon is told of them all.

    Args:
        name: where they meet.
        place: of this process.
    """

    def __init__(self, name: str, local_rank: LocalRank) -> None:
        self._local_rank = local_rank
        self._link: Link | None = None
        self._said: dict[str, Any] = {}
        self._asked = 0
        #: The last question that each has answered, whether it held the training state, and `LocalPeer.mending_s`.
        self._answered: dict[int, tuple[int, bool, float]] = {}
        self._warm: set[int] = set()
        self._gone: set[int] = set()
        self._entered: dict[int, int] = {}
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
        threading.Thread(target=self._accept, name="malletrain-leader", daemon=True).start()

    def lead(self, link: Link) -> None:
        """From now on tell the others what `link` hears."""
        self._link = link
        threading.Thread(target=self._tell, name="malletrain-tell", daemon=True).start()

    def wait_warm(self) -> None:
        """Until all processes of this node are.

        Raises:
            ElasticError: they are not within `MEET_S`.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._warm) == self._local_rank.size - 1, MEET_S):
                missing = set(range(1, self._local_rank.size)) - self._warm
                raise ElasticError(f"processes {sorted(missing)} of this node are not ready after {MEET_S:.0f} s")

    def check(self, mending_s: float) -> bool:
        """Whether all hold the training state; ends the node when one of them is not there, or not where the others
        are. `mending_s`: of this process (`LocalPeer.mending_s`)."""
        with self._changed:
            self._asked += 1
            number = self._asked
        self._put({**self._said, "ask": number})
        mates = range(1, self._local_rank.size)

        def late() -> list[int]:
            return [rank for rank in mates if self._answered.get(rank, (0, False, 0.0))[0] < number]

        with self._changed:
            if not self._changed.wait_for(lambda: not late(), SILENT_S):
                self._lost(late()[0], f"was silent for {SILENT_S} s")
            mending = {0: mending_s, **{rank: self._answered[rank][2] for rank in mates}}
            if max(mending.values()) > APART_S and not all(mending.values()):
                stuck = min(mending, key=lambda rank: mending[rank])
                self._lost(stuck, "is held in a step whose world is gone")
            return all(self._answered[rank][1] for rank in mates)

    def wait_entered(self, generation: int, in_vain: Callable[[], bool]) -> bool:
        """Until all processes of this node train in a generation; False once that is `in_vain`. What the daemon does
        next, it does to nodes that have arrived whole."""
        with self._changed:
            while not all(self._entered.get(rank, 0) >= generation for rank in range(1, self._local_rank.size)):
                if in_vain():
                    return False
                self._changed.wait(0.02)
        return True

    def wait_gone(self, seconds: float) -> None:
        """Until the others have ended in order, or for so long: the node is given back when this process says so."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._gone) == self._local_rank.size - 1, seconds)

    def end(self) -> None:
        """This process was told to end: so are the others."""
        self._put({"ending": True})

    def close(self) -> None:
        """What happens to the others is of no more interest; they are told that this is the end."""
        self._closed = True
        self._put({"bye": True})
        with contextlib.suppress(OSError):
            self._server.close()

    def _put(self, said: Mapping[str, Any]) -> None:
        for stream in list(self._streams.values()):
            stream.put(said)

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
                stream.put(self._said)
            with self._changed:
                if "answer" in line:
                    self._answered[rank] = (int(line["answer"]), bool(line["whole"]), float(line["mending_s"]))
                if line.get("warm"):
                    self._warm.add(rank)
                if "entered" in line:
                    self._entered[rank] = int(line["entered"])
                if line.get("bye"):
                    self._gone.add(rank)
                self._changed.notify_all()
            if "say" in line and self._link is not None:
                self._heard(messages.message_of(line["say"]))
            if line.get("bye"):
                return
        if rank and not self._closed:
            self._lost(rank, "is gone")

    def _heard(self, message: messages.Message) -> None:
        if isinstance(message, messages.Leaving):
            os.kill(os.getpid(), signal.SIGTERM)  # the node leaves as one
        elif self._link is not None:
            self._link.say(message)

    def _lost(self, rank: int, how: str) -> None:
        log.error("process %d of this node %s: the node ends", rank, how)
        if self._link is not None:
            self._link.say(messages.Exited(-signal.SIGKILL))
            self._link.flush(1.0)
        os._exit(LOST)

    def _tell(self) -> None:
        """What is wanted, whole, at every change."""
        link = self._link
        while link is not None and not self._closed:
            wanted = link.plan, link.end, link.leave
            plan, end, leave = wanted
            self._said = {"end": end, "leave": leave, "plan": messages.to_json(plan) if plan is not None else None}
            self._put(self._said)
            with link.changed:
                while (link.plan, link.end, link.leave) == wanted and not self._closed:
                    link.changed.wait(1.0)


class Follower(Wanted):
    """At the other processes of a node: has what `Link` has, from the first process.

    Args:
        name: where they meet.
        place: of this process.
        answers: of the runtime.
    """

    def __init__(self, name: str, local_rank: LocalRank, answers: LocalPeer) -> None:
        super().__init__(answers)
        self._peer = answers
        self._closed = False
        self._stream = _Stream(_connect(name))
        self._stream.put({"rank": local_rank.rank})

    @property
    def last_contact(self) -> float:
        """Now: how long to wait for the daemon is for the first process to say."""
        return time.monotonic()

    def start(self) -> None:
        threading.Thread(target=self._hear, name="malletrain-follow", daemon=True).start()

    def close(self) -> None:
        """What happens to the first process is of no more interest."""
        self._closed = True
        self._stream.put({"bye": True})

    def say(self, message: messages.Message) -> None:
        """What is wrong is passed on; the rest is for the first process to say."""
        if isinstance(message, messages.Warm):
            self._stream.put({"warm": True})
        elif isinstance(message, messages.Switched):
            self._stream.put({"entered": message.generation})
        elif isinstance(message, messages.Fault | messages.Failed | messages.Leaving):
            self._stream.put({"say": messages.to_json(message)})

    def flush(self, seconds: float) -> bool:
        """Nothing is kept back here."""
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
                peer = self._peer
                said = {"answer": line["ask"], "whole": peer.check_in(0).whole, "mending_s": peer.mending_s()}
                self._stream.put(said)
            if line.get("bye"):
                return
        if not self._closed:
            log.error("the first process of this node is gone: so is this one")
            os._exit(LOST)


class _Stream:
    """JSON objects, one a line, in both directions."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._writing = threading.RLock()  # a signal's handler may write in the middle of it

    def put(self, said: Mapping[str, Any]) -> None:
        """Send; a peer that is gone is noticed where lines are read."""
        with self._writing, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(said).encode() + b"\n")

    def lines(self) -> Any:
        """All that comes, until the other side is gone."""
        with contextlib.suppress(OSError), self._connection.makefile("rb") as stream:
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                yield json.loads(line)


def _connect(name: str) -> socket.socket:
    end = time.monotonic() + MEET_S
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
    """Who is at the other end (unix(7), SO_PEERCRED)."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
