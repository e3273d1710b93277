"""Tells owners of their jobs' begin and end: the site's program (`notify.hook`) gets each message as JSON.

The program is started without a shell, with the arguments of the configuration. What users choose (a job's name, an
address) is checked or cleaned; time, length and number of messages are bounded."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress

from malletrain.api.rate_limits import TokenBuckets
from malletrain.domain.job import MailType
from malletrain.loop.job_state import JobNotice
from malletrain.loop.ports import Clock
from malletrain.wire.codec import one_line

#: Characters of a job's name, and of a reason, in a message: all of it is less than a pipe holds.
MAX_NAME_CHARACTERS, MAX_REASON_CHARACTERS = 60, 1000

#: Bytes of what a failing program says that are kept.
MAX_COMPLAINT_BYTES = 300

#: Messages to one user at once, and in each further hour; what is more is left out.
MAX_MESSAGES_PER_HOUR = 60


class NoticeHook:
    """Sends one message at a time. `command`: program and arguments; empty: nothing is sent here. `timeout_s`:
    seconds that it may take; it is ended then, with what it has started."""

    def __init__(self, command: Sequence[str], clock: Clock, timeout_s: float = 10.0) -> None:
        self._command, self._timeout_s = list(command), timeout_s
        self._budget = TokenBuckets(MAX_MESSAGES_PER_HOUR / 3600, MAX_MESSAGES_PER_HOUR, clock)
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_on(self) -> bool:
        """Whether the site sends anything."""
        return bool(self._command)

    def send(self, notice: JobNotice) -> str:
        """Send a message; why it could not be sent, or "". Never raises, and takes `timeout_s` at most."""
        if not self._budget.has(str(notice.job.uid)):
            return f"more than {MAX_MESSAGES_PER_HOUR} messages to one user in an hour: left out"
        program = self._command[0]
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TZ") if name in os.environ}
        # What it says is read once it has ended: if it says more than a pipe holds, it is ended.
        hear, say = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(say, True)
        try:
            process = self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=say,
                start_new_session=True,
                env={**kept, "LANG": "C.UTF-8"},
                cwd="/",
            )
            try:
                assert process.stdin is not None
                with suppress(BrokenPipeError), process.stdin as stream:
                    stream.write(message(notice))
                status = process.wait(0 if self._ended.is_set() else self._timeout_s)
            except subprocess.TimeoutExpired:
                return f"{program} has not ended within {self._timeout_s:g} s"
            finally:
                _kill(process)
                process.wait()
                self._process = None
            if status == 0:
                return ""
            said = ""
            with suppress(BlockingIOError):
                said = os.read(hear, MAX_COMPLAINT_BYTES).decode("utf-8", "replace").strip()
                said = one_line(said, MAX_COMPLAINT_BYTES)
            return f"{program} ended with status {status}{f': {said}' if said else ''}"
        except OSError as error:
            return f"{program} cannot be run: {error.strerror}"
        finally:
            os.close(hear)
            os.close(say)

    def end(self) -> None:
        """Give up what is being sent. Called by another thread than `send`."""
        self._ended.set()
        if (process := self._process) is not None:
            _kill(process)


def message(notice: JobNotice) -> bytes:
    """The message as the program reads it: one JSON object in one line."""
    job = notice.job
    name = one_line(job.name, MAX_NAME_CHARACTERS)  # a line break could begin another header
    became = "has begun to train" if notice.what is MailType.BEGIN else f"is over: {notice.phase.value}"
    facts = {
        "job": job.id,
        "name": name,
        "user": job.user,
        "address": job.mail_user,
        "event": notice.what.value,
        "state": notice.phase.value,
        "reason": one_line(notice.reason, MAX_REASON_CHARACTERS),
        "samples": notice.samples,
        "at": round(notice.at, 3),
        "subject": f"MalleTrain job {job.id} ({name}) {became}",
    }
    return json.dumps(facts).encode() + b"\n"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a program and what it has started in its session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
