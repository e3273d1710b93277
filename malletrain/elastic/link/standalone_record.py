"""What a script says that runs by itself, outside any pilot: figures and its result, one JSON object a line.

A search that tries a script in a process of its own reads there what the daemon would be told otherwise.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from malletrain.wire import messages

#: Names the file; nothing is recorded without it.
RECORD = "MALLETRAIN_RECORD"

_finished = False


class Record:
    """Messages as lines of a file, each written whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def say(self, message: messages.Message) -> None:
        """Add one line."""
        line = json.dumps(messages.to_json(message)) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def find_record(environ: Mapping[str, str]) -> Record | None:
    """Where to write, or None where nobody reads."""
    path = environ.get(RECORD)
    return Record(Path(path)) if path else None


def note_finish() -> None:
    """The training of this process has come to its end."""
    global _finished
    _finished = True


def has_finished() -> bool:
    """Whether `Session.finish` was called in this process."""
    return _finished
