"""The actuator's own record of every act: JSON lines, only ever appended to.

Each order leaves one line an action before it is carried out and one after, so that a crash in between shows. The
file is opened for each order: logrotate may move it away at any moment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from malletrain.domain.errors import InvalidInput

#: Its owner alone reads and writes it.
LOG_MODE = 0o600


class AuditLog:
    """Appends to `path`. `now`: Unix seconds."""

    def __init__(self, path: Path, now: Callable[[], float]) -> None:
        """Open the file once, so that a place that cannot be written to is found at the start.

        Raises:
            InvalidInput: it cannot be written there.
        """
        self._path = path
        self._now = now
        try:
            self.write(({"event": "began", "pid": os.getpid()},))
        except OSError as error:
            raise InvalidInput(
                "LOGS_DIRECTORY",
                f"{path} cannot be written ({error.strerror}): make its folder (LogsDirectory= of the unit)",
            ) from error

    def write(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Append one line for each row, all in one write.

        Raises:
            OSError: it could not be written; nothing of these rows counts as recorded.
        """
        at = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds")
        text = "".join(json.dumps({"at": at, **row}) + "\n" for row in rows).encode()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(self._path, flags, LOG_MODE)
        try:
            if os.write(file, text) < len(text):
                raise OSError(0, "written in part: is the disk full?")
        finally:
            os.close(file)
