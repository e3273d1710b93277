"""Independent items, end to end: real Slurm, real daemon, nodes taken back in the midst of batches."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.play.site import Site
from tests.e2e.test_main_job import ROOT, job, outputs, running, wait_members, write_script
from tests.elastic.test_items import Diary
from tests.quick_site import quick_site

pytestmark = pytest.mark.slurm


@pytest.fixture
def site(lab_factory) -> Iterator[Site]:  # type: ignore[no-untyped-def]
    with quick_site(lab_factory, outputs) as running_site:
        yield running_site


@pytest.mark.nightly
def test_each_item_is_committed_once_while_main_jobs_take_nodes(site: Site) -> None:
    lab = site.lab
    home = Path(lab.env_for("alice")["HOME"])
    lab.run(["mkdir", "-p", str(home / "bag")], user="alice")
    lab.run(["touch", str(home / "bag" / "long")], user="alice")
    command = shlex.join([sys.executable, f"{ROOT}/tests/elastic/bag_of_items.py", "1"])
    lines = "#MALLETRAIN --elastic=tasks\n#MALLETRAIN --total-samples=300"
    script = write_script(site, f"{lines}\nexport MALLETRAIN_TEST_DIR={home}/bag\n{command}", name="bag")
    number = site.mtbatch("alice", script)
    wait_members(site, number, 4)
    diary = Diary(home / "bag")
    lab.wait_for(lambda: len(diary.of("begin")) == 4, 120, "four batches that last")

    # Two nodes are wanted in the midst of a batch: it is given back within a second, and done elsewhere.
    main = lab.submit("sleep 2", "--nodes=2", "--exclusive", user="bob")
    lab.wait_for_state(main, "RUNNING", "COMPLETED", deadline_s=120)
    assert not diary.of("commit")
    lab.run(["rm", str(home / "bag" / "long")], user="alice")
    lab.wait_for(lambda: job(site, number)["phase"] == "completed", 240, "all items")
    assert Counter(diary.of("commit")) == Counter(range(60))
    assert job(site, number)["samples"] == 300
    lab.wait_for(lambda: not running(lab), 90, "an empty harvest partition")
