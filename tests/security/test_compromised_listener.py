"""Whoever has taken over the listener orders what he likes over the actuator's socket, on a real Slurm."""

from __future__ import annotations

import json
import os
import pwd
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from malletrain.domain.decision import CancelTasks, RecyclePilot, StartPilot, Stray
from malletrain.slurm.actuator.bounds import ActuatorBounds
from malletrain.slurm.actuator.client import ActuatorClient
from malletrain.slurm.actuator.server import Actuator, ActuatorServer, AuditLog
from malletrain.slurm.cluster import SlurmCluster
from malletrain.slurm.command import Commands
from malletrain.slurm.site.site_facts import Harvest
from scripts.lab import Lab
from tests.messages import says

pytestmark = pytest.mark.slurm

HARVEST = Harvest("harvest")
ANNOUNCED = "--comment=malletrain job 3"


class Stage:
    """An actuator with `bounds` on the lab, and a hostile listener's end of its socket."""

    def __init__(self, lab: Lab, folder: Path, bounds: ActuatorBounds) -> None:
        self.lab = lab
        self.log = folder / "acts.jsonl"
        commands = Commands(lab.env, timeout_s=30.0)
        actuator = Actuator(commands, HARVEST, bounds, AuditLog(self.log, time.time))
        self.server = ActuatorServer(folder / "socket", actuator, frozenset({os.geteuid()}), lambda: None)
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        alice = pwd.getpwnam("alice").pw_uid
        owners: Callable[[int], int | None] = {3: alice, 4: alice}.get
        self.orders = ActuatorClient(SlurmCluster(commands, HARVEST, owners), folder / "socket", owners, 30.0)

    def close(self) -> None:
        self.server.stop()
        self.thread.join()
        self.server.close()

    def submit(self, tasks: int, *options: str, user: str = "alice") -> list[str]:
        array = self.lab.submit(
            "exec srun --ntasks=1 sleep 300", "-p", "harvest", "--hold", f"--array=0-{tasks - 1}", "--no-requeue",
            "--time=1", "--nodes=1", "--exclusive", "--mem=0", *options, user=user,
        )  # fmt: skip
        return [f"{array}_{task}" for task in range(tasks)]

    def start(self, *wanted: tuple[str, str], job: int = 3) -> list[str]:
        """What became of each start: '' where it is done."""
        starts = [StartPilot(job, pilot, node, 600.0, "a hole") for pilot, node in wanted]
        return ["" if outcome.done else outcome.detail for outcome in self.orders.start(starts)]

    def held(self) -> list[str]:
        """Tasks that were not released."""
        rows = self.lab.run(["squeue", "-h", "-r", "-t", "PD", "-o", "%i %Q"]).stdout.splitlines()
        return [task for task, priority in (row.split() for row in rows) if priority == "0"]

    def recorded(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


Begin = Callable[..., Stage]


@pytest.fixture
def begin(lab: Lab) -> Iterator[Begin]:
    if not lab.users:
        pytest.skip("needs plain users: run as root")
    begun: list[Stage] = []
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path is short

        def make(**bounds: Any) -> Stage:
            begun.append(Stage(lab, Path(folder), ActuatorBounds(3600.0, **bounds)))
            return begun[-1]

        yield make
        for stage in begun:
            stage.close()


def test_a_task_that_its_owner_has_not_announced_is_not_started(begin: Begin) -> None:
    stage = begin()
    (plain,), (mine,), (hers,) = (
        stage.submit(1),
        stage.submit(1, "--comment=malletrain job 3; a sweep"),
        stage.submit(1, "--comment=malletrain job 33"),
    )
    nodes = stage.lab.nodes
    said = stage.start((plain, nodes[0]), (mine, nodes[1]), (hers, nodes[2]))
    assert [says(each, "announced", "job 3") for each in said] == [True, False, True]
    assert said[1] == ""
    assert stage.start((mine, nodes[0]), job=4) != [""], "nor for another job"
    assert sorted(stage.held()) == sorted([plain, hers])


def test_no_pilot_on_an_excluded_node_or_outside_those_included(begin: Begin) -> None:
    stage = begin()
    nodes = stage.lab.nodes
    stage.close()
    stage = begin(include=frozenset(nodes[:3]), exclude=frozenset({nodes[0]}))
    tasks = stage.submit(3, ANNOUNCED)
    said = stage.start((tasks[0], nodes[0]), (tasks[1], nodes[5]), (tasks[2], nodes[1]))
    assert ["pool.exclude" in said[0], "pool.include" in said[1], said[2]] == [True, True, ""]


def test_no_more_pilots_than_the_site_allows(begin: Begin) -> None:
    stage = begin(max_pilots=2)
    tasks, nodes = stage.submit(5, ANNOUNCED), stage.lab.nodes
    assert stage.start((tasks[0], nodes[0])) == [""]
    said = stage.start(*zip(tasks[1:], nodes[1:], strict=False))
    assert [each == "" for each in said] == [True, False, False, False]
    assert "pool.max_pilots" in said[1]
    assert len(stage.held()) == 3


def test_no_more_starts_in_a_minute(begin: Begin) -> None:
    stage = begin(starts_per_minute=2)
    tasks, nodes = stage.submit(4, ANNOUNCED), stage.lab.nodes
    assert [bool(each) for each in stage.start(*zip(tasks, nodes, strict=False))] == [False, False, True, True]
    assert says(stage.start((tasks[3], nodes[3]))[0], "starts", "minute")


def test_not_everything_can_be_cancelled(begin: Begin) -> None:
    stage = begin(cancels_per_hour=3)
    announced, plain = stage.submit(5, ANNOUNCED), stage.submit(2)
    outcome = stage.orders.cancel(CancelTasks(3, tuple(plain), "mischief"))
    assert (outcome.done, "not announced" in outcome.detail) == (False, True)
    outcome = stage.orders.cancel(CancelTasks(3, (*announced, *plain), "mischief"))
    assert (outcome.done, says(outcome.detail, "cancelled", "hour")) == (False, True)
    assert not stage.orders.cancel(CancelTasks(3, tuple(announced), "mischief")).done
    assert sorted(stage.held()) == sorted([*announced[3:], *plain])


def test_no_job_is_ended_that_is_in_another_partition_or_announced_beyond_the_rate(begin: Begin) -> None:
    stage = begin(cancels_per_hour=1)
    tasks, nodes = stage.submit(3, ANNOUNCED), stage.lab.nodes
    assert stage.start(*zip(tasks[:2], nodes, strict=False)) == ["", ""]
    main = stage.lab.submit("sleep 300", "-p", "batch", "--exclusive", "--time=9", user="bob")
    plain = stage.lab.submit("sleep 300", "-p", "harvest", "--exclusive", "--time=9", user="bob")
    for job in (main, plain):
        stage.lab.wait_for_state(job, "RUNNING")
    outcomes = stage.orders.take_back([Stray(str(main), "bob"), *(Stray(task, "alice") for task in tasks)])
    assert [each.done for each in outcomes] == [True, True, False, False]
    assert "gone already" in outcomes[0].detail
    assert says(outcomes[2].detail, "cancelled", "hour")
    stage.lab.wait_for(lambda: stage.orders.take_back([Stray(str(plain), "bob")])[0].detail == "ended", 60)
    stage.lab.wait_for(lambda: stage.lab.job(str(plain))["JobState"] in ("CANCELLED", "FAILED"), 60)
    assert stage.lab.job(str(main))["JobState"] == "RUNNING"
    assert tasks[2] in stage.held()
    acts = [row for row in stage.recorded() if row.get("verb") == "take_back" and row["event"] == "done"]
    assert [(row["job"], row["user"]) for row in acts][-1] == (str(plain), "bob")


def test_every_act_is_recorded_and_what_is_refused_too(begin: Begin) -> None:
    stage = begin(max_pilots=1)
    tasks, nodes = stage.submit(2, ANNOUNCED), stage.lab.nodes
    stage.start((tasks[0], nodes[0]), (tasks[1], nodes[1]))
    stage.orders.recycle([RecyclePilot(3, tasks[0], nodes[0], "main job 9 could start")])
    rows = stage.recorded()
    assert stat.S_IMODE(stage.log.stat().st_mode) == 0o600
    assert [(row["event"], row.get("verb"), row.get("pilot"), row.get("done")) for row in rows] == [
        ("began", None, None, None),
        ("ordered", "start", tasks[0], None), ("ordered", "start", tasks[1], None),
        ("done", "start", tasks[0], True), ("done", "start", tasks[1], False),
        ("ordered", "recycle", tasks[0], None), ("done", "recycle", tasks[0], True),
    ]  # fmt: skip
    assert {row["job"] for row in rows[1:]} == {3}
    assert rows[1]["reason"] == "a hole"
    assert rows[-1]["reason"] == "main job 9 could start"
    assert rows[1]["uid"] == pwd.getpwnam("alice").pw_uid


def test_without_a_record_nothing_is_started_but_nodes_are_given_back(begin: Begin) -> None:
    stage = begin()
    tasks, nodes = stage.submit(2, ANNOUNCED), stage.lab.nodes
    assert stage.start((tasks[0], nodes[0])) == [""]
    stage.log.unlink()
    stage.log.mkdir()  # not even root writes into a folder
    assert says(stage.start((tasks[1], nodes[1]))[0], "log")
    assert not stage.orders.cancel(CancelTasks(3, (tasks[1],), "")).done
    assert stage.orders.recycle([RecyclePilot(3, tasks[0], nodes[0], "")])[0].done
