"""What workers and the daemon say to each other, as JSON over HTTP.

A worker says `Hello` with a MUNGE credential and gets a `Welcome`; reports are lists of the messages below, each with
its `type`; what the daemon wants of a worker is one `Directive`, got by long poll. A directive always tells the whole
of what is wanted now, never a difference: one that is lost is made good by the next.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from malletrain.wire.codec import MOST, Codec
from malletrain.wire.errors import WireError

#: What a worker's MUNGE credential is made for (`malletrain.wire.munge.statement`).
WORKER_PURPOSE = "malletrain-worker-v1"

#: Marks a field that a release added to what workers send: it is not sent while it has its default.
SPARSE: Mapping[str, bool] = {"sparse": True}

#: Marks texts that are for people, names of figures, and mappings by few names.
WORDS: Mapping[str, int] = {MOST: 400}
NAME: Mapping[str, int] = {MOST: 100}
FEW: Mapping[str, int] = {MOST: 32}

MAX_EVENTS_PER_REPORT = 256


class MessageError(WireError):
    """A message that is not as it should be; the text names the field."""


def pilot_name(array_id: int, task: int, part: int) -> str:
    """What the daemon calls the pilot of a worker: Slurm's name of its task, and which node of several it is on."""
    name = f"{array_id}_{task}"
    return f"{name}+{part}" if part else name


# --- From the daemon ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seat:
    """One member of a world: its name, and `host:port` of the store that it serves."""

    worker: str
    address: str

    @property
    def pilot(self) -> str:
        """The pilot that the worker runs in: the name of a worker is its pilot's and Slurm's restart count."""
        return self.worker.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class Plan:
    """The world of `generation`: its members in rank order, and the store where they meet.

    No members: everyone leaves, the first of the present world saves the state. `urgent`: the present world is
    broken, take this one now; otherwise it is taken when all are prepared, after the same step. `batch`: samples of a
    step, of all members together, where the daemon chooses it (0: it does not). `void_before`: older generations are
    broken; whoever waits for one of them has missed the plan that said so, since only the newest is sent. `secret`:
    proves to other members that a process is one; sent to members alone, "" to others and by daemons that have none.
    `tried`: no check has decided about the script, so the step before the switch is made in both worlds.
    """

    generation: int
    members: tuple[Seat, ...] = ()
    store: str = ""
    reason: str = ""
    urgent: bool = False
    batch: int = 0
    void_before: int = 0
    secret: str = field(default="", repr=False)
    tried: bool = False

    @property
    def workers(self) -> tuple[str, ...]:
        """The members' names in rank order."""
        return tuple(seat.worker for seat in self.members)

    def has(self, worker: str) -> bool:
        """Whether `worker` is a member."""
        return worker in self.workers

    def as_sent_to(self, worker: str) -> Plan:
        """The plan as it is sent to `worker`: without the secret unless it is a member."""
        return self if self.has(worker) else dataclasses.replace(self, secret="")

    def voids(self, generation: int) -> bool:
        """Whether the world of `generation` is broken."""
        return generation < max(self.void_before, self.generation if self.urgent else 0)


@dataclass(frozen=True, slots=True)
class Directive:
    """All that is wanted of one worker now. `seq` grows with every change.

    `check_in`: answer with `CheckedIn` to this number. `end`: stop, the reason. `top_up`: submit so many tasks more.
    `hold`: in restart mode, end the script of the world before, and start none of this plan yet: others still save.
    `given_up`: with `end`, others train on without it, so its script must save nothing any more.
    `losses`: in restart mode, how many workers of its job have been lost so far, or have left by no plan; a script
    may fail because of one. `fixed`: the job keeps its size: its members make no smaller world among themselves.
    """

    seq: int
    plan: Plan | None = None
    check_in: int | None = None
    leave: str | None = None
    end: str | None = None
    top_up: int = 0
    hold: bool = field(default=False, metadata=SPARSE)
    given_up: bool = field(default=False, metadata=SPARSE)
    losses: int = field(default=0, metadata=SPARSE)
    fixed: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to `Hello`. `token` is a secret, good for this worker alone, for `token_s` seconds (0: for ever) or
    until the daemon restarts.

    `mode`: the job takes another size `live`, in process, or by `restart`; or it has independent items, `tasks`.
    """

    worker: str
    token: str
    pilot: str
    heartbeat_s: float  #: read by workers of earlier releases alone
    mode: str = "live"
    token_s: float = 0.0


# --- From a worker --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Standing:
    """The world that a worker trains in, sent with its hello: the daemon may have been restarted since."""

    generation: int
    members: tuple[Seat, ...]
    step: int
    address: str
    seen: int = 0


@dataclass(frozen=True, slots=True)
class Hello:
    """A process inside a pilot presents itself. Slurm's numbers name the pilot and its incarnation."""

    credential: str
    job: int
    slurm_job_id: int
    array_id: int
    task: int
    restart: int
    node: str
    pid: int
    standing: Standing | None = None
    part: int = 0  #: which of the task's nodes, where it holds several

    @property
    def pilot(self) -> str:
        return pilot_name(self.array_id, self.task, self.part)


@dataclass(frozen=True, slots=True)
class Warm:
    """Ready to become a member; `address` is its store, `stages` the seconds that each part of the start took."""

    address: str
    stages: Mapping[str, float] = field(default_factory=dict, metadata=FEW)


@dataclass(frozen=True, slots=True)
class CheckedIn:
    """Alive. `whole`: holds the training state as of `step`, in world `generation`. `answers` is the question's
    number; `stuck_s` for how long the training thread has made no progress."""

    answers: int
    generation: int
    step: int
    whole: bool
    stuck_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Fault:
    """World `generation` does not work: `how` is closed (a peer's connection broke), stalled (a peer is late),
    or build (the group could not be made)."""

    generation: int
    step: int
    how: str
    detail: str = field(default="", metadata=WORDS)


@dataclass(frozen=True, slots=True)
class Switched:
    """Trains in `generation` now. `pause_s` is the time in which no step ran, beyond a normal one (0 in a world that
    begins)."""

    generation: int
    step: int
    nodes: int
    pause_s: float
    grew: bool


@dataclass(frozen=True, slots=True)
class Leaving:
    """Asked to end by someone else (SIGTERM): leaves as soon as it may."""

    why: str = field(metadata=WORDS)


@dataclass(frozen=True, slots=True)
class Left:
    """Out of its world, by `generation` which it has no part in, or by itself (0); its node may be taken.

    `saved`: where the state was saved, if this worker did; `unsaved`: why it could not be, if it was to.
    """

    generation: int
    step: int
    saved: str | None = None
    unsaved: str = field(default="", metadata={**SPARSE, **WORDS})


@dataclass(frozen=True, slots=True)
class Samples:
    """A window of training that ended with `step`; `total` samples of the job are committed by then.

    `steady`: nothing else took time in it, so it tells how fast `nodes` nodes are. `parts`: seconds of the main
    worker's in `data`, `compute` and `sync` (waiting for others). `noise_scale`: the gradient noise scale, in
    samples, where it is measured and known. `rates`: samples per second of its own work, by worker; all end a step
    together, so this alone tells who is slow. `memory_bytes`: the most that the main worker held.
    """

    step: int
    nodes: int
    samples: int
    seconds: float
    steps: int
    total: int
    steady: bool = True
    parts: Mapping[str, float] = field(default_factory=dict, metadata=FEW)
    noise_scale: float | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure that the training script reported, after `samples` samples; None where it was nan or infinite."""

    name: str = field(metadata=NAME)
    value: float | None
    samples: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Training is over; `result` is what the script says of it."""

    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """The script raised an exception."""

    step: int
    message: str


@dataclass(frozen=True, slots=True)
class Exited:
    """The script's process is over (reported by the process that started it): exit status, or minus the signal;
    `said`: the last line that it printed, and where."""

    status: int
    said: str = field(default="", metadata={**SPARSE, **WORDS})


@dataclass(frozen=True, slots=True)
class CheckDone:
    """Whether the script with this digest trains alike at every size: `equal`, `different` or `undecided`, and the
    first sentence of why."""

    digest: str = field(metadata=NAME)
    verdict: str = field(metadata=NAME)
    text: str = field(default="", metadata=WORDS)


@dataclass(frozen=True, slots=True)
class Compared:
    """A step was made in two worlds (`Plan.tried`): how its gradients differ, "" where they do not."""

    text: str = field(default="", metadata=WORDS)


@dataclass(frozen=True, slots=True)
class Stuck:
    """The script has made no step for a minute: file, line and function where it is; "" once it goes on."""

    place: str = field(default="", metadata=WORDS)


@dataclass(frozen=True, slots=True)
class ToppedUp:
    """Another held array was submitted."""

    array_id: int
    tasks: int


OfWorld = Warm | CheckedIn | Fault | Switched | Leaving | Left | Compared
OfScript = Samples | Metric | Finished | Failed | Exited | CheckDone | Stuck
Message = OfWorld | OfScript | ToppedUp

_TYPES: dict[str, type[Any]] = {kind.__name__.lower(): kind for kind in typing.get_args(Message)}

T = TypeVar("T")


def to_json(value: Any) -> dict[str, Any]:
    """A dataclass of this module as JSON; a message carries its `type`. A `SPARSE` field is left out while it has its
    default: a daemon of an earlier release refuses what it has no name for."""
    name, body = type(value).__name__.lower(), _CODEC.to_json(value)
    return {"type": name, **body} if name in _TYPES else body


def message_of(raw: object) -> Message:
    """One message of a report.
    Raises MessageError: unknown type, a field missing, of the wrong type or beyond its bounds."""
    if not isinstance(raw, dict):
        raise MessageError("a message must be an object with a type")
    kind = _TYPES.get(raw["type"]) if isinstance(raw.get("type"), str) else None
    if kind is None:
        raise MessageError(f"type: must be one of {', '.join(sorted(_TYPES))}")
    message: Message = parse(kind, {key: value for key, value in raw.items() if key != "type"})
    return message


def parse(kind: type[T], raw: object, where: str = "") -> T:
    """An object of `kind`, a dataclass of this module, from JSON.
    Raises MessageError: a field is missing, of the wrong type or beyond its bounds."""
    return _CODEC.record(kind, raw, where)


def plain(value: object, where: str) -> Any:
    """JSON of bounded size and depth, as it came; numbers that JSON cannot hold become None.
    Raises MessageError: it is too deep, too long, or nothing that JSON holds."""
    return _CODEC.plain(value, where)


_CODEC = Codec(MessageError, is_bounded=True)
