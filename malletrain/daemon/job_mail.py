"""Tells owners of their jobs' begin and end: by the site's program, its webhook, or both.

The program is started without a shell. What users choose (a job's name, an address) is checked or cleaned before it
stands in an argument, in its input or in its environment; time, length and number of messages are bounded.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from urllib.parse import urlsplit

from malletrain.config import NotifySection
from malletrain.domain.errors import Refused
from malletrain.domain.job import MailType
from malletrain.loop.job_notices import JobNotice

#: Characters of a job's name, and of a reason, in a message.
MAX_NAME_CHARACTERS, MAX_REASON_CHARACTERS = 60, 1000

#: Bytes of what a failing program says that are kept.
MAX_COMPLAINT_BYTES = 300

#: A job's owner who has not had a message for so long (seconds) is forgotten.
_HOUR_S = 3600.0


class JobMail:
    """Sends one message at a time.

    Args:
        settings: of the site.
        token: that the webhook is shown; "" for none.
        elapsed: monotonic seconds.
    """

    def __init__(self, settings: NotifySection, token: str, elapsed: Callable[[], float]) -> None:
        self._settings = settings
        self._token = token
        self._elapsed = elapsed
        self._sent: dict[int, deque[float]] = {}
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._calls: list[threading.Thread] = []

    @property
    def is_on(self) -> bool:
        """Whether the site sends anything."""
        return bool(self._settings.command or self._settings.webhook)

    def address_of(self, user: str, given: str) -> str:
        """The address of a user's mail: the one that they gave, or their own name.

        Raises:
            Refused: the address is not permitted here.
        """
        name, at, domain = (given or user).partition("@")
        if not at:
            if name != user:
                raise Refused(
                    f"--mail-user={given[:80]} is not your own name: give a whole address, as {given[:40]}@..."
                )
            return f"{user}@{self._settings.mail_domain}" if self._settings.mail_domain else user
        allowed = {each.lower() for each in self._settings.domains}
        if allowed and domain.lower() not in allowed:
            raise Refused(f"--mail-user: this site sends to addresses of {', '.join(sorted(allowed))} only")
        return given

    def send(self, notice: JobNotice) -> str:
        """Send a message; why it could not be sent, or "". Never raises, and takes twice `timeout_s` at most."""
        if not self._may_send(notice.job.uid):
            return f"more than {self._settings.per_hour} messages in an hour (notify.per_hour): left out"
        faults = []
        if self._settings.command:
            faults.append(self._run(notice))
        if self._settings.webhook:
            faults.append(self._post(notice))
        return "; ".join(filter(None, faults))

    def end(self) -> None:
        """Give up what is being sent. Called by another thread than `send`."""
        self._ended.set()
        if (process := self._process) is not None:
            _kill(process)

    def _may_send(self, uid: int) -> bool:
        now = self._elapsed()
        self._sent = {user: times for user, times in self._sent.items() if times[-1] > now - _HOUR_S}
        times = self._sent.setdefault(uid, deque(maxlen=self._settings.per_hour))
        if len(times) == times.maxlen and times[0] > now - _HOUR_S:
            return False
        times.append(now)
        return True

    # --- a program --------------------------------------------------------------------------------------------

    def _run(self, notice: JobNotice) -> str:
        values = {"address": notice.job.mail_user, "subject": subject(notice)}
        command = [re.sub(r"\{(\w+)\}", lambda m: values[m[1]], word) for word in self._settings.command]
        facts = {f"MALLETRAIN_{name.upper()}": str(value) for name, value in _facts(notice).items()}
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TZ") if name in os.environ}
        # What it says is read once it has ended: if it says more than a pipe holds, it is ended.
        hear, say = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(say, True)
        try:
            process = self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=say, start_new_session=True,
                env={**kept, "LANG": "C.UTF-8", **facts}, cwd="/",
            )  # fmt: skip
            try:
                assert process.stdin is not None
                with suppress(BrokenPipeError), process.stdin as stream:
                    stream.write(text(notice).encode())
                status = process.wait(0 if self._ended.is_set() else self._settings.timeout_s)
            except subprocess.TimeoutExpired:
                return f"{command[0]} has not ended within {self._settings.timeout_s:g} s"
            finally:
                _kill(process)
                process.wait()
                self._process = None
            if status == 0:
                return ""
            said = ""
            with suppress(BlockingIOError):
                said = os.read(hear, MAX_COMPLAINT_BYTES).decode("utf-8", "replace").strip()
                said = _clean(said, MAX_COMPLAINT_BYTES)
            return f"{command[0]} ended with status {status}{f': {said}' if said else ''}"
        except OSError as error:
            return f"{command[0]} cannot be run: {error.strerror}"
        finally:
            os.close(hear)
            os.close(say)

    # --- a webhook --------------------------------------------------------------------------------------------

    def _post(self, notice: JobNotice) -> str:
        self._calls = [call for call in self._calls if call.is_alive()]
        if self._calls:
            return "the webhook's name is still being looked up for an earlier message"
        parts, limit = urlsplit(self._settings.webhook), self._settings.timeout_s
        said = [f"the webhook has not answered within {limit:g} s"]
        try:
            connection = self._connection(parts.scheme, parts.hostname or "", parts.port, limit)
        except (OSError, ValueError) as error:
            return f"the webhook cannot be called: {error}"

        def call() -> None:
            try:
                headers = {"Content-Type": "application/json", "User-Agent": "malletrain"}
                if self._token:
                    headers["Authorization"] = f"Bearer {self._token}"
                path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
                connection.request("POST", path, json.dumps(_facts(notice)).encode(), headers)
                status = connection.getresponse().status
                said[0] = "" if 200 <= status < 300 else f"the webhook answers {status}"
            except TimeoutError:
                pass
            except (OSError, ValueError, http.client.HTTPException) as error:
                said[0] = f"the webhook cannot be reached: {_clean(str(error), MAX_COMPLAINT_BYTES)}"

        # In a thread of its own: a server that sends a byte a second would never time out.
        thread = threading.Thread(target=call, name="webhook", daemon=True)
        thread.start()
        thread.join(limit)
        answer = said[0]
        if thread.is_alive():
            if (line := connection.sock) is not None:
                with suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)
            thread.join(1.0)
            if thread.is_alive():
                self._calls.append(thread)
        connection.close()
        return answer

    def _connection(self, scheme: str, host: str, port: int | None, limit: float) -> http.client.HTTPConnection:
        if scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=limit)
        context = ssl.create_default_context(cafile=self._settings.webhook_ca or None)
        return http.client.HTTPSConnection(host, port, timeout=limit, context=context)


def subject(notice: JobNotice) -> str:
    """One line."""
    job = notice.job
    became = "has begun to train" if notice.what is MailType.BEGIN else f"is over: {notice.phase.value}"
    return f"MalleTrain job {job.id} ({_clean(job.name, MAX_NAME_CHARACTERS)}) {became}"


def text(notice: JobNotice) -> str:
    """The message. No line begins with a character that a mail program might take for a command."""
    when = datetime.fromtimestamp(notice.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    lines = [f"{subject(notice)}.", "", f"Time:     {when}"]
    if notice.samples:
        lines.append(f"Trained:  {notice.samples:.0f} samples")
    if notice.reason:
        lines.append(f"Reason:   {_clean(notice.reason, MAX_REASON_CHARACTERS)}")
    return "\n".join([*lines, f"More:     malletrain status {notice.job.id}; malletrain logs {notice.job.id}", ""])


def _facts(notice: JobNotice) -> dict[str, str | int | float]:
    job = notice.job
    return {
        "job": job.id,
        "name": _clean(job.name, MAX_NAME_CHARACTERS),
        "user": job.user,
        "address": job.mail_user,
        "event": notice.what.value,
        "state": notice.phase.value,
        "reason": _clean(notice.reason, MAX_REASON_CHARACTERS),
        "at": round(notice.at, 3),
        "subject": subject(notice),
    }


def _clean(words: str, characters: int) -> str:
    """A line: a line break in a name could begin another header or command."""
    return "".join(c if c.isprintable() else " " for c in words[:characters])


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a program and what it has started in its session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
