"""Tells systemd how the service is, over the socket named by NOTIFY_SOCKET (sd_notify(3)). Elsewhere: nothing."""

import os
import socket
from collections.abc import Mapping


class Notifier:
    """One service's line to systemd. Losing it never harms the service: a send that fails is reported by `False`."""

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        """`address`: the socket's path, `@name` for an abstract one, or empty for none.

        `watchdog_s`: systemd kills the service after so many seconds without `watchdog()`; None: it does not."""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_s = watchdog_s

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Notifier":
        """The notifier that systemd asks for. WATCHDOG_USEC counts only for the process it names (WATCHDOG_PID)."""
        address = environ.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):  # vsock and others of sd_notify(3) are not needed
            address = ""
        microseconds = environ.get("WATCHDOG_USEC", "")
        named = environ.get("WATCHDOG_PID", "")
        mine = not named or named == str(os.getpid())
        watchdog_s = int(microseconds) / 1e6 if mine and microseconds.isdecimal() and int(microseconds) else None
        return cls(address, watchdog_s)

    def ready(self, status: str = "") -> bool:
        """The service is up (or up again, after `reloading`)."""
        return self._send("READY=1", *([f"STATUS={status}"] if status else []))

    def watchdog(self) -> bool:
        """The service makes progress."""
        return self._send("WATCHDOG=1")

    def reloading(self, monotonic_s: float) -> bool:
        """The configuration is being read again; `monotonic_s` is CLOCK_MONOTONIC now. `ready` ends it."""
        return self._send("RELOADING=1", f"MONOTONIC_USEC={int(monotonic_s * 1e6)}")

    def stopping(self) -> bool:
        """The service is going down."""
        return self._send("STOPPING=1")

    def _send(self, *fields: str) -> bool:
        if not self._address:
            return False
        # A newline would start another field.
        message = "\n".join(field.replace("\n", " ") for field in fields)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
                # systemd reads at once; if it ever does not, the service must not hang on it.
                line.settimeout(1.0)
                line.sendto(message.encode(), self._address)
        except OSError:
            return False
        return True
