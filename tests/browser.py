"""A real Chromium, headless, by chromedriver: W3C WebDriver, and Chromium's own commands (Debian's packages)."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.lab.ports import free_port


def is_there() -> bool:
    """Whether this machine has chromium and chromium-driver."""
    return shutil.which("chromedriver") is not None and shutil.which("chromium") is not None


class Browser:
    """A session of chromedriver."""

    def __init__(self, base: str) -> None:
        self.base = base

    def call(self, method: str, path: str, body: object = None) -> Any:
        """One command of WebDriver."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def command(self, name: str, **parameters: Any) -> Any:
        """One command of the DevTools protocol."""
        return self.call("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def open(self, url: str) -> None:
        """Load a page, and wait until it is loaded."""
        self.call("POST", "/url", {"url": url})

    def run(self, script: str, *args: object) -> Any:
        """Run JavaScript that returns a value."""
        return self.call("POST", "/execute/sync", {"script": script, "args": list(args)})

    def await_that(self, condition: str, seconds: float = 60.0) -> Any:
        """Wait until a JavaScript expression is true; returns its value.

        Raises:
            AssertionError: it is not, after so many seconds; with what the page shows.
        """
        deadline = time.monotonic() + seconds
        while True:
            found = self.run(f"return {condition}")
            if found:
                return found
            if time.monotonic() > deadline:
                shown = self.run("return document.body.innerText")
                raise AssertionError(f"{condition} is not so; the page shows:\n{shown}")
            time.sleep(0.03)

    def resize(self, width: int, height: int, scale: float = 1.0) -> None:
        """Make the page's area so large; below 500 it is a phone's."""
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=width < 500,
        )  # fmt: skip

    def prefer(self, scheme: str) -> None:
        """Be a reader who prefers `light` or `dark`, and no motion."""
        wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wanted.items()]
        self.command("Emulation.setEmulatedMedia", features=features)

    def picture(self) -> bytes:
        """What the page's area shows, as PNG."""
        return base64.b64decode(self.call("GET", "/screenshot"))

    def press(self, *keys: str) -> None:
        """Press keys, one after the other; WebDriver's names of special ones, such as \\ue004 for Tab."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def complaints(self) -> list[dict[str, Any]]:
        """What the console has of errors since the last call."""
        return [entry for entry in self.call("POST", "/se/log", {"type": "browser"}) if entry["level"] == "SEVERE"]


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser with its profile in this folder."""
    port = free_port()
    driver = subprocess.Popen(
        ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        root = Browser(f"http://127.0.0.1:{port}")
        deadline = time.monotonic() + 60
        while True:
            try:
                root.call("GET", "/status")
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        args = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--force-color-profile=srgb", f"--user-data-dir={profile}",
        ]  # fmt: skip
        wanted = {"goog:chromeOptions": {"args": args}, "goog:loggingPrefs": {"browser": "ALL"}}
        session = root.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        made = Browser(f"{root.base}/session/{session}")
        try:
            yield made
        finally:  # chromedriver that ends leaves its Chromium running
            made.call("DELETE", "")
    finally:
        driver.terminate()
        driver.wait(60)
