"""Log lines as entries of systemd's journal with fields of their own (systemd.journal-fields(7)).

`journalctl -u malletraind MALLETRAIN_JOB=3` finds what concerns job 3. MESSAGE is the line that stderr would have.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

SOCKET = Path("/run/systemd/journal/socket")

#: Syslog's number of each level.
PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}

#: journald ignores fields with longer names.
_MAX_NAME = 64

_STRANGE = re.compile(r"[^A-Z0-9_]")


def is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether the stream goes to the journal: $JOURNAL_STREAM names its device and inode (systemd.exec(5))."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


class JournalHandler(logging.StreamHandler[TextIO]):
    """Sends each record, which its formatter makes a line of JSON, to journald's socket; to the stream, with the
    priority in front, where journald does not take it."""

    def __init__(self, stream: TextIO, path: Path = SOCKET) -> None:
        super().__init__(stream)
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)  # a journal that stands still must not stop the daemon

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        fields = json.loads(line)
        priority = PRIORITIES.get(str(fields.get("level")), 6)
        try:
            self._socket.sendto(entry(line, priority, fields), str(self._path))
        except OSError:
            self.stream.write(f"<{priority}>{line}{self.terminator}")
            self.flush()

    def close(self) -> None:
        self._socket.close()
        super().close()


def entry(line: str, priority: int, fields: Mapping[str, Any]) -> bytes:
    """A datagram of journald's native protocol: the line as MESSAGE, and each of its `fields` as MALLETRAIN_NAME."""
    parts = [_field("MESSAGE", line), _field("PRIORITY", str(priority)), _field("SYSLOG_IDENTIFIER", "malletraind")]
    for name, value in fields.items():
        text = value if isinstance(value, str) else json.dumps(value)
        parts.append(_field(f"MALLETRAIN_{_STRANGE.sub('_', name.upper())}"[:_MAX_NAME], text))
    return b"".join(parts)


def _field(name: str, value: str) -> bytes:
    raw = value.encode("utf-8", "replace")
    if b"\n" not in raw:
        return name.encode() + b"=" + raw + b"\n"
    return name.encode() + b"\n" + len(raw).to_bytes(8, "little") + raw + b"\n"
