"""Two daemons on one lab, one active: as two machines would have them, but for the network between."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from scripts.lab import Lab, LabError
from scripts.lab.ports import free_port
from scripts.play.site import Site


class Cable:
    """A port that passes connections on to a daemon's; while it is `cut`, those of the other daemon go nowhere.

    The other daemon is told from all other callers by the route of its requests.
    """

    def __init__(self, port: int, to: int) -> None:
        self.cut = False
        self._to = to
        self._socket = socket.create_server(("127.0.0.1", port), backlog=1024)
        threading.Thread(target=self._accept, name=f"cable-{port}", daemon=True).start()

    def close(self) -> None:
        """Pass on no more connections."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near, suppress(OSError):
            first = near.recv(65536)
            while self.cut and first.startswith(b"POST /v1/failover/"):
                if not near.recv(65536):  # silence, as of a cut: the caller gives up by itself
                    return
            with socket.create_connection(("127.0.0.1", self._to)) as far:
                far.sendall(first)
                back = threading.Thread(target=_pump, args=(far, near), daemon=True)
                back.start()
                _pump(near, far)
                back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@dataclass
class Pair:
    """The two sites. Researchers' commands have both URLs."""

    lab: Lab
    lease_s: float = 4.0
    settings: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shared = self.lab.path.with_name(f"{self.lab.path.name}-shared")
        self.shared.mkdir(exist_ok=True)
        ports = [free_port() for _ in range(2)]
        outside = [free_port() for _ in range(2)]
        urls = [f"http://127.0.0.1:{port}" for port in outside]
        self.cables = [Cable(near, far) for near, far in zip(outside, ports, strict=True)]
        both = {"failover": [f"urls = {json.dumps(urls)}", f'shared = "{self.shared}"', f"lease_s = {self.lease_s}"]}
        self.sites = [
            Site(
                self.lab,
                settings={**self.settings, **both, "api": [f'url = "{urls[i]}"']},
                port=ports[i],
                name=f"malletrain{i}",
                client_url=",".join(urls),
            )
            for i in range(2)
        ]
        for site, url in zip(self.sites, urls, strict=True):
            site.url = url

    def begin(self, which: int) -> None:
        """Start one daemon; returns at once."""
        site = self.sites[which]
        with site.log.open("a") as log:
            site._process = self.lab.popen(
                ["setpriv", "--pdeathsig", "TERM", *site.program, "--config", site.config],
                user=site.daemon_user,
                cwd=site.directory,
                stdout=log.fileno(),
                stderr=log.fileno(),
            )

    def start(self) -> None:
        """Start both, the first as the active one; returns when either may fail."""
        self.begin(0)
        self.await_active(0)
        self.begin(1)
        self.await_paired()

    def is_active(self, which: int) -> bool:
        """Whether this daemon says that it is the active one."""
        answer = http.client.HTTPConnection("127.0.0.1", self.sites[which].port, timeout=1.0)
        try:
            answer.request("GET", "/v1/failover")
            return answer.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            answer.close()

    def paired(self) -> bool:
        """Whether the register says that the passive daemon has all."""
        terms = sorted(self.shared.glob("term-*"))
        return bool(terms) and json.loads(terms[-1].read_text())["pairing"] > 0

    def await_active(self, which: int, deadline_s: float = 90.0) -> float:
        """Wait until it is the active one; seconds that this took."""
        return self._await(lambda: self.is_active(which), f"daemon {which} is not the active one", deadline_s)

    def await_paired(self, deadline_s: float = 240.0) -> float:
        """Wait until either daemon may fail; seconds that this took."""
        return self._await(self.paired, "the passive daemon is not up to date", deadline_s)

    def _await(self, condition, what: str, deadline_s: float) -> float:  # type: ignore[no-untyped-def]
        begun = time.monotonic()
        while not condition():
            if time.monotonic() - begun > deadline_s:
                said = "\n".join(f"--- {site.name}\n{site.last_log(30)}" for site in self.sites)
                raise LabError(f"{what} after {deadline_s:g} s:\n{said}")
            time.sleep(0.02)
        return time.monotonic() - begun

    def signal(self, which: int, number: signal.Signals) -> None:
        """Send a signal to one daemon."""
        process = self.sites[which]._process
        if process is not None:
            process.send_signal(number)
            if number == signal.SIGKILL:
                process.wait(30)

    def close(self) -> None:
        """End both, and remove what they wrote."""
        for which, site in enumerate(self.sites):
            with suppress(ProcessLookupError):
                self.signal(which, signal.SIGCONT)
            site.close()
        for cable in self.cables:
            cable.close()
        shutil.rmtree(self.shared, ignore_errors=True)

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def journal_of(site: Site) -> Path:
    """A daemon's own journal."""
    return site.directory / "malletrain.db"
