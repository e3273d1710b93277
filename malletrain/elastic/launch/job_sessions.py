"""The sessions of a job's script (folds, stages), numbered by their order. Each ends with its `finish()`, and the
next one begins in its world; the job ends with the script.

As a session ends, its final state is saved, in a folder beside checkpoints. A worker that joins later, and a job that
resumes, passes over it: the session takes that state, and has no epochs left.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.state.checkpoint_store import CheckpointStore

_ended: Any = None  #: the runtime of the session that has ended last, for the one that follows
_latest = -1  #: the number of the session that was made last


def begin() -> Any:
    """A session of a job is to be made. Returns the runtime of the one before; None at the first one. Raises
    `ElasticError`: the one before has not ended."""
    if _latest >= 0 and _ended is None:
        raise ElasticError(
            "a second Session before the first one has ended: a job trains one at a time. Call finish() before, or "
            "give one Session all models: Session([model_a, model_b], [optimizer_a, optimizer_b], ...)"
        )
    return _ended


def made(number: int) -> None:
    global _ended, _latest
    _ended, _latest = None, number


def is_latest(number: int) -> bool:
    return number == _latest


def end(runtime: Any) -> None:
    global _ended
    _ended = runtime


def folder_of(base: Path, number: int) -> Path:
    """Where a session's checkpoints are."""
    return base / f"session-{number}" if number else base


def final_of(base: Path, number: int) -> Path:
    """Where the final state of a session is."""
    return base / f"finished-{number}"


def discard(base: Path, last: int) -> None:
    """Remove what all sessions of a job have saved."""
    for number in range(last, -1, -1):
        CheckpointStore(final_of(base, number)).discard()
        CheckpointStore(folder_of(base, number)).discard()
