"""docs/how-to/admin-lifecycle.md, backup and restore, with a daemon on a real Slurm whose pilots run on meanwhile."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from scripts.lab import LabConfig
from scripts.play.site import Site
from tests.quick_site import QUICK
from tests.slurm_fixtures import LabFactory

pytestmark = [pytest.mark.slurm, pytest.mark.nightly]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "admin-lifecycle.md").read_text()


def lines_of(section: str, site: Site, backup: Path) -> str:
    """The shell lines of a section of the page, for this site's files; what is systemd's is left out."""
    found = re.search(rf"^## {section}$.*?^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    text = found[1].replace("/var/lib/malletrain/malletrain.db", f"{site.directory}/malletrain.db")
    text = text.replace("/backup/malletrain.db", str(backup)).replace("-o malletrain -g malletrain ", "")
    return "\n".join(line for line in text.splitlines() if not line.startswith("systemctl"))


def jobs(site: Site) -> set[int]:
    return {int(each["id"]) for each in site.status("alice")["jobs"]}


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="needs sqlite3")
def test_the_drill(lab_factory: LabFactory, tmp_path: Path) -> None:
    lab = lab_factory(LabConfig(nodes=4, users=True))
    if not lab.users:
        pytest.skip("only root can run jobs as several users")
    lab.clear()
    backup = tmp_path / "backup.db"
    with Site(lab, settings=dict(QUICK)) as site:
        site.start()
        kept = site.harvest("alice", 2)
        lab.wait_for(lambda: site.pilot_nodes("alice") == 2, 120, "pilots of the first job")
        subprocess.run(["bash", "-ec", lines_of("Backup", site, backup)], check=True, timeout=60)
        later = site.harvest("alice", 2)
        assert jobs(site) == {kept, later}
        pilots = lab.run(["squeue", "-h", "-r", "-p", "harvest", "-t", "R", "-o", "%i"]).stdout.split()

        begun = time.monotonic()
        site.stop()
        subprocess.run(["bash", "-ec", lines_of("Restore", site, backup)], check=True, timeout=60)
        site.start()
        print(f"from the stop to an answer: {time.monotonic() - begun:.1f} s")
        assert jobs(site) == {kept}, "what was announced after the copy is not known"
        still = lab.run(["squeue", "-h", "-r", "-p", "harvest", "-t", "R", "-o", "%i"]).stdout.split()
        assert set(pilots) & set(still), "pilots run on"
        # As the page says: tasks of jobs that are not known are cleared, and the job is submitted anew.
        site.malletrain(None, "stop", "--all", "--now", "--partition", "harvest")
        again = site.harvest("alice", 2)
        lab.wait_for(lambda: site.pilot_nodes("alice") >= 1, 120, "pilots of the job that was submitted anew")
        assert again in jobs(site)
    lab.clear()
