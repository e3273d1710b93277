"""How many files a reader opens to follow a journey through the package (docs/contributing.md): each is run small."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from malletrain.cli import mtbatch
from malletrain.cli.replay import replay
from malletrain.wire.messages import Warm
from tests import entered
from tests.cli.conftest import Desk, api, bare_desk, desk, munged, new_house
from tests.elastic.coordinator import running
from tests.elastic.digits import SCRIPT, slow
from tests.entered import Entered
from tests.loop.stage import Stage
from tests.world import World, job

__all__ = ["api", "bare_desk", "desk", "munged", "new_house"]

#: The part of the lines entered that a reader reads, the longest files first.
READ_SHARE = 0.9

Request = pytest.FixtureRequest


def tick(request: Request) -> Entered:
    """A job is given four idle nodes; `loop/memory.py` stands for Slurm."""
    world, found = World(nodes=4), Entered()
    world.submit(job(1))
    with entered.entered(found):
        world.tick()
    assert len(world.running()) == 4
    return found


def submission(request: Request) -> Entered:
    """A job is announced to the daemon, its array submitted in hold and attached."""
    here: Desk = request.getfixturevalue("desk")
    patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    for name, value in here.environ.items():
        patch.setenv(name, value)
    patch.chdir(here.work)
    patch.setattr(sys, "argv", ["mtbatch", "--nodes=1-4", "train.sh"])
    found = Entered()
    with entered.entered(found), pytest.raises(SystemExit, match="0"):
        mtbatch.main()
    assert "--hold" in (here.folder / "sbatch.in").read_text()
    return found


def replayed(request: Request) -> Entered:
    """Two hours of four nodes, to the table that a terminal shows."""
    folder: Path = request.getfixturevalue("tmp_path")
    rows = [
        f"2021-02-10T{at // 60:02d}:{at % 60:02d}:00,n{at % 4},{'idle' if at % 3 else 'busy'}" for at in range(120)
    ]
    log, config = folder / "events.csv", folder / "replay.toml"
    log.write_text("\n".join(["time,node,state", *rows]))
    config.write_text("[replay]\nprocesses = 1\n")
    found = Entered()
    with entered.entered(found):
        done = CliRunner().invoke(replay, [str(log), "--config", str(config)])
    assert done.exit_code == 0 and "training" in done.output
    return found


def next_world(request: Request) -> Entered:
    """A third worker says that it is warm, and enters a world with the two that train."""
    stage, found = Stage(), Entered()
    workers = [*stage.begin(2), stage.hello(2)]
    with entered.entered(found):
        stage.members.report(workers[2], Warm("h2:1", {}))
        stage.obey(*workers)
    assert stage.world() == workers
    return found


def resize(request: Request) -> Entered:
    """A real worker joins another one: all that either calls in the steps of `elastic/resize/reconfigure.py`."""
    folder: Path = request.getfixturevalue("tmp_path")
    script, found = [entered.__file__, SCRIPT, *slow(folder)], Entered()
    with running(folder) as (daemon, pod):
        pod.begin(daemon, (0,), script)
        pod.grow(daemon, (1,), script)
        pod.finish(0, 1)
    for task in (0, 1):
        for file, lines in json.loads((folder / f"entered-{task}.json").read_text()).items():
            found.setdefault(file, set()).update(lines)
    return found


class Most(NamedTuple):
    """The files that a reader opens, and those that the run enters."""

    read: int
    entered: int


JOURNEYS: dict[str, tuple[Callable[[Request], Entered], Most]] = {
    "snapshot to action": (tick, Most(24, 37)),
    "mtbatch to held array": (submission, Most(14, 21)),
    "log to figures": (replayed, Most(24, 46)),
    "report to next world": (next_world, Most(3, 5)),
    "resize": (resize, Most(14, 25)),
}


@pytest.mark.parametrize("name", JOURNEYS)
def test_a_journey_leads_through_few_files(name: str, request: Request) -> None:
    run, most = JOURNEYS[name]
    lines = entered.lines_of(run(request))
    read = 1 + sum(done < READ_SHARE * sum(lines.values()) for done in accumulate(lines.values()))
    print(f"{name}: {read} files to read, {len(lines)} entered: {lines}")
    assert read <= most.read and len(lines) <= most.entered, lines
