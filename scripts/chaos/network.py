"""The network between workers and the daemon, as a port that passes connections on."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Network:
    """Passes connections at `host` on to the daemon's port.

    While it is cut nothing arrives, and nothing is refused: what was sent meanwhile arrives afterwards, as from a
    network that retransmits, unless its sender has given up.
    """

    def __init__(self, to: int, host: str = "127.0.0.1") -> None:
        self._to = to
        self._whole = threading.Event()
        self._whole.set()
        self._listener = socket.create_server((host, 0), backlog=1024)
        self.url = f"http://{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="network", daemon=True).start()

    def cut(self) -> None:
        """Deliver nothing from now on."""
        self._whole.clear()

    def mend(self) -> None:
        """Deliver again, and what was sent meanwhile."""
        self._whole.set()

    def close(self) -> None:
        """Pass on no more connections."""
        self._whole.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        self._whole.wait()
        with near, suppress(OSError), socket.create_connection(("127.0.0.1", self._to)) as far:
            back = threading.Thread(target=self._pump, args=(far, near), daemon=True)
            back.start()
            self._pump(near, far)
            back.join()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._whole.wait()
                sink.sendall(data)
        self._whole.wait()
        for each in (source, sink):  # the end of either is the end of both
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
