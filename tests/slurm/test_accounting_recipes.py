"""The commands of docs/how-to/admin-operate.md, on a slurmdbd with one main job and one pilot of yesterday."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from scripts.lab import Lab, LabConfig
from tests.slurm_fixtures import LabFactory

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(os.geteuid() != 0, reason="several users need root"),
]

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/admin-operate.md"
DAY_S = 86400
#: As of no other lab with accounting: the jobs of yesterday are these two alone.
NODES = 5
#: Seconds that the jobs are made to have run.
MAIN_S, HARVEST_S = 600, 1200

Recipe = Callable[[str, Mapping[str, str]], str]


def commands(heading: str) -> list[str]:
    """The `sh` blocks below a heading of the page."""
    part = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [
        re.sub(r"^ {3}", "", block, flags=re.MULTILINE) for block in re.findall(r"```sh\n(.*?)```", part, re.DOTALL)
    ]


@pytest.fixture(scope="module")
def yesterday() -> int:
    """The beginning of the day before this one (Unix seconds, UTC)."""
    return int(time.time()) // DAY_S * DAY_S - DAY_S


@pytest.fixture(scope="module")
def accounted(lab_factory: LabFactory, yesterday: int) -> Lab:
    """A lab in whose accounts a main job on 2 nodes and a pilot on 3 ran yesterday, rolled up."""
    lab = lab_factory(LabConfig(nodes=NODES, accounting=True, users=True))
    pilot = lab.submit(
        "sleep 300", "--partition=harvest", "--account=harvest", "--nodes=3", "--exclusive", user="bob"
    )
    main = lab.submit("sleep 300", "--account=main", "--nodes=2", "--exclusive", user="alice")
    for job, begun in ((pilot, "harvest|RUNNING"), (main, "batch|RUNNING")):
        recorded = ["sacct", "-nPX", "-j", str(job), "-o", "partition,state"]
        # One that ends before its start is recorded stays without partition and account.
        lab.wait_for(lambda a=recorded, b=begun: b in lab.run(a).stdout, 60, "the job's start in sacct")  # type: ignore[misc]
        lab.run(["scancel", str(job)])
        lab.wait_for(lambda a=recorded: "CANCELLED" in lab.run(a).stdout, 60, "the job's end in sacct")  # type: ignore[misc]
    cluster = lab.run(["sacctmgr", "-nP", "show", "cluster", "format=cluster"]).stdout.strip()
    # sreport knows whole hours of the past: the records are moved there.
    began = yesterday + 7200
    moved = [f"update {cluster}_event_table set time_start={yesterday} where node_name=''"]
    for job, seconds in ((pilot, HARVEST_S), (main, MAIN_S)):
        times = f"time_submit={began}, time_eligible={began}, time_start={began}, time_end={began + seconds}"
        moved.append(f"update {cluster}_job_table set {times} where id_job={job}")
    database(lab, ";".join(moved))
    lab.run(["sacctmgr", "-i", "roll", stamp(yesterday), stamp(yesterday + DAY_S)])
    used = [
        "sreport",
        "-nP",
        "cluster",
        "Utilization",
        f"start={stamp(yesterday)}",
        f"end={stamp(yesterday + DAY_S)}",
    ]
    lab.wait_for(lambda: lab.run(used).stdout.strip(), 60, "the usage of yesterday")
    return lab


def database(lab: Lab, statements: str) -> None:
    """Run SQL in the lab's own database; the test fails with its error."""
    socket = Path(lab.path) / "run" / "mariadb.sock"
    done = subprocess.run(
        ["mariadb", "--no-defaults", "-S", str(socket), "slurm_acct", "-e", statements],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def stamp(at: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))


@pytest.fixture
def run(accounted: Lab, yesterday: int, tmp_path: Path) -> Recipe:
    """Runs a command of the page as the site's administrator would."""

    def recipe(command: str, more: Mapping[str, str]) -> str:
        environ = {**accounted.env, "TZ": "UTC", "START": stamp(yesterday), "END": stamp(yesterday + DAY_S), **more}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            capture_output=True, text=True, timeout=60, check=False, env=environ, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return recipe


def test_sreport_divides_the_machine_into_main_and_reclaimed(accounted: Lab, run: Recipe) -> None:
    by_user, parts = commands("sreport")
    cores = int(accounted.run(["sinfo", "-hN", "-n", accounted.nodes[0], "-p", "harvest", "-o", "%c"]).stdout)
    seconds = [line.split("|") for line in run(by_user.replace("Hours", "Seconds"), {}).split()]
    assert seconds == [["", str(3 * cores * HARVEST_S)], ["bob", str(3 * cores * HARVEST_S)]]
    shares = dict(line.split() for line in run(parts, {}).splitlines())
    whole = NODES * DAY_S
    assert float(shares["main"]) == pytest.approx(100 * 2 * MAIN_S / whole, abs=1e-3)
    assert float(shares["reclaimed"]) == pytest.approx(100 * 3 * HARVEST_S / whole, abs=1e-3)
    assert sum(map(float, shares.values())) == pytest.approx(100, abs=1e-3)


def test_exports_for_xdmod_hold_each_job_once(run: Recipe, tmp_path: Path) -> None:
    (export,) = commands("XDMoD")
    run(export, {"XDMOD_COLUMNS": "jobid,partition,account,user,elapsedraw", "PARTITIONS": "batch"})
    main, reclaimed = ((tmp_path / name).read_text().splitlines() for name in ("main.log", "reclaimed.log"))
    assert [line.split("|", 1)[1] for line in main] == [f"batch|main|alice|{MAIN_S}"]
    assert [line.split("|", 1)[1] for line in reclaimed] == [f"harvest|harvest|bob|{HARVEST_S}"]


def test_energy_is_summed_over_pilots(accounted: Lab, run: Recipe, yesterday: int) -> None:
    (energy,) = commands("Energy")
    assert run(energy, {}) == "0.000 kWh\n", "the lab's nodes have no meter"
    cluster = accounted.run(["sacctmgr", "-nP", "show", "cluster", "format=cluster"]).stdout.strip()
    measured = "regexp_replace(tres_alloc, ',3=[0-9]+', ',3=7200000')"  # TRES 3 is energy, in joules
    database(accounted, f"update {cluster}_job_table set tres_alloc={measured}")
    assert run(energy, {}) == "2.000 kWh\n"
