"""`malletrain doctor` and a pilot on real labs, each with one trait of Slurm's sites (`traits`): each day a sample,
nightly all."""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from malletrain.daemon.site_watch import SiteWatch
from malletrain.domain.errors import MalletrainError
from malletrain.slurm.command import Commands
from malletrain.slurm.site import doctor, rehearsal, site_facts
from malletrain.slurm.site.rehearsal import Rehearsal
from malletrain.slurm.site.site_facts import Finding, Harvest, Level
from malletrain.slurm.submission.sbatch import PILOT_OPTIONS
from scripts.lab import Change, Lab
from tests.gauntlet.traits import (
    HARVESTED,
    MAIN_REFUSED,
    NOT_PLAYED,
    NOT_PREEMPTED,
    NOT_TRIED,
    SUSPENDED,
    TRAITS,
    Trait,
)
from tests.slurm.test_authority import HARVEST
from tests.slurm_fixtures import LabFactory

pytestmark = pytest.mark.slurm

DEFAULT_SOCKET = Path("/run/munge/munge.socket.2")

#: How many are played in a run that is not the nightly one.
SAMPLE = 6

DAY = int(os.environ["MALLETRAIN_DAY"])


def sampled(index: int) -> bool:
    """Whether a trait is of today's sample: each day the next ones."""
    return (index - DAY * SAMPLE) % len(TRAITS) < SAMPLE


def release_of(lab: Lab) -> tuple[int, int]:
    words = lab.run(["scontrol", "--version"]).stdout.split()
    major, minor, *_ = words[-1].split(".")
    return int(major), int(minor)


def examine(commands: Commands, harvest: Harvest) -> list[Finding]:
    return list(doctor.examine(commands, harvest, time.time, user="malletrain"))


@contextmanager
def own_key(lab: Lab) -> Iterator[None]:
    """slurm.key for a lab. Its daemons listen in /run, one lab's at a time."""
    if DEFAULT_SOCKET.exists():
        pytest.skip("a munged runs here")
    key, folders = lab.path / "slurm.key", [Path("/run/slurm"), Path("/run/slurmctld")]
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = [folder for folder in folders if not folder.exists()]
        key.touch(0o600)
        key.write_bytes(os.urandom(64))
        try:
            yield
        finally:
            key.unlink()
            for folder in made:
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def having(lab: Lab, trait: Trait, folder: Path) -> Iterator[Commands]:
    """The lab with the trait, and how its commands are called there."""
    cluster = lab.run(["scontrol", "show", "config"]).stdout.partition("ClusterName")[2].split()[1]
    path = lab.env["PATH"]
    for name, text in trait.programs.items():
        real = shutil.which(name, path=path)
        (folder / name).write_text(text.replace("{real}", str(real)).replace("{cluster}", cluster))
        (folder / name).chmod(0o755)
    try:
        for command in trait.setup:
            lab.run(shlex.split(command.replace("{cluster}", cluster)))
        is_so = trait.change == Change() and not trait.then
        with nullcontext() if is_so else lab.changed(trait.change, restart=trait.restart):
            for command in trait.then:
                lab.run(shlex.split(command))
            lab.wait_for(lambda: not lab.run(["squeue", "-h", "-t", "PD"]).stdout, 60, "main jobs that run")
            yield Commands({**lab.env, **trait.environment, "PATH": f"{folder}:{path}"}, timeout_s=30.0)
    finally:
        for command in trait.undo:
            lab.run(shlex.split(command))


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if sampled(i) else pytest.mark.nightly) for i, n in enumerate(TRAITS)],
)
def test_a_trait_of_sites(
    release: str | None, lab_factory: LabFactory, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trait = TRAITS[name]
    lab = lab_factory(replace(trait.lab, release=release))
    harvest = HARVEST if trait.lab.accounting else Harvest("harvest")
    if release_of(lab) < trait.since:
        pytest.skip(f"no such thing in Slurm {release_of(lab)}")
    is_changed = trait.change != Change() or trait.setup or trait.then
    usual = {finding.what for finding in examine(Commands(lab.env), harvest)} if is_changed else set()
    monkeypatch.setattr(rehearsal, "PATIENCE_S", 60.0 if trait.tried == HARVESTED else 15.0)
    with own_key(lab) if trait.key else nullcontext(), having(lab, trait, tmp_path) as commands:
        assert not [what for what in usual if trait.says and trait.says in what], "not where all is well"
        new = [f for f in examine(commands, harvest) if f.what not in usual]
        expected = [f for f in new if trait.says and trait.says in f.what]
        if is_changed:
            assert [f for f in new if f not in expected and f.level is not Level.OK] == []
        if trait.says:
            assert expected[0].level is trait.level
            assert trait.remedy in expected[0].remedy

        facts = site_facts.read(commands)
        if trait.refused:
            with pytest.raises(MalletrainError, match=re.escape(trait.says)):
                SiteWatch(commands, harvest, facts, time.monotonic).refuse_unfit()
        else:
            SiteWatch(commands, harvest, replace(facts, sees_all=True), time.monotonic).refuse_unfit()

        if trait.tried == NOT_PLAYED:
            return
        owner = pwd.getpwnam("malletrain").pw_uid if trait.lab.accounting else 0
        main, pilot = ["-p", "batch", *trait.main], (*PILOT_OPTIONS, *trait.pilot)
        *_, last = found = list(Rehearsal(commands, facts, harvest, main, pilot, owner).findings())
        if trait.tried == HARVESTED:
            assert [f.level for f in found if f.level is Level.ERROR] == [], found
            assert len(found) == 3, found
        else:
            assert trait.tried in last.what
            assert last.level is (Level.WARNING if trait.tried in (NOT_TRIED, MAIN_REFUSED) else Level.ERROR)
            assert last.remedy
            assert trait.names in last.what
            if trait.tried in (NOT_PREEMPTED, SUSPENDED):
                assert [f.level for f in found] == [Level.OK, Level.ERROR], "a pilot had begun"
        assert "malletrain-try" not in lab.run(["squeue", "-h", "-t", "PD,R,CG,S", "-o", "%j"]).stdout
