"""Where `malletraind --observe` keeps its journal: beside the daemon's, which holds real jobs only."""

from __future__ import annotations

from pathlib import Path


def observed_path(journal: Path) -> Path:
    """The journal of observation that goes with the daemon's journal at `journal`."""
    return journal.with_name(f"{journal.stem}-observed{journal.suffix}")
