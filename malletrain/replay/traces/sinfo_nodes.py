"""The machine's nodes as `sinfo` has them: a job log names only those that ran a job."""

from __future__ import annotations

from pathlib import Path

from malletrain.domain.errors import InvalidInput
from malletrain.replay.traces.source import Lines, opened
from malletrain.replay.traces.trace import MAX_NODES, Tally
from malletrain.replay.traces.words import expand


def read_machine(path: Path) -> frozenset[str]:
    """The nodes in the output of `sinfo --Node --noheader --format='%N'`, of which lines may have more fields,
    separated by `|`.

    Raises:
        InvalidInput: it cannot be read, or names no node.
    """
    found: set[str] = set()
    with opened(path) as stream:
        lines = Lines(stream, str(path), Tally())
        for line in lines:
            found.update(expand(line.strip().partition("|")[0].strip()) or ())
            if len(found) > MAX_NODES:
                raise InvalidInput(f"{path}:{lines.number}", f"more than {MAX_NODES:,} distinct nodes")
    if not found:
        raise InvalidInput(str(path), "names no node; `malletrain replay --how` prints the sinfo command")
    return frozenset(found)
