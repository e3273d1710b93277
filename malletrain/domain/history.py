"""What the journal has of the past, as values. Times in Unix seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeStay:
    """A pilot of `job`, whose owner is `uid`, held `node`; `ended_at` None: it does still."""

    job: int
    uid: int
    node: str
    started_at: float
    ended_at: float | None
    preempted: bool = False


@dataclass(frozen=True, slots=True)
class HoleChange:
    """From `at` on, `nodes` have no main job (`opened`), or have one or are away (`taken`: by the main queue)."""

    at: float
    nodes: tuple[str, ...]
    opened: bool
    taken: bool = False


@dataclass(frozen=True, slots=True)
class WorldChange:
    """A job went over from `before` nodes to `nodes`, and stood still for `pause_s`."""

    at: float
    generation: int
    before: int
    nodes: int
    pause_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TrainingWindow:
    """A job trained on `nodes` nodes for `seconds` until `at`, `rate` samples per second."""

    at: float
    nodes: int
    seconds: float
    rate: float


@dataclass(frozen=True, slots=True)
class MainJobMeeting:
    """A job of the main queue that pilots made room for. `asked_at`: when the first was asked to leave; `started_at`:
    when it began on a node that a pilot had; `preempted`: pilots that Slurm took a node from for it."""

    main_job: str
    user: str
    asked_at: float | None
    started_at: float | None
    nodes: int = 0
    preempted: int = 0

    @property
    def delay_s(self) -> float | None:
        """Seconds from when the first pilot was asked to leave until it began; None where one is not known."""
        if self.asked_at is None or self.started_at is None:
            return None
        return max(0.0, self.started_at - self.asked_at)
