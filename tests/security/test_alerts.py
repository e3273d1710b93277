"""Each alert that the documents name is made to fire, and health says what is wrong while it is.

The expressions are read from the document; those that need Slurm are fired on a daemon of its own, on a real one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from malletrain.daemon.metrics import Metrics, RunHealth
from malletrain.daemon.process.timers import Timers
from malletrain.wire import munge
from malletrain.wire.messages import WORKER_PURPOSE
from scripts.lab import Lab
from tests.api.house import Caller, House
from tests.daemon.running import Running, file, start, url_of
from tests.loop.test_strays import plain
from tests.small_disk import fill, small_disk
from tests.world import World, job, main_job

__all__ = ["file", "small_disk", "start"]

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "admin-operate.md"
SHAPES = {
    "increase": re.compile(r"increase\((\w+)\[\w+\]\) > (\d+)"),
    "age": re.compile(r"time\(\) - (\w+) > (\d+)"),
    "equals": re.compile(r"(\w+) == (\d+)"),
    "below": re.compile(r"(\w+) < ([\de.+]+)"),
}


@dataclass(frozen=True)
class Alert:
    shape: str
    metric: str
    limit: float

    def fires(self, before: str, after: str, at: float) -> bool:
        """On two scrapes; a series that was not in the first has no increase, as for Prometheus."""
        old, new = (samples(page, self.metric) for page in (before, after))
        assert new, f"{self.metric} has no sample"
        match self.shape:
            case "increase":
                return any(value - old[key] > self.limit for key, value in new.items() if key in old)
            case "age":
                return any(at - value > self.limit for value in new.values())
            case "equals":
                return any(value == self.limit for value in new.values())
            case _:
                return any(value < self.limit for value in new.values())


def samples(page: str, metric: str) -> dict[str, float]:
    return {
        str(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == metric
    }


def documented() -> dict[str, Alert]:
    """The expressions of the document's table, by metric."""
    found = {}
    for expression in re.findall(r"^\| `([^`]+)` \|", DOCUMENT.read_text(), re.MULTILINE):
        if "malletrain_" not in expression:
            continue
        shape, match = next((s, m) for s, p in SHAPES.items() if (m := p.fullmatch(expression)))
        found[match[1]] = Alert(shape, match[1], float(match[2]))
    return found


IN_PROCESS = {
    "malletrain_preemptions_total", "malletrain_run_failures_total", "malletrain_runs_skipped_total",
    "malletrain_strays_total",
}  # fmt: skip
ON_SLURM = {
    "malletrain_breaker_open", "malletrain_snapshot_timestamp_seconds", "malletrain_journal_writable",
    "malletrain_journal_free_bytes", "malletrain_workers_refused_total",
}  # fmt: skip


def test_every_documented_alert_has_a_test() -> None:
    assert set(documented()) == IN_PROCESS | ON_SLURM


def test_every_metric_in_the_documents_is_there() -> None:
    words = "\n".join(page.read_text() for page in DOCUMENT.parents[1].rglob("*.md"))
    named = set(re.findall(r"\bmalletrain_[a-z_]+(?:_total|_seconds|_bytes|_open|_writable|_events)\b", words))
    metrics = Metrics(World().clock)
    page = metrics.render().decode()
    assert {name for name in named if f"# TYPE {name} " not in page} == set()


def test_preemptions() -> None:
    world = World()
    metrics = Metrics(world.clock)
    world.submit(job(1, most=4))
    world.tick()
    world.tick()
    before = metrics.render().decode()
    world.cluster.set_main([main_job(99, nodes=[sorted(world.running())[0]])])
    world.tick()
    metrics.record(world.journal.events)
    assert documented()["malletrain_preemptions_total"].fires(before, metrics.render().decode(), 0.0)


def test_jobs_that_are_no_pilots() -> None:
    world = World()
    metrics = Metrics(world.clock)
    before = metrics.render().decode()
    world.cluster.plain = (plain(70, "n0"),)
    world.tick()
    metrics.record(world.journal.events)
    assert documented()["malletrain_strays_total"].fires(before, metrics.render().decode(), 0.0)


def test_failed_and_skipped_runs() -> None:
    """Of the real timers; an interval is a hundredth of a second."""
    metrics = Metrics(World().clock)
    runs = RunHealth(lambda task: metrics.failures.labels(task).inc())
    skipped, go_on = threading.Event(), threading.Event()

    def late(task: str) -> None:
        metrics.skipped.labels(task).inc()
        count = samples(metrics.render().decode(), "malletrain_runs_skipped_total")["[('timer', 'watch')]"]
        if count > 3:
            skipped.set()

    def fail() -> None:
        with runs.run("tick"):
            raise RuntimeError

    before = metrics.render().decode()
    timers = Timers(failed=lambda *_: None, late=late, elapsed=time.monotonic)
    timers.every("tick", 0.01, fail)
    timers.every("watch", 0.01, lambda: go_on.wait(60))
    timers.start()
    assert skipped.wait(60)
    go_on.set()
    timers.stop()
    after = metrics.render().decode()
    assert documented()["malletrain_run_failures_total"].fires(before, after, 0.0)
    assert documented()["malletrain_runs_skipped_total"].fires(before, after, 0.0)
    assert "tick failed" in runs.ailments()[0]


def test_health_is_503_while_a_task_fails(house: House) -> None:
    """And well again with the first run that does not."""
    runs = RunHealth(lambda _: None)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), runs.run("tick"):
            _ = 1 / 0
    house.ailments[:] = runs.ailments()
    answer = Caller(house).get("/v1/health")
    assert (answer.status_code, answer.json()["status"]) == (503, "ill")
    assert "ZeroDivisionError" in answer.text
    with runs.run("tick"):
        pass
    house.ailments[:] = runs.ailments()
    assert Caller(house).get("/v1/health").status_code == 200


# --- on a real Slurm -------------------------------------------------------------------------------------------


class Watched:
    """A daemon, as Prometheus and a load balancer see it."""

    def __init__(self, url: str, running: Running) -> None:
        self.url, self.running = url, running

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self) -> str:
        return self.get("/metrics")[1]

    def health(self) -> tuple[int, str]:
        status, words = self.get("/v1/health")
        return status, "; ".join(json.loads(words)["ailments"])

    def log(self) -> str:
        """Without the requests, which are mostly this test's."""
        lines = self.running.log.read_text().splitlines()
        return "\n".join(line for line in lines if '"event": "request"' not in line)

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 180.0) -> float:
        """Until it is so; how long that took."""
        begun = time.monotonic()
        while not condition():
            assert self.running.process.poll() is None, self.log()
            assert time.monotonic() - begun < seconds, f"{what}: {self.health()}\n{self.log()}"
            time.sleep(0.1)
        return time.monotonic() - begun


@pytest.mark.slurm
def test_a_daemon_says_what_is_wrong_with_it(
    start: Callable[..., Running], file: Path, small_disk: Path, tmp_path: Path, lab: Lab
) -> None:
    away, fakes = tmp_path / "away", tmp_path / "bin"
    fakes.mkdir()
    for name in ("squeue", "scontrol", "sdiag", "sinfo"):
        # As Slurm's clients do: they try for a while, then say so.
        (fakes / name).write_text(
            f"#!/bin/sh\nif test -e {away}; then sleep 1; echo Unable to contact slurm controller >&2; exit 1; fi\n"
            f'exec {shutil.which(name)} "$@"\n'
        )
        (fakes / name).chmod(0o755)
    journal = small_disk / "journal.db"
    text = file.read_text().replace(str(tmp_path / "state" / "journal.db"), str(journal))
    file.write_text(text.replace("[store]", "[store]\nmin_free_mb = 1"))
    running = start("--config", str(file), PATH=f"{fakes}:{os.environ['PATH']}")
    daemon, alerts = Watched(url_of(file), running), documented()
    snapshot = "malletrain_snapshot_timestamp_seconds"

    def fires(name: str, before: str = "", at: float = 0.0) -> bool:
        return alerts[name].fires(before, daemon.metrics(), at or time.time())

    daemon.wait(lambda: not fires(snapshot), "the first look")
    daemon.wait(lambda: daemon.health() == (200, ""), "well")
    assert not any(fires(name) for name in ("malletrain_breaker_open", "malletrain_journal_writable"))

    # a disk that gets full
    with (small_disk / "first").open("wb") as first:
        first.write(b"x" * 1_100_000)
    daemon.wait(lambda: fires("malletrain_breaker_open"), "low disk")
    daemon.wait(lambda: fires("malletrain_journal_free_bytes"), "low disk")
    status, words = daemon.health()
    assert (status, "store.min_free_mb" in words) == (503, True)
    # full, and Slurm away: a fact to be written
    fill(journal)
    credential = munge.encode(munge.statement(WORKER_PURPOSE, daemon.url), lab.env.get("MUNGE_SOCKET"))
    away.touch()
    assert daemon.wait(lambda: "`scontrol ping`" in daemon.health()[1], "Slurm away") < 60.0
    assert daemon.health()[0] == 503
    daemon.wait(lambda: fires("malletrain_journal_writable"), "a full disk")
    running.wait_for_log("the journal cannot be written: nothing new starts")
    assert fires(snapshot, at=time.time() + 120)
    (small_disk / "ballast").unlink()
    (small_disk / "first").unlink()
    daemon.wait(lambda: not fires("malletrain_journal_writable"), "room again")
    running.wait_for_log("the journal is written again")
    away.unlink()
    seen = samples(daemon.metrics(), snapshot)
    daemon.wait(lambda: samples(daemon.metrics(), snapshot) != seen, "the look after it is back")
    daemon.wait(lambda: daemon.health() == (200, ""), "well again")

    # a process that says it is a worker
    before = daemon.metrics()
    body = {
        "credential": credential, "job": 99, "slurm_job_id": 1, "array_id": 7, "task": 0, "restart": 0,
        "node": "n1", "pid": 1, "standing": None,
    }  # fmt: skip
    request = urllib.request.Request(f"{daemon.url}/v1/workers/hello", json.dumps(body).encode())
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    assert refused.value.code == 403
    assert fires("malletrain_workers_refused_total", before)
    assert samples(daemon.metrics(), "malletrain_run_failures_total")["[('timer', 'tick')]"] == 0
