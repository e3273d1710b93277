"""How long an honest user's `status` takes while others try to keep everybody from being served, all at once.

A private Slurm with several users, malletraind, and a job of pilots. First nothing else happens; then, for as long,
one process of another user's runs every attack of tests/security/test_denial.py at once (stalled bodies, stalled
logins, idle connections, heads that come byte by byte, made-up tokens, floods of requests, logins, jobs), and
workers of that user's flood figures, and messages as heavy as one may be. Printed for both:
percentiles of `status` over a kept connection and with a login, how long a main job waits for nodes that pilots hold,
ticks made and left out, the daemon's memory, and how much the journal has grown.

    python -m scripts.bench.attacks --seconds 60
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from malletrain.wire import messages
from malletrain.wire.address import Address
from malletrain.wire.daemon import client_at
from malletrain.wire.errors import WireError
from malletrain.wire.http import Http
from malletrain.wire.worker_client import PilotIdentity, WorkerClient
from scripts.bench.shared import Connection, memory_mib, options_of
from scripts.lab import Lab, LabConfig, LabError
from scripts.play.site import Site, folder_for_labs

ROOT = Path(__file__).resolve().parents[2]

#: Seconds between two requests of the honest user.
PACE_S = 0.1

#: Connections that each kind of attack keeps open, or makes anew when the daemon closes them.
STALLED = 150


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="each part lasts so long")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--tick", type=float, default=5.0, help="loop.tick_s")
    parser.add_argument("--role", choices=("honest", "attacker", "worker"), help=argparse.SUPPRESS)
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "honest":
        print(json.dumps(honest(options.url, options.seconds)))
    elif options.role == "attacker":
        print(json.dumps(asyncio.run(attack(options.url, options.seconds))))
    elif options.role == "worker":
        flood_figures()
    else:
        return bench(options)
    return 0


# --- roles, each a process of its user's ----------------------------------------------------------------------


def honest(url: str, seconds: float) -> dict[str, list[float]]:
    """Seconds of each `status`: over one connection with one token, and every tenth with a login of its own."""
    kept = client_at(Address(url), os.environ)
    kept.jobs()
    took: dict[str, list[float]] = {"status": [], "login and status": []}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(10):
            began = time.monotonic()
            kept.status()
            took["status"].append(time.monotonic() - began)
            time.sleep(PACE_S)
        began = time.monotonic()
        client_at(Address(url), os.environ).status()
        took["login and status"].append(time.monotonic() - began)
    return took


async def attack(url: str, seconds: float) -> dict[str, int]:
    """Every attack at once; how many connections and requests each has made."""
    where = urlsplit(url)
    done: Counter[str] = Counter()
    http = Http(url, munge_socket=os.environ.get("MUNGE_SOCKET") or None)
    http.get("/v1/jobs", {"limit": 1})
    token = http._token or ""
    post = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n"
    mine = f"Authorization: Bearer {token}\r\n".encode()

    async def stall(name: str, sent: bytes) -> None:
        """A byte a second after `sent`, on a connection that is made anew whenever the daemon closes it."""
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(where.hostname, where.port)
                done[name] += 1
                try:
                    writer.write(sent)
                    while not reader.at_eof() and not writer.is_closing():
                        await asyncio.sleep(1.0)
                        if sent:
                            writer.write(b"x")
                            await writer.drain()
                        else:
                            with contextlib.suppress(TimeoutError):
                                await asyncio.wait_for(reader.read(1), 0.001)
                finally:
                    writer.close()
            await asyncio.sleep(0.05)

    async def flood(name: str, method: str, path: str, token: str | None, body: object) -> None:
        """Requests as fast as they are answered; `token` None: another one each time."""
        while True:
            connection = Connection(where.port or 0)
            with contextlib.suppress(OSError, EOFError, asyncio.LimitOverrunError, ValueError):
                while True:
                    made_up = secrets.token_hex(8)
                    await connection.ask(method, path, made_up if token is None else token, body)
                    done[name] += 1
            connection.close()
            await asyncio.sleep(0.01)

    stalls = {
        "bodies": post % (b"/v1/jobs", 1_000_000, b"\r\n"),
        "bodies of known": post % (b"/v1/jobs", 1_000_000, mine),
        "logins": post % (b"/v1/session", 16_000, b""),
        "idle": b"",
        "heads": b"GET /v1/status HTTP/1.1\r\nX-A: ",
    }
    floods: dict[str, tuple[str, str, str | None, object]] = {
        "made-up tokens": ("GET", "/v1/status", None, None),
        "own requests": ("GET", "/v1/status", token, None),
        "events": ("GET", "/v1/events?limit=5000", token, None),
        "bad logins": ("POST", "/v1/session", "", {"credential": "MUNGE:AwQDAAAAAAAAAAA:"}),
        "announcements": ("POST", "/v1/jobs", token, {"name": "x", "min_nodes": 1, "max_nodes": 4, "weight": 1.0}),
    }
    attacks = [stall(name, sent) for name, sent in stalls.items() for _ in range(STALLED)]
    attacks += [flood(name, *request) for name, request in floods.items() for _ in range(4)]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*attacks)
    return dict(done)


def flood_figures() -> None:
    """In a pilot: figures as fast as the daemon takes them."""
    client = WorkerClient(os.environ["MALLETRAIN_URL"], PilotIdentity.of(os.environ))
    said = [messages.Metric(f"loss {n}", 0.5, n) for n in range(messages.MAX_EVENTS_PER_REPORT)]
    long = {f"{n:0190}": 1.0 for n in range(2000)}
    heavy: list[messages.Message] = [
        messages.Samples(1, 1, 8, 1.0, 1, 8, parts=long),
        messages.Fault(1, 1, "closed", "x" * 3900),
    ]
    while True:
        try:
            if client.welcome is None:
                client.hello()
            client.report(said)
            for message in heavy:
                client.report([message])
        except WireError:
            time.sleep(0.2)


# --- the play -------------------------------------------------------------------------------------------------


def bench(options: argparse.Namespace) -> int:
    config = LabConfig(nodes=options.nodes, profile="fast", users=True)
    settings = {"loop": [f"tick_s = {options.tick}"]}
    with folder_for_labs() as folder, Lab.up(folder / "lab", config) as lab, Site(lab, settings=settings) as site:
        site.start()
        site.harvest("alice", options.nodes)
        lab.wait_for(lambda: site.pilot_nodes("alice") == options.nodes, 90, "pilots on every node")
        print(f"{os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}; {options.seconds:g} s each part")
        print(f"{'':34}{'p50 ms':>8}{'p99 ms':>8}{'most ms':>9}{'requests':>10}")
        part(lab, site, options, "quiet", attacked=False)
        part(lab, site, options, "attacked", attacked=True)
    return 0


def part(lab: Lab, site: Site, options: argparse.Namespace, name: str, *, attacked: bool) -> None:
    attackers = []
    if attacked:
        worker = f"cd {ROOT} && exec {sys.executable} -m scripts.bench.attacks --role worker"
        site.harvest("bob", 1, payload=worker)
        attackers.append(role(lab, site, "attacker", "bob", options.seconds))
    before, began, kept = counted(site), time.monotonic(), journal_bytes(site)
    user = role(lab, site, "honest", "alice", options.seconds)
    waits = [main_job(lab, options) for _ in range(2)]
    out, err = user.communicate(timeout=options.seconds + 120)
    if user.returncode:
        raise LabError(f"the honest user was refused:\n{err[-2000:]}")
    after, passed = counted(site), time.monotonic() - began
    for what, took in json.loads(out).items():
        took.sort()
        p50, p99 = (1000 * took[min(len(took) - 1, int(q * len(took)))] for q in (0.5, 0.99))
        print(f"{name + ': ' + what:34}{p50:8.0f}{p99:8.0f}{1000 * took[-1]:9.0f}{len(took):10}", flush=True)
    print(f"{name}: main jobs had pilots' nodes after {', '.join(f'{each:.1f} s' for each in waits)}")
    expected = passed / options.tick
    made, skipped, failed = (after[key] - before[key] for key in ("ticks", "skipped", "failed"))
    print(f"{name}: {made:.0f} ticks made of {expected:.1f} due, {skipped:.0f} left out, {failed:.0f} failed")
    grown = (journal_bytes(site) - kept) / 2**20
    print(f"{name}: the journal has grown by {grown:.1f} MiB, {60 * grown / passed:.1f} MiB a minute")
    now, most = (memory_mib(site.pid, key) for key in ("VmRSS", "VmHWM"))
    print(f"{name}: the daemon holds {now:.0f} MiB, {most:.0f} at most")
    for attacker in attackers:
        did, err = attacker.communicate(timeout=120)
        if attacker.returncode:
            raise LabError(f"the attacker failed:\n{err[-2000:]}")
        print(f"{name}: connections and requests by attack: {did.strip()}; figures dropped {after['dropped']:.0f}")


def role(lab: Lab, site: Site, name: str, user: str, seconds: float) -> subprocess.Popen[str]:
    asked = ["--role", name, "--url", site.url, "--seconds", str(seconds)]
    return lab.popen(
        [sys.executable, "-m", "scripts.bench.attacks", *asked],
        user=user,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def main_job(lab: Lab, options: argparse.Namespace) -> float:
    """Seconds until a main job runs that wants every node, all held by pilots."""
    lab.wait_for(lambda: harvested(lab) >= options.nodes // 2, 60, "pilots on most nodes")
    began = time.monotonic()
    job = lab.submit("sleep 1", "-p", "batch", f"--nodes={options.nodes}", "--exclusive", "--time=1", user="bob")
    lab.wait_for(lambda: lab.job_state(job) not in ("PENDING", "CONFIGURING"), 120, "the main job")
    return time.monotonic() - began


def harvested(lab: Lab) -> int:
    return len(lab.run(["squeue", "-h", "-p", "harvest", "-t", "R", "-o", "%i"]).stdout.split())


def journal_bytes(site: Site) -> int:
    """Of the journal and its write-ahead log."""
    return sum(file.stat().st_size for file in site.directory.glob("malletrain.db*"))


def counted(site: Site) -> dict[str, float]:
    """From the daemon's own metrics."""
    found = dict.fromkeys(("ticks", "skipped", "failed", "dropped"), 0.0)
    with urllib.request.urlopen(f"{site.url}/metrics", timeout=30) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    for sample in (each for family in families for each in family.samples):
        if sample.name == "malletrain_tick_seconds_count":
            found["ticks"] = max(found["ticks"], sample.value)
        elif sample.name == "malletrain_runs_skipped_total" and sample.labels["timer"] == "tick":
            found["skipped"] = sample.value
        elif sample.name == "malletrain_run_failures_total":
            found["failed"] += sample.value
        elif sample.name == "malletrain_worker_figures_dropped_total":
            found["dropped"] = sample.value
    return found


if __name__ == "__main__":
    sys.exit(main())
