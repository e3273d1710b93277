"""mtbatch and malletrain as a plain user, with a real daemon on a real Slurm."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.lab import Change, Lab
from tests.daemon.running import Running, environment, file, run, start, url_of
from tests.messages import says

__all__ = ["file", "start"]

pytestmark = pytest.mark.slurm

SCRIPT = "#!/bin/bash\n#SBATCH --nodes=1-3 --job-name=digits\nsleep 600\n"
USER = "alice"


class Researcher:
    """A plain user of the lab, who knows the daemon's URL."""

    def __init__(self, lab: Lab, url: str) -> None:
        if USER not in lab.users:
            pytest.skip("plain users need root")
        self._lab = lab
        self._url = url
        self.more: list[str] = []
        self.home = Path(lab.env_for(USER)["HOME"])
        lab.run(["tee", "train.sh"], user=USER, input=SCRIPT, cwd=self.home)

    def call(self, module: str, *argv: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-c", f"import malletrain.cli.{module} as m; m.main()", *argv]
        known = ["env", f"MALLETRAIN_URL={self._url}", f"PYTHONPATH={Path.cwd()}", *self.more]
        return self._lab.run([*known, *program], user=USER, check=False, cwd=self.home)

    def wait_for_event(self, kind: str) -> dict[str, object]:
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            rows = [json.loads(line) for line in self.call("main", "events", "--json").stdout.splitlines()]
            found = [row for row in rows if row["kind"] == kind]
            if found:
                return dict(found[0])
            time.sleep(0.2)
        raise TimeoutError(kind)


def tasks(lab: Lab) -> list[str]:
    """Every task in the queue, with its state and reason."""
    return lab.run(["squeue", "-h", "-r", "-o", "%i %u %T %r %l %P"]).stdout.split("\n")[:-1]


def test_a_job_is_submitted_held_seen_and_cancelled(
    start: Callable[..., Running], file: Path, lab: Lab, tmp_path: Path
) -> None:
    # All nodes stay idle: nothing is started, so what the daemon would do can be looked at.
    wanted = file.read_text()
    file.write_text(f"{wanted}[pool]\nkeep_idle = {len(lab.nodes)}\n")
    start("--config", str(file))
    alice = Researcher(lab, url_of(file))
    done = alice.call("mtbatch", "--parsable", "train.sh")
    assert (done.stderr, done.returncode) == ("", 0)
    job = done.stdout.strip()
    queue = tasks(lab)
    assert len(queue) == 7
    assert all(" alice PENDING JobHeldUser 1:00 harvest" in task for task in queue)
    assert alice.wait_for_event("tasks_added")["job"] == int(job)
    assert "digits" in alice.call("main", "status").stdout

    # The dry run beside it says what a daemon without that reserve would do, and does nothing of it.
    other = tmp_path / "other.toml"
    other.write_text(f"{wanted}[pool]\nkeep_idle = 0\n")
    environ = {**lab.env, **environment(tmp_path), "PATH": lab.env["PATH"]}
    dry = run(tmp_path, "--config", str(other), "--dry-run", environ=environ)
    assert dry.returncode == 0, dry.stderr
    array = queue[0].partition("_")[0]
    first = lab.nodes[0]
    assert re.search(rf"^start +{array}_0 of job {job} on {first} for 3600 s: hole of ", dry.stdout, re.MULTILINE)
    assert tasks(lab) == queue

    assert alice.call("main", "cancel", job).stdout == f"job {job}: cancel requested\n"
    deadline = time.monotonic() + 180
    while tasks(lab):
        assert time.monotonic() < deadline, tasks(lab)
        time.sleep(0.2)


#: Another sbatch, as sites have them: it refuses three options, and prints a banner in the place of the number.
WRAPPER = """#!/bin/bash
script=$(cat)
for option in --mem --exclusive --time; do
  if grep -q "^#SBATCH $option" <<< "$script"; then echo "site: $option is not for you" >&2; exit 1; fi
done
{sbatch} "$@" <<< "$script" > /dev/null || exit 1
echo "Your project has 99% of its budget left."
"""


def test_a_site_whose_sbatch_is_its_own(start: Callable[..., Running], file: Path, lab: Lab) -> None:
    """The array is found by its comment, and sound for the daemon without the options that are refused."""
    file.write_text(f"{file.read_text()}[pool]\nkeep_idle = {len(lab.nodes)}\n[pilot]\nsbatch = []\n")
    with lab.changed(Change(partitions={"harvest": {"OverSubscribe": "EXCLUSIVE"}})):
        start("--config", str(file))
        alice = Researcher(lab, url_of(file))
        tools = alice.home / "tools"
        wrapper = WRAPPER.format(sbatch=lab.run(["which", "sbatch"]).stdout.strip())
        lab.run(["mkdir", tools], user=USER)
        lab.run(["tee", tools / "sbatch"], user=USER, input=wrapper)
        lab.run(["chmod", "+x", tools / "sbatch"], user=USER)
        alice.more = [f"PATH={tools}:{lab.env['PATH']}"]
        done = alice.call("mtbatch", "--parsable", "train.sh")
        assert (done.stderr, done.returncode) == ("", 0)
        assert alice.wait_for_event("tasks_added")["job"] == int(done.stdout)
        assert all(" alice PENDING JobHeldUser 1:00 harvest" in task for task in tasks(lab))
        assert len(tasks(lab)) == 7
        alice.call("main", "cancel", done.stdout.strip())
        lab.wait_for(lambda: not tasks(lab), 120, "the end of the job's tasks")


def test_a_job_waits_for_another_and_says_why(start: Callable[..., Running], file: Path, lab: Lab) -> None:
    file.write_text(f"{file.read_text()}[pool]\nkeep_idle = {len(lab.nodes)}\n")
    start("--config", str(file))
    alice = Researcher(lab, url_of(file))
    first = alice.call("mtbatch", "--parsable", "train.sh").stdout.strip()
    done = alice.call("mtbatch", "--parsable", f"--dependency=afternotok:{first}", "train.sh")
    assert (done.stderr, done.returncode) == ("", 0)
    second = done.stdout.strip()
    row = json.loads(alice.call("main", "status", second, "--json").stdout)
    assert row["phase"] == "held"
    assert says(row["reason"], f"afternotok:{first},")

    def waits() -> str:
        return str(json.loads(alice.call("main", "status", first, "--json").stdout)["reason"])

    said = lab.wait_for(
        lambda: text if (text := waits()).startswith("needs ") else "", 120, "a decision about its nodes"
    )
    assert says(said, "none", "left out"), said

    assert alice.call("main", "cancel", first).returncode == 0
    assert alice.call("main", "wait", first, "--timeout", "180").stdout.startswith(f"job {first}: cancelled")
    assert alice.wait_for_event("job_released")["job"] == int(second)
    assert json.loads(alice.call("main", "status", second, "--json").stdout)["phase"] == "queued"


def test_jobs_outlive_a_new_url_of_the_daemon(start: Callable[..., Running], file: Path, lab: Lab) -> None:
    """As when TLS is set up: scripts of jobs hold the URL that they were submitted with. Pilots that train on say
    hello again, and new ones begin; once no such job is open, the former URL is another daemon's."""
    running, moved = start("--config", str(file)), url_of(file).replace("127.0.0.1", "localhost")
    alice, after = Researcher(lab, url_of(file)), Researcher(lab, moved)
    job = alice.call("mtbatch", "--parsable", "--elastic=restart", "train.sh").stdout.strip()

    def has_joined(since: float) -> bool:
        rows = [json.loads(line) for line in after.call("main", "events", "--json").stdout.splitlines()]
        return any(row["kind"] == "worker_joined" and row["at"] >= since for row in rows)

    assert alice.wait_for_event("worker_joined")
    running.process.terminate()
    assert running.process.wait(120) == 0
    lab.run(["scancel", "-t", "R", "-u", USER])  # new pilots must come
    file.write_text(file.read_text().replace('url = "http://127.0.0.1', 'url = "http://localhost'))
    again = time.time()
    running = start("--config", str(file))
    assert any(says(each, "former URL") for each in running.events())
    lab.wait_for(lambda: has_joined(again), 120, "a pilot that calls the former URL")
    row = json.loads(after.call("main", "status", job, "--json").stdout)
    assert row["phase"] in ("queued", "running"), row

    after.call("main", "cancel", job)
    lab.wait_for(lambda: not tasks(lab), 120, "the end of the job's tasks")
    running.process.terminate()
    assert running.process.wait(120) == 0
    start("--config", str(file))
    assert "another daemon" in alice.call("main", "status").stderr


def test_stop_ends_all_pilots_with_the_daemon_dead(start: Callable[..., Running], file: Path, lab: Lab) -> None:
    file.write_text(f"{file.read_text()}[pool]\nkeep_idle = {len(lab.nodes)}\n")
    running = start("--config", str(file))
    alice = Researcher(lab, url_of(file))
    assert alice.call("mtbatch", "train.sh").returncode == 0
    running.process.kill()
    running.process.wait(120)
    lab.run(["sbatch", "--hold", "-p", "batch", "--wrap", "true"], user=USER)
    assert len(tasks(lab)) == 8
    done = alice.call("main", "stop", "--all", "--now", "-p", "harvest")
    assert (done.stderr, done.returncode) == ("", 0)
    left = tasks(lab)
    assert len(left) == 1
    assert left[0].endswith(" batch")
    lab.run(["scancel", "-u", USER])


def test_mtbatch_with_slurmctld_dead_is_one_line_and_starts_nothing(
    start: Callable[..., Running], file: Path, lab: Lab
) -> None:
    start("--config", str(file))
    alice = Researcher(lab, url_of(file))
    lab.kill("slurmctld")
    try:
        done = alice.call("mtbatch", "train.sh")
    finally:
        lab.start("slurmctld")
    assert (done.stdout, done.returncode, done.stderr.count("\n")) == ("", 2, 1)
    assert done.stderr.startswith("mtbatch: scontrol: ")
    assert alice.call("main", "events", "--json").stdout.count("job_announced") == 0
