"""malletraind as a process, with systemd's side of the notify socket played by a real one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.lab import Lab
from scripts.lab.ports import free_port
from tests import forked_program

MALLETRAIND = [sys.executable, "-c", "import malletrain.daemon.main as m; m.main()"]
DEADLINE_S = 180.0


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {**kept, "HOME": str(home), "PYTHONPATH": str(Path.cwd()), **more}


def run(tmp_path: Path, *argv: str, environ: dict[str, str] | None = None) -> forked_program.Ended:
    env = environ or environment(tmp_path)
    return forked_program.run("malletrain.daemon.main", argv, env=env, cwd=tmp_path, timeout=DEADLINE_S)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration that listens here, on a port that is its own."""
    port = free_port()
    made = tmp_path / "malletrain.toml"
    made.write_text(
        f'[slurm]\npartition = "harvest"\n[loop]\ntick_s = 1\n[api]\nhost = "127.0.0.1"\n'
        f'port = {port}\nurl = "http://127.0.0.1:{port}"\n[store]\npath = "{tmp_path}/state/journal.db"\n'
    )
    (tmp_path / "state").mkdir()
    return made


def url_of(file: Path) -> str:
    return next(line.split('"')[1] for line in file.read_text().splitlines() if line.startswith("url"))


class Systemd:
    """The manager's side: hears what the service says, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.said: list[str] = []
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._line.bind(str(path))

    def wait(self, condition: Callable[[str], bool], alive: Callable[[], bool] = lambda: True) -> str:
        """The next message that is so, while whoever says it is alive.

        Raises:
            TimeoutError: it did not come.
        """
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline and alive():
            self._line.settimeout(0.2)
            try:
                self.said.append(self._line.recv(4096).decode())
            except TimeoutError:
                continue
            if condition(self.said[-1]):
                return self.said[-1]
        raise TimeoutError

    def close(self) -> None:
        self._line.close()


class Running:
    """A daemon that serves."""

    def __init__(self, process: subprocess.Popen[bytes], systemd: Systemd, log: Path) -> None:
        self.process, self.systemd, self.log = process, systemd, log

    def events(self) -> list[str]:
        """What the log says, in JSON lines."""
        return [json.loads(line)["event"] for line in self.lines()]

    def lines(self) -> list[str]:
        """The log's whole lines: the daemon may be writing the next."""
        return self.log.read_text().rpartition("\n")[0].splitlines()

    def wait_for_log(self, words: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while words not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)


@pytest.fixture
def start(tmp_path: Path, lab: Lab) -> Iterator[Callable[..., Running]]:
    """Starts the daemon with these arguments, and waits until it says that it is ready."""
    made: list[Running] = []

    def begin(*argv: str, **more: str) -> Running:
        systemd = Systemd(tmp_path / f"notify{len(made)}")
        log = tmp_path / f"log{len(made)}"
        environ = {**lab.env, **environment(tmp_path), "PATH": lab.env["PATH"], "NOTIFY_SOCKET": str(systemd.path)}
        with log.open("wb") as stream:
            process = subprocess.Popen([*MALLETRAIND, *argv], stderr=stream, env={**environ, **more}, cwd=tmp_path)
        made.append(Running(process, systemd, log))
        try:
            systemd.wait(lambda said: "READY=1" in said, lambda: process.poll() is None)
        except TimeoutError:
            pytest.fail(f"never ready: {log.read_text()}")
        return made[-1]

    yield begin
    for running in made:
        if running.process.poll() is None:
            running.process.kill()
        running.process.wait(120)
        running.systemd.close()
