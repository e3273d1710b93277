"""`malletraind --observe` and `malletrain observed` on a real Slurm, as a plain user without any right."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.store.journal import read_events
from scripts.lab import Lab
from tests.messages import says
from tests.world import data_of

BIN = Path(sys.executable).parent


@pytest.fixture
def home(lab: Lab) -> Iterator[Path]:
    if "bob" not in lab.users:
        pytest.skip("needs root, to be a plain user")
    folder = lab.path.with_name(f"{lab.path.name}-observing")
    folder.mkdir()
    os.chown(folder, pwd.getpwnam("bob").pw_uid, -1)
    yield folder
    shutil.rmtree(folder)


def harvested(journal: Path) -> object:
    """How many nodes the newest count of nodes shows under pilots."""
    pools = [event for event in read_events(journal) if event.kind == "pool"]
    return data_of(pools[-1])["harvested"] if pools else 0


@pytest.mark.slurm
@pytest.mark.parametrize("partition", ["harvest", "planned"])
def test_what_would_be_harvested_is_told_and_nothing_is_done(lab: Lab, home: Path, partition: str) -> None:
    """Also before there is a harvest partition at all."""
    file = home / "malletrain.toml"
    file.write_text(
        f'[slurm]\npartition = "{partition}"\n[pool]\nkeep_idle = 2\n[loop]\ntick_s = 1\n'
        f'[store]\npath = "{home}/malletrain.db"\n'
    )

    def observed() -> dict[str, float]:
        answer = lab.run([BIN / "malletrain", "observed", "--config", file, "--json"], user="bob")
        found: dict[str, float] = json.loads(answer.stdout)
        return found

    log = (home / "log").open("w")
    daemon = lab.popen(
        ["setpriv", "--pdeathsig", "TERM", BIN / "malletraind", "--observe", "--config", file],
        user="bob", stderr=log.fileno(),
    )  # fmt: skip
    try:
        lab.wait_for(lambda: '"event": "serving"' in (home / "log").read_text(), 120, "a daemon that observes")
        lab.wait_for(lambda: harvested(home / "malletrain-observed.db") == 6, 120, "pilots on all nodes but two")
        number = lab.submit("sleep 600", "--nodes=8", "--exclusive", "--time=20", user="alice")
        lab.wait_for_state(number, "RUNNING")
        lab.wait_for(lambda: observed()["main_jobs_met"] == 1, 120, "a main job that would have met pilots")
        lab.wait_for(lambda: observed()["main_started"] == 1, 120, "a tick that sees it running")
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(120) == 0, (home / "log").read_text()
    finally:
        if daemon.poll() is None:
            daemon.kill()
        daemon.wait()
        log.close()
    seen = observed()
    assert (seen["main_started"], seen["unseen"] + seen["asked"]) == (1, 6)
    assert 0 < seen["harvested_node_s"] < seen["idle_node_s"]
    assert "Traceback" not in (home / "log").read_text()
    assert lab.run(["squeue", "-h", "-a", "-o", "%i"]).stdout.split() == [str(number)]
    assert not (home / "malletrain.db").exists(), "the daemon's own journal is left alone"
    words = lab.run([BIN / "malletrain", "observed", "--config", file], user="bob").stdout
    assert says(words, "1 started; 1", "pilot")
