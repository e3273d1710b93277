"""Programs of this package as processes of their own, forked from one that has imported what they use: to import it
anew takes more processor time than most of them do. That they start from nothing, and of which packages, is shown by
tests/cli/test_base_wheel.py, by tests/daemon/test_start_imports.py, and wherever they run on Slurm."""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
IMPORTED = (
    *("cli.main", "cli.mtbatch", "cli.jobs", "cli.logs", "cli.promise", "cli.sizing", "cli.scripts"),
    *("cli.admin.observed", "cli.admin.operators", "cli.admin.setup", "cli.admin.site"),
    *("cli.replay", "replay.report.page", "replay.report.summary", "replay.scoring.journal_score"),
    *("sizing.policies.equal", "sizing.policies.exact", "sizing.policies.lp"),
    *("daemon.main", "daemon.observing", "daemon.service", "daemon.actuator_main", "site_rules"),
)


class Ended(NamedTuple):
    """How a program has ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


@functools.cache
def _server() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Where this process asks for forks, and of which process; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    number = theirs.fileno()
    command = [sys.executable, "-m", __name__, str(number)]
    process = subprocess.Popen(command, pass_fds=[number], cwd=ROOT, stdin=subprocess.DEVNULL)
    theirs.close()
    return ours, process


def run(
    module: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: bytes = b"",
    timeout: float = 180.0,
    imports: Sequence[str] = (),
) -> Ended:
    """`main()` of a module of `malletrain` with these arguments, to its end.

    Args:
        imports: modules besides `IMPORTED` that it uses.

    Raises:
        subprocess.TimeoutExpired: it has not ended in time, and was killed.
    """
    server, _ = _server()
    asked = {"module": module, "argv": [*argv], "env": dict(os.environ if env is None else env)}
    asked |= {"cwd": str(cwd or Path.cwd()), "imports": [*imports]}
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        socket.send_fds(server, [json.dumps(asked).encode()], [given.fileno(), out.fileno(), err.fileno()])
        child = int(server.recv(100))
        server.settimeout(timeout)
        try:
            status = int(server.recv(100))
        except TimeoutError:
            os.kill(child, signal.SIGKILL)
            server.settimeout(None)
            server.recv(100)
            raise subprocess.TimeoutExpired([module, *argv], timeout) from None
        server.settimeout(None)
        out.seek(0)
        err.seek(0)
        return Ended(status, out.read().decode(), err.read().decode())


def _forked(channel: socket.socket) -> dict[str, Any] | None:
    """Fork for whatever is asked; in a child what was asked, and None once nobody asks any more."""
    while True:
        text, streams, _, _ = socket.recv_fds(channel, 1 << 20, 3)
        if not text:
            return None
        found: dict[str, Any] = json.loads(text)
        for name in found["imports"]:
            importlib.import_module(name)
        child = os.fork()
        if child == 0:
            channel.close()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            return found
        for stream in streams:
            os.close(stream)
        channel.send(str(child).encode())
        channel.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(f"malletrain.{name}")
    gc.freeze()
    asked = _forked(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        os.environ.clear()
        os.environ.update(asked["env"])
        time.tzset()
        os.chdir(asked["cwd"])
        sys.argv = ["-c", *asked["argv"]]
        importlib.import_module(asked["module"]).main()
