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
