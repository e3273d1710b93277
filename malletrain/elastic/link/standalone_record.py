"""Reports of a script that runs outside a pilot, written to a file as one JSON object a line.

A study that runs its trials as plain processes reads this file instead of the daemon's journal.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping

from malletrain.wire import messages

#: Environment variable with the file's path; without it nothing is recorded.
RECORD_VARIABLE = "MALLETRAIN_RECORD"

#: Set once `Session.finish` was called in this process.
FINISHED = threading.Event()


def record(environ: Mapping[str, str], message: messages.Message) -> None:
    """Append a message, in a single write, to the file that the environment names; it is made with the first one."""
    if not environ.get(RECORD_VARIABLE):
        return
    line = json.dumps(messages.to_json(message)) + "\n"
    descriptor = os.open(environ[RECORD_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
