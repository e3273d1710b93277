"""The web page over a daemon that harvests a real Slurm, in a real Chromium."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scripts.play.site import Site
from tests.browser import chromium, is_there
from tests.slurm_fixtures import LabFactory, default_config

DRAWN = "!document.querySelector('main[aria-busy]') && document.querySelector('h1')"
PILOTS = "document.querySelector('.tile.pilots').textContent"

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(not is_there(), reason="needs Debian's chromium and chromium-driver"),
]


def test_what_slurm_runs_is_on_the_page_and_changes_by_itself(lab_factory: LabFactory, tmp_path: Path) -> None:
    lab = lab_factory(replace(default_config(), nodes=4, users=True))
    loop = ["tick_s = 1.0"]
    with Site(lab, settings={"loop": loop}) as site, chromium(tmp_path) as browser:
        site.start()
        number = site.harvest("alice", 3)
        lab.wait_for(lambda: site.pilot_nodes("alice") == 3, 120, "pilots on three nodes")

        browser.resize(1280, 900)
        browser.open(site.malletrain("alice", "web").stdout.strip())
        browser.await_that(DRAWN)
        assert browser.run("return document.querySelector('h1').innerText") == "4 nodes"
        browser.await_that(f"{PILOTS}.includes('3')")
        browser.await_that("document.querySelector('canvas[role=img]')")
        browser.await_that("document.querySelector('.tile.idle').textContent.startsWith('Idle1')")

        main = lab.submit("sleep 600", "--nodes=2", "--partition=batch")
        lab.wait_for_state(main, "RUNNING")
        browser.await_that(f"{PILOTS}.includes('2')", 90)
        browser.await_that("document.querySelector('.tile.main').textContent.includes('2')")

        browser.run("location.hash = arguments[0]", f"#/jobs/{number}")
        browser.await_that(f"{DRAWN} && document.body.innerText.includes('alice')")
        site.malletrain("alice", "cancel", str(number))
        browser.await_that("document.body.innerText.includes('cancelled')", 90)
        assert not browser.complaints()
    lab.clear()
