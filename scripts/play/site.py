"""MalleTrain installed on a lab: its configuration, its daemon as a user of its own, its commands as researchers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.lab import Lab, LabError
from scripts.lab.ports import free_port

BIN = Path(sys.executable).parent

#: Looks and decides every second or two, for plays whose day lasts minutes.
FAST_LOOP = ["tick_s = 2.0"]

#: A payload that takes nodes and no processor time.
SLEEPING = "exec sleep 86400"


@contextmanager
def folder_for_labs() -> Iterator[Path]:
    """A new folder that everybody may enter, removed afterwards; below /tmp, since sockets need short paths."""
    with tempfile.TemporaryDirectory(prefix="mt-", dir="/tmp", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        yield Path(name)


@dataclass
class Site:
    """One daemon on one lab. `settings` are TOML lines by section, added to the small configuration below.

    `program` is malletraind, or another that takes its options. `daemon_user` runs it: a plain user who is
    coordinator of the harvest account where the lab keeps accounts, else Slurm's own user (None: whoever runs this).
    `name`: of its folder, where a lab has two. `client_url`: what researchers' commands are given, if not its own.
    """

    lab: Lab
    daemon_user: str | None = None
    account: str = ""
    settings: dict[str, list[str]] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    program: Sequence[str | Path] = (BIN / "malletraind",)
    name: str = "malletrain"
    client_url: str = ""

    def __post_init__(self) -> None:
        self.directory = self.lab.path.with_name(f"{self.lab.path.name}-{self.name}")
        self.directory.mkdir(exist_ok=True)
        self.log = self.directory / "malletraind.log"
        self.config = self.directory / "malletrain.toml"
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[str] | None = None
        sections: dict[str, list[str]] = {
            "slurm": ['partition = "harvest"', f'account = "{self.account}"'],
            "pool": ["keep_idle = 0"],
            "api": ['host = "127.0.0.1"', f"port = {self.port}", f'url = "{self.url}"'],
            "store": [f'path = "{self.directory}/malletrain.db"'],
        }
        for section, lines in self.settings.items():
            keys = {line.split("=")[0].strip() for line in lines}
            kept = [line for line in sections.get(section, []) if line.split("=")[0].strip() not in keys]
            sections[section] = kept + lines
        text = "".join(f"[{name}]\n" + "".join(f"{line}\n" for line in lines) for name, lines in sections.items())
        self.config.write_text(text)
        client = f'url = "{self.client_url or self.url}"\npartition = "harvest"\naccount = "{self.account}"\n'
        for user in self.lab.users:
            self._install_for(user, client)
        if self.daemon_user:
            import pwd

            entry = pwd.getpwnam(self.daemon_user)
            os.chown(self.directory, entry.pw_uid, entry.pw_gid)

    def _install_for(self, user: str, client: str) -> None:
        import pwd

        entry = pwd.getpwnam(user)
        folder = Path(self.lab.env_for(user)["HOME"]) / ".config" / "malletrain"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "client.toml").write_text(client)
        for path in (folder.parent, folder, folder / "client.toml"):
            os.chown(path, entry.pw_uid, entry.pw_gid)

    # -- the daemon --------------------------------------------------------------------------------------------

    def start(self, *options: str, deadline_s: float = 180.0) -> None:
        """Start malletraind and wait until its API answers.

        Raises:
            LabError: it ended, or does not answer in time; with its last log lines.
        """
        with self.log.open("a") as log:
            self._process = self.lab.popen(
                # It ends with whoever started it, also when that is killed.
                ["setpriv", "--pdeathsig", "TERM", *self.program, "--config", self.config, *options],
                user=self.daemon_user,
                cwd=self.directory,
                stdout=log.fileno(),
                stderr=subprocess.STDOUT,
            )
        end = time.monotonic() + deadline_s
        while not self.is_up():
            if self._process.poll() is not None or time.monotonic() > end:
                raise LabError(f"malletraind is not up after {deadline_s:g} s:\n{self.last_log()}")
            time.sleep(0.05)

    @property
    def pid(self) -> int:
        """The daemon's process: setpriv, through which it is started, becomes it.

        Raises:
            LabError: it does not run.
        """
        if self._process is None:
            raise LabError("malletraind does not run")
        return self._process.pid

    def is_running(self) -> bool:
        """Whether the daemon's process lives."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL to the daemon, if it runs; returns at once."""
        if self._process is not None:
            self._process.kill()

    def is_up(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/v1/health", timeout=10) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def stop(self, number: signal.Signals = signal.SIGTERM, deadline_s: float = 60.0) -> int:
        """End the daemon with a signal; its exit status. SIGKILL is what a crash looks like.

        It finishes its round first, whose Slurm commands may each take their whole time-out on a busy machine.
        """
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.send_signal(number)
        try:
            return process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise LabError(f"malletraind did not end within {deadline_s:g} s:\n{self.last_log()}") from None

    def close(self) -> None:
        """End the daemon, and remove its configuration, journal and log."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def last_log(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text().splitlines()[-lines:]) if self.log.exists() else ""

    # -- researchers -------------------------------------------------------------------------------------------

    def mtbatch(self, user: str, *args: str | Path, trust: bool = True) -> int:
        """Submit a malleable job as `user`; its id. `trust`: its script is not checked beside it, which would take
        some 20 s of a processor from the play."""
        trusted = ["--trust"] if trust else []
        answer = self.lab.run([BIN / "mtbatch", "--parsable", *trusted, *args], user=user)
        return int(answer.stdout.split()[0].split(";")[0])

    def harvest(self, user: str, max_nodes: int, *, tasks: int | None = None, payload: str = SLEEPING) -> int:
        """Submit a job in restart mode that takes 1 to `max_nodes` nodes and never ends; its id.

        Args:
            tasks: held tasks of its array; 8 a node when not given.
            payload: shell lines.
        """
        held = 8 * max_nodes if tasks is None else tasks
        script = Path(self.lab.env_for(user)["HOME"]) / "harvest.sh"
        script.write_text(
            f"#!/bin/bash\n#MALLETRAIN --nodes=1-{max_nodes} --elastic=restart --tasks={held}\n{payload}\n"
        )
        return self.mtbatch(user, script)

    def pilot_nodes(self, user: str) -> int:
        """On how many nodes the daemon sees pilots."""
        return sum(1 for node in self.status(user)["nodes"] if node["state"] == "pilot")

    def malletrain(self, user: str | None, *args: str) -> subprocess.CompletedProcess[str]:
        """Run a `malletrain` command as `user`."""
        return self.lab.run([BIN / "malletrain", *args], user=user)

    def status(self, user: str) -> dict[str, Any]:
        """`malletrain status --json`."""
        answer: dict[str, Any] = json.loads(self.malletrain(user, "status", "--json").stdout)
        return answer

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
