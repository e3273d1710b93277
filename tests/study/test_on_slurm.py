"""A study whose trials are malleable jobs: real Slurm, real daemon, real trainings, while main jobs preempt."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from scripts.lab import Lab, LabConfig
from scripts.play.site import BIN, Site
from tests.messages import says
from tests.quick_site import QUICK, quick_site
from tests.study.tiny import HEAD, OBJECTIVE

pytestmark = pytest.mark.slurm

PACED = OBJECTIVE.replace('{"x": x}', '{"x": x, "epochs": 8, "pause": 0.25}').replace(
    "samples_per_step=8", 'samples_per_step=8, nodes="1-2"'
)


@pytest.fixture
def site(lab_factory) -> Iterator[Site]:  # type: ignore[no-untyped-def]
    with quick_site(lab_factory, last_words) as running:
        yield running


def last_words(site: Site) -> str:
    return f"{site.last_log()} {site.malletrain('alice', 'events').stdout[-6000:]}"


def write(site: Site, *parts: str) -> Path:
    """A study file in a folder of alice's."""
    folder = Path(site.lab.env_for("alice")["HOME"]) / f"study-{time.monotonic_ns()}"
    path = folder / "small.py"
    site.lab.run(["mkdir", "-p", folder], user="alice")
    site.lab.run(["tee", path], user="alice", input="".join(parts))
    return path


def begin(site: Site, path: Path, *options: str) -> subprocess.Popen[str]:
    return site.lab.popen(
        [BIN / "malletrain", "study", "run", path, *options],
        user="alice", cwd=path.parent, stderr=subprocess.PIPE,
    )  # fmt: skip


@contextmanager
def no_longer_than_the_test(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def rows(site: Site, path: Path) -> list[dict]:  # type: ignore[type-arg]
    done = site.lab.run([BIN / "malletrain", "study", "trials", path, "--json"], user="alice", cwd=path.parent)
    listed: list[dict] = json.loads(done.stdout)  # type: ignore[type-arg]
    return listed


def jobs(site: Site) -> list[dict]:  # type: ignore[type-arg]
    return list(json.loads(site.malletrain("alice", "status", "--all", "--json").stdout)["jobs"])


def empty(lab: Lab) -> bool:
    return not lab.run(["squeue", "-a", "-h", "-r", "-p", "harvest"]).stdout.strip()


def test_trials_are_jobs_and_main_jobs_take_their_nodes(site: Site) -> None:
    lab = site.lab
    path = write(site, HEAD, PACED)
    process = begin(site, path, "--trials", "5")
    with no_longer_than_the_test(process):
        lab.wait_for(
            lambda: any(row["members"] or row["phase"] == "completed" for row in jobs(site)),
            240,
            "the first trial that trains",
        )
        for _ in range(3):  # the main queue wants half of the nodes, again and again
            main = lab.submit("sleep 2", "--nodes=2", "--exclusive", user="bob")
            lab.wait_for_state(main, "COMPLETED")
        _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    listed = rows(site, path)
    assert [row["ended_as"] for row in listed if row["ended_as"] != "completed"] == []
    assert len(listed) == 5
    assert all(row["values"] == [pytest.approx(8 * row["params"]["x"])] for row in listed)
    assert len({job for row in listed for job in row["jobs"]}) == 5
    # One that ends before the daemon's next look has none yet.
    assert any(row["node_hours"] > 0 for row in listed)
    assert sorted(job["phase"] for job in jobs(site)) == ["completed"] * 5
    lab.wait_for(lambda: empty(lab), 120, "an empty harvest partition")


@pytest.mark.nightly
def test_pruned_and_faulty_trials_free_their_nodes_and_are_told_apart(site: Site) -> None:
    objective = """
pruner = optuna.pruners.ThresholdPruner(lower=0.0)

def objective(trial):
    n = trial.number
    if n == 0:
        return study.train(trial, missing)["value"]
    if n == 1:
        return study.train(trial, fit, {"x": 1.0}, nodes="64-128")["value"]
    x = -1.0 if n == 2 else 1.0
    return study.train(trial, fit, {"x": x, "epochs": 600 if n == 2 else 2, "pause": 0.5}, watch="value")["value"]


def missing():
    import there_is_no_such_module
"""
    path = write(site, HEAD, objective)
    done = site.lab.run(
        [BIN / "malletrain", "study", "run", path, "--trials", "2", "--concurrent", "1"],
        user="alice", cwd=path.parent, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    listed = rows(site, path)
    assert [row["ended_as"] for row in listed] == ["user_error", "user_error", "pruned", "completed"]
    assert "import there_is_no_such_module" in listed[0]["traceback"]
    assert says(done.stderr, "nodes:", 64, 4)
    assert [job["phase"] for job in jobs(site)] == ["failed", "cancelled", "completed"]
    site.lab.wait_for(lambda: empty(site.lab), 120, "an empty harvest partition")


@pytest.mark.nightly
def test_study_and_daemon_are_killed_and_go_on(site: Site) -> None:
    lab = site.lab
    path = write(site, HEAD, PACED.replace('"pause": 0.25', '"pause": 1.0'))
    first = begin(site, path, "--trials", "3", "--concurrent", "2")
    try:
        lab.wait_for(lambda: sum(1 for row in jobs(site) if row["members"]) >= 1, 240, "a trial that trains")
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.communicate()
    site.stop(signal.SIGKILL)
    site.start()
    second = begin(site, path, "--trials", "3", "--concurrent", "2")
    with no_longer_than_the_test(second):
        _, said = second.communicate(timeout=600)
    assert second.returncode == 0, said
    assert says(said, "with job")
    listed = rows(site, path)
    assert sorted(row["ended_as"] for row in listed).count("completed") == 3
    assert {row["ended_as"] for row in listed} <= {"completed", "interrupted", "lost", "waiting"}
    completed = [row["params"]["x"] for row in listed if row["ended_as"] == "completed"]
    assert len(set(completed)) == 3
    lab.wait_for(lambda: empty(lab), 120, "an empty harvest partition")


@pytest.mark.nightly
def test_a_study_runs_on_a_daemon_of_ones_own(lab_factory) -> None:  # type: ignore[no-untyped-def]
    """`malletraind --user`, which neither root nor Slurm's user had a hand in."""
    lab: Lab = lab_factory(LabConfig(nodes=4, users=True))
    if not lab.users:
        pytest.skip("only root can run jobs as several users")
    lab.clear()
    folder = Path(lab.env_for("alice")["HOME"]) / f"own-{time.monotonic_ns()}"
    environ = {"XDG_STATE_HOME": f"{folder}/state", "XDG_CONFIG_HOME": f"{folder}/config"}
    lab.run(["mkdir", "-p", folder], user="alice")
    path, file = folder / "small.py", folder / "daemon.toml"
    lab.run(["tee", path], user="alice", input=HEAD + PACED)
    quick = "".join(f"[{name}]\n" + "\n".join(lines) + "\n" for name, lines in QUICK.items())
    lab.run(["tee", file], user="alice", input=quick)
    own = ["env", *(f"{name}={value}" for name, value in environ.items())]
    with (lab.output / f"{folder.name}.log").open("w") as log:
        daemon = lab.popen(
            [*own, "setpriv", "--pdeathsig", "TERM", BIN / "malletraind", "--user", "--config", file],
            user="alice", cwd=folder, stdout=log.fileno(), stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        lab.wait_for((folder / "state/malletrain/client.toml").exists, 60, "the daemon's address")
        done = lab.run(
            [*own, BIN / "malletrain", "study", "run", path, "--trials", "3"],
            user="alice", cwd=folder, check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        told = lab.run([*own, BIN / "malletrain", "study", "trials", path, "--json"], user="alice", cwd=folder).stdout
    finally:
        daemon.terminate()
        daemon.wait(60)
    assert [row["ended_as"] for row in json.loads(told)] == ["completed"] * 3
    lab.wait_for(lambda: empty(lab), 120, "an empty harvest partition")


def workers() -> list[psutil.Process]:
    """Processes that train for a study as somebody else than this test's user."""
    found = []
    for process in psutil.process_iter(["cmdline", "uids", "environ"]):
        words, uids = process.info["cmdline"] or [], process.info["uids"]
        if "malletrain.study.trial_main" in words and uids is not None and uids.real != os.geteuid():
            found.append(process)
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_anything_may_be_killed_at_any_moment(site: Site, seed: int) -> None:
    """Study, daemon and workers, 17 times each run: exactly so many trials, no parameters completed twice."""
    lab, moments, kills = site.lab, random.Random(seed), 0
    path = write(site, HEAD, PACED.replace('"pause": 0.25', '"pause": 1.0'))
    process = begin(site, path, "--trials", "16", "--concurrent", "2")
    with ExitStack() as processes:
        processes.enter_context(no_longer_than_the_test(process))
        deadline = time.monotonic() + 1200
        while process.poll() is None:
            assert time.monotonic() < deadline, rows(site, path)
            try:
                process.wait(moments.uniform(2.0, 12.0))
                break
            except subprocess.TimeoutExpired:
                pass
            if kills >= 17:
                continue
            kills += 1
            match moments.choice(["study", "daemon", "worker"]):
                case "study":
                    process.kill()
                    process.communicate()
                    process = begin(site, path, "--trials", "16", "--concurrent", "2")
                    processes.enter_context(no_longer_than_the_test(process))
                case "daemon":
                    site.stop(signal.SIGKILL)
                    site.start()
                case "worker":
                    mine = [each for each in workers() if str(path.parent) in each.cmdline()[-1]]
                    if mine:
                        moments.choice(mine).kill()
        _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    listed = rows(site, path)
    ended = [row["ended_as"] for row in listed]
    print(f"{kills} kills, {Counter(ended)}")
    assert kills == 17
    assert ended.count("completed") == 16
    assert "running" not in ended
    assert "user_error" not in ended
    completed = [row["params"]["x"] for row in listed if row["ended_as"] == "completed"]
    assert len(set(completed)) == 16
    lab.wait_for(lambda: empty(lab), 90, "an empty harvest partition")


@pytest.mark.nightly
def test_a_trial_that_is_preempted_before_it_trains_waits_however_often(site: Site) -> None:
    """More often than it has held tasks: pilots that are still importing cannot leave in order, nor ask for more."""
    lab = site.lab
    slow = "import os, time\nif 'SLURM_JOB_ID' in os.environ:\n    time.sleep(float(open('pause').read()))\n"
    path = write(site, slow, HEAD, OBJECTIVE.replace("samples_per_step=8", 'samples_per_step=8, nodes="1"'))
    pause = path.parent / "pause"
    lab.run(["tee", pause], user="alice", input="120")
    process = begin(site, path, "--trials", "1")

    def running() -> bool:
        return bool(lab.run(["squeue", "-a", "-h", "-r", "-p", "harvest", "-t", "R"]).stdout.strip())

    with no_longer_than_the_test(process):
        preempted = 0
        for _ in range(60):
            if preempted >= 6:  # of 5 tasks
                break
            lab.wait_for(running, 60, "a pilot")
            main = lab.submit("true", "--nodes=4", "--exclusive", user="bob")
            lab.wait_for_state(main, "COMPLETED")
            preempted = sum(job["preemptions"] for job in jobs(site))
        assert preempted >= 6
        lab.run(["tee", pause], user="alice", input="0")
        main = lab.submit("true", "--nodes=4", "--exclusive", user="bob")  # away with the pilot that sleeps
        _, said = process.communicate(timeout=180)
    assert process.returncode == 0, said
    assert [row["ended_as"] for row in rows(site, path)] == ["completed"]
    assert len(jobs(site)) == 1
    lab.wait_for(lambda: empty(lab), 120, "an empty harvest partition")


@pytest.mark.nightly
def test_time_memory_and_a_failed_node_are_told_apart(site: Site) -> None:
    lab = site.lab
    objective = """
def objective(trial):
    n = trial.number
    if n == 0:
        return study.train(trial, fit, {"x": 1.0, "epochs": 600, "pause": 0.5}, nodes="1", timeout_s=2.0)["value"]
    if n == 1:
        return study.train(trial, hungry, nodes="1")["value"]
    return study.train(trial, fit, {"x": 1.0, "epochs": 12, "pause": 0.5}, nodes="1")["value"]


def hungry():
    import torch
    torch.ones(1 << 46)
"""
    path = write(site, HEAD, objective)
    process = begin(site, path, "--trials", "1", "--concurrent", "1")

    def third() -> list[dict]:  # type: ignore[type-arg]
        return [job for job in jobs(site) if job["name"].endswith("-000002") and job["members"]]

    with no_longer_than_the_test(process):
        lab.wait_for(lambda: bool(third()), 180, "the third trial that trains")
        node = lab.run(["squeue", "-a", "-h", "-r", "-p", "harvest", "-t", "R", "-o", "%N"]).stdout.split()[0]
        lab.run(["scontrol", "update", f"nodename={node}", "state=down", "reason=test"])
        _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert [row["ended_as"] for row in rows(site, path)] == ["timed_out", "out_of_memory", "completed"]
    events = [json.loads(line) for line in site.malletrain("alice", "events", "--json").stdout.splitlines()]
    ends = [row["data"].get("state") for row in events if row["kind"] == "pilot_ended"]
    assert "node_fail" in ends, "the trial went on elsewhere, and is not told to have failed"
    lab.run(["scontrol", "update", f"nodename={node}", "state=resume"])
    lab.wait_for(lambda: empty(lab), 120, "an empty harvest partition")
