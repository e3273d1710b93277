"""Slurm failing in every way that could be produced: no wrong action, no leak, and recovery without a hand."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.domain.decision import LeavePilot
from malletrain.domain.job import PilotPhase
from malletrain.domain.snapshot import NodeState
from malletrain.slurm.command import Commands
from malletrain.slurm.read_commands import CommandReader
from malletrain.slurm.site import doctor
from malletrain.slurm.site.site_facts import Harvest
from scripts.lab import DeadlineError, Lab
from tests.messages import says
from tests.munged import munged
from tests.slurm.harvesting import Harvesting, until_saved
from tests.world import data_of

__all__ = ["munged"]

pytestmark = pytest.mark.slurm


def tasks_of(lab: Lab) -> dict[str, str]:
    """Every task of the harvest partition, with its state."""
    rows = lab.run(["squeue", "-a", "-h", "-r", "-p", "harvest", "-o", "%i %T"]).stdout.split("\n")
    return dict(row.split() for row in rows if row)


def leaked(harvest: Harvesting) -> set[str]:
    """Tasks of which Slurm and the ledger do not tell the same: one that runs unknown to us, one of ours that is
    lost."""
    shown = tasks_of(harvest.lab)
    pilots = {i: p for i, p in harvest.view().pilots.items() if p.phase is not PilotPhase.ENDED}
    theirs = {i for i, state in shown.items() if state == "RUNNING"}
    ours = {i for i, p in pilots.items() if p.phase is PilotPhase.RUNNING}
    return (set(shown) ^ set(pilots)) | (theirs ^ ours)


def settled(harvest: Harvesting, nodes: tuple[str, ...], deadline_s: float = 120.0) -> None:
    """Pilots on these nodes again, and nothing leaked, without a hand."""

    apart: set[str] = set()

    def so() -> bool:
        harvest.loop.tick()
        harvest.loop.react()
        apart.clear()
        if set(harvest.held()) != set(nodes) or harvest.running() != set(nodes):
            return False
        apart.update(leaked(harvest))  # one that ends between the two looks is a leak only if it stays one
        return not apart

    try:
        harvest.lab.wait_for(so, deadline_s, f"pilots on {nodes}")
    except DeadlineError as error:
        raise AssertionError(f"leaked: {sorted(apart)}; {harvest.said()[-10:]}") from error


@pytest.mark.nightly
@pytest.mark.parametrize("down_s", [2.0, 60.0])
def test_slurmctld_that_is_away_and_comes_back(any_lab: Lab, down_s: float) -> None:
    lab = any_lab
    harvest = Harvesting(lab)
    harvest.submit()
    harvest.fill(lab.nodes)
    settled(harvest, lab.nodes)
    until_saved(lab)
    lab.kill("slurmctld", signal.SIGKILL)
    try:
        before = len(harvest.journal.events)
        end = time.monotonic() + down_s
        while True:
            assert harvest.loop.tick() is None, "no answer, no decision"
            if time.monotonic() > end:
                break
        said = harvest.journal.events[before:]
        assert [e.kind for e in said] == ["cluster_unavailable"], "said once, and nothing done"
    finally:
        lab.start("slurmctld")
    lab.wait_for(lambda: lab.run(["scontrol", "ping"], check=False).returncode == 0, 90)
    settled(harvest, lab.nodes)
    assert not harvest.events("pilot_ended")


@pytest.mark.nightly
def test_slurmctld_restarted_in_the_midst_of_starts(any_lab: Lab) -> None:
    lab = any_lab
    harvest = Harvesting(lab)
    harvest.submit(tasks=16)
    harvest.tick()  # pilots released, some not running yet
    lab.kill("slurmctld", signal.SIGTERM)
    lab.wait_for(lambda: not lab.is_running("slurmctld"), 90)
    lab.start("slurmctld")
    lab.wait_for(lambda: lab.run(["scontrol", "ping"], check=False).returncode == 0, 90)
    settled(harvest, lab.nodes)


@pytest.mark.nightly
def test_a_slurmd_that_is_killed(any_lab: Lab) -> None:
    lab, n = any_lab, any_lab.nodes
    harvest = Harvesting(lab)
    harvest.submit(tasks=16)
    harvest.fill(n)
    lab.kill(f"slurmd.{n[0]}")
    try:
        lab.wait_for(
            lambda: harvest.tick() and harvest.snapshot().node[n[0]].state is NodeState.DOWN, 120, "Slurm sees it"
        )
        lab.wait_for(lambda: harvest.tick() and harvest.running() == set(n[1:]), 60, "the others train on")
    finally:
        lab.start(f"slurmd.{n[0]}")
    lab.wait_for(lambda: lab.node_states()[n[0]].startswith("idle"), 60)
    settled(harvest, n)
    (end,) = [e for e in harvest.events("pilot_ended") if e.node == n[0]]
    assert data_of(end)["state"] in ("node_fail", "cancelled", "failed", "completed")


def test_a_munge_key_that_is_not_the_clusters(any_lab: Lab, munged: str, tmp_path: Path) -> None:
    lab = any_lab
    text = (lab.path / "slurm.conf").read_text().replace(str(lab.munge_socket), munged)
    (tmp_path / "slurm.conf").write_text(text)
    shutil.copy(lab.path / "cgroup.conf", tmp_path)
    stranger = Commands({**lab.env, "SLURM_CONF": str(tmp_path / "slurm.conf")}, timeout_s=10.0)
    harvest = Harvesting(lab)
    harvest.submit()
    harvest.fill(lab.nodes)
    reader = harvest.cluster._reader
    assert isinstance(reader, CommandReader)
    harvest.cluster._commands = stranger
    reader._commands = stranger
    before = len(harvest.journal.events)
    assert harvest.loop.tick() is None
    assert {e.kind for e in harvest.journal.events[before:]} <= {"cluster_unavailable"}
    (found,) = doctor.examine(stranger, Harvest("harvest"), time.time)
    assert says(found.what, "answer")
    assert "munge" in found.remedy
    harvest.cluster._commands = harvest.commands
    reader._commands = harvest.commands
    settled(harvest, lab.nodes)


WRAPPER = """#!/bin/sh
# {name}: does what the file says that Slurm's does not: `match mode`.
if [ -s {fault} ]; then
  read -r match mode < {fault}
  case "$*" in *"$match"*)
    case $mode in
      hang) exec sleep 60;;
      half) {real} "$@" | head -c 150; exit 0;;
      empty) exit 0;;
      error) echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 0;;
      deed) {real} "$@"; echo "slurm_update error: Socket timed out on send/recv operation" >&2; exit 1;;
      refuse) echo "slurm_update error: Access/permission denied" >&2; exit 1;;
    esac;;
  esac
fi
exec {real} "$@"
"""


class Faulty:
    """Slurm's commands, those of `lab`, made to fail on demand."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.commands: Commands | None = None
        self._fault = folder / "fault"
        environment = lab.env
        for name in ("scontrol", "squeue", "scancel", "sdiag", "sinfo"):
            real = shutil.which(name, path=environment["PATH"])
            script = folder / name
            script.write_text(WRAPPER.format(name=name, fault=self._fault, real=real))
            script.chmod(0o755)
        self.environment = {**environment, "PATH": f"{folder}:{environment['PATH']}"}

    def fail(self, match: str, mode: str) -> None:
        if mode == "hang" and self.commands is not None:
            self.commands._timeout_s = 5.0
        self._fault.write_text(f"{match} {mode}\n")

    def work(self) -> None:
        self._fault.unlink(missing_ok=True)
        if self.commands is not None:
            self.commands._timeout_s = 30.0


@pytest.fixture
def faulty(any_lab: Lab, tmp_path: Path) -> Iterator[tuple[Lab, Harvesting, Faulty]]:
    faults = Faulty(any_lab, tmp_path)
    harvest = Harvesting(any_lab, environment=faults.environment)
    faults.commands = harvest.commands
    yield any_lab, harvest, faults
    faults.work()


#: In the default suite: one of each mode; the rest nightly.
LOOKS = [
    *(("node", mode) for mode in ("half", "empty", "error")),
    *(("-o", mode) for mode in ("half", "error")),
    ("reservation", "error"),
]


@pytest.mark.parametrize(
    ("match", "mode"),
    [case if case == ("-o", "half") else pytest.param(*case, marks=pytest.mark.nightly) for case in LOOKS],
)
def test_an_answer_that_cannot_be_right_is_no_answer(
    faulty: tuple[Lab, Harvesting, Faulty], match: str, mode: str
) -> None:
    lab, harvest, faults = faulty
    harvest.submit()
    harvest.fill(lab.nodes)
    settled(harvest, lab.nodes)
    before = len(harvest.journal.events)
    faults.fail(match, mode)
    assert harvest.loop.tick() is None
    assert {e.kind for e in harvest.journal.events[before:]} == {"cluster_unavailable"}
    faults.work()
    settled(harvest, lab.nodes)
    assert not harvest.events("pilot_ended")


@pytest.mark.nightly
@pytest.mark.parametrize("match", ["node", "-o", "reservation"])
def test_a_look_that_hangs_is_given_up(faulty: tuple[Lab, Harvesting, Faulty], match: str) -> None:
    lab, harvest, faults = faulty
    harvest.submit()
    harvest.fill(lab.nodes)
    faults.fail(match, "hang")
    assert harvest.loop.tick() is None
    faults.work()
    settled(harvest, lab.nodes)


#: What fails while pilots are started or recycled; `deed`: it was done, and the answer is lost.
DEEDS = [
    ("NodeList=", "refuse"), ("NodeList=", "deed"), ("release", "deed"), ("release", "refuse"), ("release", "empty"),
    ("requeuehold", "deed"), ("requeuehold", "refuse"), ("requeuehold", "empty"), ("Requeue=1", "refuse"),
    ("Requeue=0", "refuse"),
]  # fmt: skip
HANGS = [(match, "hang") for match in ("NodeList=", "release", "requeuehold", "Requeue=1", "Requeue=0")]


@pytest.mark.parametrize(
    ("match", "mode"),
    [
        *(
            case if case == ("requeuehold", "deed") else pytest.param(*case, marks=pytest.mark.nightly)
            for case in DEEDS
        ),
        *(pytest.param(*case, marks=pytest.mark.nightly) for case in HANGS),
    ],
)
def test_deeds_that_fail_or_whose_answer_is_lost(
    faulty: tuple[Lab, Harvesting, Faulty], match: str, mode: str
) -> None:
    """Starting and recycling under the fault, then without it: every node ends in use, every task is accounted for,
    and a main job that comes is served."""
    lab, harvest, faults = faulty
    n = lab.nodes
    harvest.loop.rules = harvest.rules()
    harvest.submit(tasks=20)
    faults.fail(match, mode)
    harvest.loop.tick()
    harvest.loop.react()
    faults.work()
    settled(harvest, n)
    faults.fail(match, mode)
    lab.run(["scontrol", "update", f"NodeName={n[0]}", "State=DRAIN", "Reason=x"])
    harvest.loop.tick()
    harvest.loop.react()
    faults.work()
    settled(harvest, n[1:])
    lab.run(["scontrol", "update", f"NodeName={n[0]}", "State=RESUME"])
    main = lab.submit("sleep 600", "-p", "batch", "--nodes=8", "--exclusive", "--time=5", user="bob")
    lab.wait_for(lambda: harvest.loop.tick() and lab.job_state(main) == "RUNNING", 60, "the main job runs")
    for task, state in tasks_of(lab).items():
        assert state == "PENDING", f"{task} is {state} beside a job that has every node"


def test_no_pilot_leaves_for_the_reserve_while_a_restarted_slurmctld_has_not_heard_of_nodes(
    any_lab: Lab,
) -> None:
    lab, n = any_lab, any_lab.nodes
    harvest = Harvesting(lab, overrides={"keep_idle": 2})
    harvest.submit()
    lab.wait_for(lambda: harvest.tick() and len(harvest.held()) == len(n) - 2, 90, "pilots on all but two nodes")
    held = harvest.held()
    until_saved(lab)
    lab.kill("slurmctld", signal.SIGTERM)
    lab.wait_for(lambda: not lab.is_running("slurmctld"), 90)
    for name in n:  # so that none registers before the first look
        lab.kill(f"slurmd.{name}", signal.SIGSTOP)
    states: set[str] = set()

    def heard() -> bool:
        decision = harvest.loop.tick()
        harvest.loop.react()
        if decision is None or harvest.loop.last_snapshot is None:
            return False
        seen = {node.state for node in harvest.loop.last_snapshot.nodes}
        if NodeState.UNKNOWN in seen and NodeState.UNKNOWN not in states:
            let_go()
        states.update(seen)
        assert not [action for action in decision.actions if isinstance(action, LeavePilot)], decision.actions
        return NodeState.UNKNOWN in states and NodeState.UNKNOWN not in seen

    def let_go() -> None:
        for name in n:
            lab.kill(f"slurmd.{name}", signal.SIGCONT)

    try:
        lab.start("slurmctld")
        lab.wait_for(heard, 120, f"every node is heard of again; {states}")
    finally:
        let_go()
    assert harvest.held() == held
