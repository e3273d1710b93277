"""`malletrain top` on a terminal: a real pseudo-terminal, read until the picture is there."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.api.house import House
from tests.cli.conftest import Desk
from tests.waiting import wait_until
from tests.world import event_of

CODE = "import malletrain.cli.main as m; m.main()"


class Terminal:
    """A process on a terminal of its own, and what it has written so far."""

    def __init__(self, desk: Desk) -> None:
        self.fd, inner = pty.openpty()
        environ = {
            **desk.environ,
            "PYTHONPATH": str(Path.cwd()),
            "TERM": "xterm-256color",
            "COLUMNS": "150",
            "LINES": "30",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE, "top", "--interval=0.5"],
            stdin=inner, stdout=inner, stderr=inner, env=environ, cwd=desk.work, start_new_session=True,
        )  # fmt: skip
        os.close(inner)
        os.set_blocking(self.fd, False)
        self.seen = ""

    def wait_for(self, words: str, times: int = 1) -> None:
        wait_until(lambda: self._read().count(words) >= times, what=words)

    def wait_end(self) -> int | None:
        """Its exit status. A process whose terminal nobody reads may wait to write its last lines."""
        wait_until(lambda: self._read() != "" and self.process.poll() is not None, what="its end")
        return self.process.returncode

    def _read(self) -> str:
        with contextlib.suppress(OSError):  # nothing more for now, or for ever (EIO)
            self.seen += os.read(self.fd, 65536).decode("utf-8", "replace")
        return self.seen

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        os.close(self.fd)


def test_top_draws_again_and_again_until_ctrl_c(desk: Desk, api: House) -> None:
    job = int(desk.mtbatch("--parsable", "train.sh").out)
    terminal = Terminal(desk)
    try:
        terminal.wait_for("digits", times=2)
        terminal.wait_for("job_announced")
        api.journal.append([event_of(time.time(), "job_held", job, reason="a pause for coffee")])
        terminal.wait_for("a pause for coffee")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.wait_end() == 130
        assert "Traceback" not in terminal.seen
    finally:
        terminal.close()


def test_top_outlives_a_daemon_that_is_started_anew(desk: Desk, api: House) -> None:
    terminal = Terminal(desk)
    try:
        terminal.wait_for("no malleable jobs")
        api.server.close()
        terminal.wait_for("trying again")
        assert terminal.process.poll() is None
    finally:
        terminal.close()
