"""The install guide, followed line by line on a site that is not the lab's own configuration: two main partitions of
different PriorityTier, full of main jobs, and no preemption. Up to the guide's last step no main job is touched."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from malletrain.slurm.command import Commands
from malletrain.slurm.site import doctor
from malletrain.slurm.site.site_facts import Finding, Harvest, Level
from scripts.lab import Lab, LabConfig, UsageError, namespace
from scripts.lab.ports import free_port
from scripts.lab.users import Identity
from tests.messages import says
from tests.slurm_fixtures import short_directory

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs/how-to/admin-install.md"

#: Programs of a service manager or a packager, and files of the machine itself: what the guide does beside Slurm.
NOT_RUN = re.compile(
    r"python3\.11 -m venv |/opt/malletrain/bin/pip |systemd-|systemctl "
    r"|install (-D )?-m 644 site-configs/systemd/\S+ /(usr/lib|etc/systemd)/"
    r"|for unit in malletraind"
)
LAST_STEP = "systemctl daemon-reload && systemctl enable --now malletraind"
THE_EDIT = re.compile(r"sed .*PreemptMode=OFF")
MAIN = ("batch", "batch-10")
#: So many more of the main scheduler and of backfill, which rests while nothing changes.
CYCLES = (3, 2)

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(os.geteuid() != 0, reason="needs plain users: run as root")]


def commands_of_the_guide(*chapters: int) -> list[str]:
    """The commands of these chapters, in order, up to the last step; subchapters are for other sites."""
    found = []
    for chapter in re.split(r"^## ", GUIDE.read_text(), flags=re.MULTILINE):
        if re.match(rf"({'|'.join(map(str, chapters))})\. ", chapter):
            own = chapter.split("\n### ")[0]
            for block in re.findall(r"^ *```sh\n(.*?)^ *```$", own, re.MULTILINE | re.DOTALL):
                found += textwrap.dedent(block).splitlines()
    return found[: found.index(LAST_STEP)] if LAST_STEP in found else found


def follow(lab: Lab, commands: Sequence[str], folder: Path) -> str:
    """Run the guide's commands in one shell, with this lab's files and users for the machine's; what they print."""
    sudo = folder / "sudo"
    sudo.write_text(f'#!/bin/sh\nexec {shlex.join(namespace.as_user(Identity.of("malletrain"), []))} "$@"\n')
    sudo.chmod(0o755)
    script = ['fail() { echo "failed: $1" >&2; exit 1; }']
    for typed in commands:
        line = typed
        for theirs, ours in {
            "/etc/slurm/slurm.conf": f"{lab.path}/slurm.conf",
            "/etc/malletrain/malletrain.toml": f"{folder}/malletrain.toml",
            "/opt/malletrain/bin/": f"{folder}/bin/",
            "sudo -u malletrain ": f"{sudo} ",
        }.items():
            line = re.sub(r"\bann\b", "alice", line.replace(theirs, ours))
        # What greps a file looks for something that must not be there.
        check = f'found=$({line}); [ -z "$found" ]' if line.startswith("grep ") else line.partition("  #")[0]
        script.append(f"{check} || fail {shlex.quote(line)}")
    return lab.run(["bash", "-c", "\n".join(script)], cwd=ROOT, timeout=120).stdout


def programs(folder: Path) -> None:
    """/opt/malletrain/bin, with a configuration of its own instead of the one in /etc."""
    (folder / "bin").mkdir()
    for name, arguments in (("malletraind", '--config {} "$@"'), ("malletrain", '"$1" --config {} "${{@:2}}"')):
        program = folder / "bin" / name
        real = shlex.quote(str(Path(sys.executable).with_name(name)))
        program.write_text(f"#!/bin/bash\nexec {real} {arguments.format(folder / 'malletrain.toml')}\n")
        program.chmod(0o755)


class MainQueue:
    """Jobs that fill the nodes from the low tier, and one of the high tier that waits for all of them."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.running = [
            lab.submit("sleep 600", "-p", "batch-10", "--nodes=1", "--exclusive", "--time=30", requeue, user="bob")
            for requeue in ("--requeue", "--no-requeue")
        ]
        for job in self.running:
            lab.wait_for_state(job, "RUNNING")
        self.waiting = lab.submit(
            "sleep 600", "-p", "batch", f"--nodes={len(lab.nodes)}", "--exclusive", "--time=30", user="bob"
        )
        self._started = self._seen()

    def _seen(self) -> list[tuple[str, ...]]:
        fields = ("JobState", "StartTime", "Restarts", "Partition", "NodeList")
        return [tuple(self._lab.job(job)[name] for name in fields) for job in self.running]

    def is_touched(self) -> str:
        """What became of the jobs, if anything did."""
        now = self._seen()
        if now == self._started and self._lab.job_state(self.waiting) == "PENDING":
            return ""
        return f"{self._started} -> {now}, and the other is {self._lab.job_state(self.waiting)}"

    def wait_for_cycles(self) -> None:
        """Until the main scheduler and backfill have run again, with one more job to look at, which wakes both."""
        before = cycles(self._lab)
        self._lab.submit("sleep 600", "-p", "batch", "--nodes=1", "--exclusive", "--time=30", user="bob")
        wait_for_cycles(self._lab, before)


def cycles(lab: Lab) -> list[int]:
    """How many the main scheduler and backfill have run."""
    return [int(n) for n in re.findall(r"Total cycles: +(\d+)", lab.run(["sdiag"]).stdout)]


def wait_for_cycles(lab: Lab, before: Sequence[int]) -> None:
    """Until both schedulers have run again since they had run so often."""
    lab.wait_for(
        lambda: all(now >= then + more for now, then, more in zip(cycles(lab), before, CYCLES, strict=True)),
        60,
        "cycles of both schedulers",
    )


def about_main_jobs(lab: Lab, preemptible: Sequence[str] = ()) -> list[Finding]:
    found = doctor.examine(Commands(lab.env), Harvest("harvest"), time.time, preemptible=preemptible)
    return [finding for finding in found if "main job" in finding.what or "main partition" in finding.what]


@pytest.fixture
def site(request: pytest.FixtureRequest, release: str | None, lab_directory: Path) -> Iterator[Lab]:
    """A site before MalleTrain, the test's own: the guide changes it for good. Parameter: whether it has slurmdbd."""
    config = LabConfig(
        nodes=2, main_tiers=(20, 10), harvest=False, users=True, accounting=request.param, release=release
    )
    try:
        with Lab.up(lab_directory, config) as lab:
            yield lab
    except UsageError as error:
        pytest.skip(f"no Slurm lab here: {error}")


@pytest.fixture
def folder() -> Iterator[Path]:
    """For the guide's own files, where every user can read them."""
    made = short_directory()
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("site", [True], indirect=True, ids=["slurmdbd"])
def test_the_guide_touches_no_main_job(site: Lab, folder: Path) -> None:
    lab = site
    programs(folder)
    commands = commands_of_the_guide(1, 2, 3)
    here = [command for command in commands if not NOT_RUN.match(command)]
    assert {"scontrol reconfigure", 'cat site-configs/slurm.conf >> "$conf.new"'} <= set(here)
    assert sum(map(bool, map(THE_EDIT.match, here))) == 1
    assert any("sacctmgr" in command for command in here)
    assert any("doctor" in command for command in here)

    queue = MainQueue(lab)
    queue.wait_for_cycles()
    assert not queue.is_touched(), "before anything was done"
    install = next(i for i, command in enumerate(here) if "malletrain.toml" in command)
    follow(lab, here[:install], folder)
    queue.wait_for_cycles()
    assert not queue.is_touched()
    follow(lab, here[install : install + 1], folder)
    with (folder / "malletrain.toml").open("a") as file:
        file.write(f'[store]\npath = "{folder}/malletrain.db"\n[api]\nport = {free_port()}\n')
    said = follow(lab, here[install + 1 :], folder)
    assert says(said, "no main")
    assert not re.search(r"^error", said, re.MULTILINE), said
    queue.wait_for_cycles()
    assert not queue.is_touched()

    # And what it made works: a job of the harvest partition starts on an idle node, and gives way to the main queue.
    lab.run(["scancel", "--user=bob"])
    pilot = lab.submit("srun sleep 600", "-p", "harvest", "-A", "harvest", "--no-requeue", "--time=30", user="alice")
    lab.wait_for_state(pilot, "RUNNING")
    main = lab.submit("sleep 600", "-p", "batch-10", "--nodes=2", "--exclusive", "--time=30", user="bob")
    lab.wait_for_state(main, "RUNNING", deadline_s=60)


@pytest.mark.parametrize("site", [False], indirect=True, ids=["no slurmdbd"])
def test_without_the_edit_main_jobs_are_requeued_and_the_doctor_names_the_pair(site: Lab, folder: Path) -> None:
    """The fault that the edit is there for: the test above can fail."""
    lab = site
    queue = MainQueue(lab)
    assert not about_main_jobs(lab), "nothing is preempted yet"
    commands = [c for c in commands_of_the_guide(1) if not THE_EDIT.match(c) and not c.startswith(("grep", "sacct"))]
    follow(lab, [command for command in commands if not NOT_RUN.match(command)], folder)
    lab.wait_for(queue.is_touched, 60, "a main job that is preempted")
    (finding,) = about_main_jobs(lab)
    assert finding.level is Level.ERROR
    assert says(finding.what, "batch-10 (tier 10, PreemptMode=REQUEUE)", "requeued")
    assert "batch (tier 20)" in finding.what
    assert "PreemptMode=OFF on partition batch-10" in finding.remedy
    assert "slurm.preemptible_partitions" in finding.remedy
    (finding,) = about_main_jobs(lab, preemptible=["batch-10"])
    assert (finding.level, finding.remedy) == (Level.OK, "")
