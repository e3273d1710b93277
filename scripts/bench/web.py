"""How fast the web page is on a large machine: its first content, each answer, and their sizes.

    python -m scripts.bench.web [--nodes 10000] [--jobs 500] [--hours 6] [--rounds 5] [--json FILE]

An invented past of so many hours lies in a journal on disk. Each answer is asked for `rounds` times over a socket of
this machine, when it is made anew and when it is given again; the peer is /v1/status in the same run, for which
`malletrain status` asks. Chromium then opens a link with an empty cache, `rounds` times: the time until something is
to be read, and until the strip is drawn. Status 1 where one of these medians is above its budget.

Needs Debian's chromium and chromium-driver.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from scripts.play.invented_past import InventedMachine
from scripts.play.page_server import PageServer
from tests.browser import Browser, chromium

FIGURES = ("summary", "machine?hours=6", "machine?hours=24", "jobs", "jobs/7", "studies", "promise", "usage")

#: Seconds: the page's first content, counts and jobs, the strip, and the slowest answer that is made anew.
BUDGET_S = {"first content": 1.0, "first figures": 1.0, "strip drawn": 2.0, "slowest answer": 1.0}

#: Bytes on the wire of all that the first page needs.
BUDGET_BYTES = 300_000


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a budget is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--hours", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    with TemporaryDirectory() as work:
        machine = InventedMachine(
            options.nodes, options.jobs, options.hours, time.time(), mean_main_s=4 * 3600.0, window_s=600.0
        )
        began = time.monotonic()
        with PageServer(Path(work) / "journal.db", machine) as server:
            print(f"{options.nodes} nodes, {options.jobs} jobs, {server.journal.last} events of {options.hours:g} h"
                  f" (written in {time.monotonic() - began:.0f} s)")  # fmt: skip
            answers = _answers(server, options.rounds)
            with chromium(Path(work) / "profile") as browser:
                pages = [_page(browser, server) for _ in range(options.rounds)]
    page = {name: median(each[name] for each in pages) for name in pages[0]}
    slowest = max(row["anew_s"] for name, row in answers.items() if name != "/v1/status")
    found = {name: page[name] for name in BUDGET_S if name in page} | {"slowest answer": slowest}
    for name, seconds in found.items():
        print(f"{name:>16}  {seconds:6.2f} s  (budget {BUDGET_S[name]:g} s)")
    print(f"{'first page':>16}  {page['bytes'] / 1000:6.0f} kB on the wire  (budget {BUDGET_BYTES / 1000:.0f} kB)")
    if options.json:
        options.json.write_text(json.dumps({"answers": answers, "page": page}, indent=1) + "\n")
    kept = all(seconds <= BUDGET_S[name] for name, seconds in found.items()) and page["bytes"] <= BUDGET_BYTES
    return 0 if kept else 1


def _answers(server: PageServer, rounds: int) -> dict[str, dict[str, float]]:
    """Of each answer the median seconds when it is made anew and when it is kept, and its bytes."""
    found = {}
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as http:
        token = server.link("root").partition("#")[2]
        http.headers["X-MalleTrain-Key"] = http.post("/web/session", json={"link": token}).json()["key"]
        peer, size = _timed(server.status, rounds)
        found["/v1/status"] = {"anew_s": peer, "kept_s": peer, "bytes": size}
        print(f"{'answer':>18} {'anew':>9} {'x status':>9} {'kept':>9} {'on the wire':>12}")
        for name in ("/v1/status", *FIGURES):
            if name in FIGURES:
                path = f"/web/data/{name}"
                anew, size = _timed(partial(_bytes, http, path), rounds, server.forget)
                kept, _ = _timed(partial(_bytes, http, path), rounds)
                found[name] = {"anew_s": anew, "kept_s": kept, "bytes": size}
            row = found[name]
            times = f"{1000 * row['anew_s']:6.0f} ms {row['anew_s'] / peer:9.2f} {1000 * row['kept_s']:6.0f} ms"
            print(f"{name:>18} {times} {row['bytes'] / 1000:9.0f} kB")
    return found


def _bytes(http: httpx.Client, path: str) -> int:
    with http.stream("GET", path) as answer:
        answer.raise_for_status()
        return sum(len(part) for part in answer.iter_raw())


def _timed(ask: Callable[[], int], rounds: int, before: Callable[[], None] = lambda: None) -> tuple[float, int]:
    times, size = [], 0
    for _ in range(rounds):
        before()
        began = time.monotonic()
        size = ask()
        times.append(time.monotonic() - began)
    return median(times), size


def _page(browser: Browser, server: PageServer) -> dict[str, Any]:
    """One visit with an empty cache, by a link."""
    browser.open("about:blank")
    browser.command("Network.enable")
    browser.command("Network.clearBrowserCache")
    browser.resize(1280, 900)
    server.forget()
    browser.open(server.link("root"))
    browser.await_that("document.querySelector('.strip canvas')?.width > 300")
    drawn = browser.run("return performance.now()")
    paint = browser.run("return performance.getEntriesByName('first-contentful-paint')[0].startTime")
    figures = browser.run("return performance.getEntriesByName('figures')[0].startTime")
    sizes = browser.run("return performance.getEntries().reduce((sum, each) => sum + (each.transferSize || 0), 0)")
    return {
        "first content": paint / 1000,
        "first figures": figures / 1000,
        "strip drawn": drawn / 1000,
        "bytes": sizes,
    }


if __name__ == "__main__":
    sys.exit(main())
