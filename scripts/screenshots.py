"""Pictures of the web page for the documents, from an invented past.

    python -m scripts.screenshots [--folder DIR]     writes web-machine.png, web-job.png, ... (docs/pictures)
    python -m scripts.screenshots --report DIR       writes replay.png, of a report of `malletrain replay`

Needs Debian's chromium and chromium-driver.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.browser import Browser, chromium
from tests.web.invented_past import InventedMachine
from tests.web.page_server import PageServer

FOLDER = Path(__file__).resolve().parents[1] / "docs/pictures"

#: Name, address, width, height, scheme, and what the page has when it is drawn.
SHOTS = (
    ("web-machine.png", "#/", 1180, 900, "light", ".strip canvas"),
    ("web-machine-dark.png", "#/", 1180, 900, "dark", ".strip canvas"),
    ("web-job.png", "#/jobs/2", 1180, 900, "light", ".u-over"),
    ("web-job-dark.png", "#/jobs/2", 1180, 900, "dark", ".u-over"),
)


def main(argv: Sequence[str] | None = None) -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(prog="python -m scripts.screenshots", description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--nodes", type=int, default=24)
    parser.add_argument("--jobs", type=int, default=6)
    options = parser.parse_args(argv)
    options.folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as work:
        if options.report is not None:
            with chromium(Path(work) / "profile") as browser:
                browser.resize(1180, 1000, 1.0)
                browser.open((options.report.resolve() / "index.html").as_uri())
                (options.folder / "replay.png").write_bytes(browser.picture())
            return
        machine = InventedMachine(options.nodes, options.jobs, 6.0, time.time(), window_s=60.0)
        with PageServer(Path(work) / "journal.db", machine) as server, chromium(Path(work) / "profile") as browser:
            browser.open(server.link("ada"))
            browser.await_that("document.querySelector('.tiles')")
            for name, page, width, height, scheme, drawn in SHOTS:
                (options.folder / name).write_bytes(take(browser, server.url, page, width, height, scheme, drawn))


def take(browser: Browser, url: str, page: str, width: int, height: int, scheme: str, drawn: str) -> bytes:
    """One picture, once an element of that selector is there."""
    browser.prefer(scheme)
    browser.resize(width, height, 1.0)
    browser.run("location.hash = arguments[0]", page)
    browser.await_that(f"!document.querySelector('main[aria-busy]') && document.querySelector({drawn!r})")
    time.sleep(0.4)  # a frame of the canvases
    return browser.picture()


if __name__ == "__main__":
    main()
