"""A member's part of a batch in pieces, which other members could have in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from malletrain.elastic.data.sampler import Share

#: What pieces are.
SAMPLES, SHARDS = "samples", "virtual shards"


@dataclass(frozen=True, slots=True)
class Pieces:
    """What a member has of a step, and how to load some of it alone.

    Attributes:
        count: how many pieces.
        kind: what they are, `SAMPLES` or `SHARDS`.
        load: loads the pieces from one to before another: a share, of a batch that is all pieces, and the data.
    """

    count: int
    kind: str
    load: Callable[[int, int], tuple[Share, Any]]
