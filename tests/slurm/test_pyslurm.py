"""Looks through pyslurm: when it is chosen, and what it may say. On a pyslurm that tests made up.

tests/contract/test_cluster.py runs on a real one, where MALLETRAIN_PYSLURM_PYTHON names a Python that has it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from malletrain.domain.errors import ClusterUnavailable
from malletrain.domain.snapshot import NodeState, SlurmState
from malletrain.slurm.command import Commands
from malletrain.slurm.read_commands import CommandReader
from malletrain.slurm.read_pyslurm import choose
from tests.messages import says

#: A pyslurm as it is used: version 24.11.0, one node, an array with one task that runs, and a job that ended.
MADE_UP = """
import os, time
from types import SimpleNamespace as Thing

__version__ = "24.11.0"
MODE = os.environ.get("MADE_UP", "")
if MODE == "broken":
    raise ImportError("libslurmfull.so: cannot open shared object file")


class RPCError(Exception):
    pass


def node(**more):
    return Thing(**{**dict(name="n0", state="IDLE+PLANNED", partitions=["batch", "harvest"], total_cpus=16,
        allocated_cpus=0, real_memory=64000, configured_gres={"gpu": 2}, active_features=["a100"],
        available_features=["a100"], weight=0, reason=None), **more})


def job(**more):
    return Thing(**{**dict(id=7, state="PENDING", array_task_id=None, array_id=None, array_tasks_waiting=None,
        heterogeneous_id=None, heterogeneous_offset=None, time_limit=5, user_id=0, account=None, partition="batch",
        qos=None, state_reason="Resources", name="train", num_nodes=1, submit_time=1, eligible_time=1, start_time=9,
        end_time=None, allocated_nodes=None, scheduled_nodes="n0", required_nodes=None, excluded_nodes=None,
        constraints=[], gres_per_node=None, dependencies=None, priority=3, memory_per_node=4000,
        memory_per_cpu=None), **more})


class Nodes(dict):
    @staticmethod
    def load():
        if MODE == "silent":
            time.sleep(60)
        if MODE == "down":
            raise RPCError("Unable to contact slurm controller (connect failure)")
        if MODE == "fatal":
            os._exit(1)
        if MODE == "noise":
            print("slurm: a word on standard output", flush=True)
        return {"n0": node()}


class Jobs(dict):
    @staticmethod
    def load():
        array = dict(array_id=4, partition="harvest", scheduled_nodes=None)
        return {j.id: j for j in (
            job(),
            job(id=4, array_tasks_waiting="1-3", **array),
            job(id=5, state="RUNNING", allocated_nodes="n0", end_time=99, **array),
            job(id=6, state="COMPLETED"),
            job(id=8, heterogeneous_id=8, heterogeneous_offset=1, dependencies={"afterok": ["2"], "satisfy": "all"}),
        )}
"""


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    """Commands that find the made-up pyslurm, and whose scontrol and sdiag have nothing to tell."""
    (tmp_path / "pyslurm.py").write_text(MADE_UP)
    for name in ("scontrol", "sdiag", "squeue"):
        (tmp_path / name).write_text("#!/bin/sh\necho No reservations in the system\n")
        (tmp_path / name).chmod(0o755)
    return Commands({**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path)}, 60.0)


def in_mode(commands: Commands, mode: str, patience_s: float = 60.0) -> Commands:
    return Commands({**commands.environment, "MADE_UP": mode}, patience_s)


def reader(commands: Commands) -> CommandReader:
    command, why = choose(in_mode(commands, ""), (24, 11), sys.executable)
    assert why.endswith(" pyslurm 24.11.0")
    return CommandReader(commands, time.time, "harvest", 30.0, command)


def test_it_is_chosen_for_its_own_release_alone(commands: Commands) -> None:
    command, why = choose(commands, (26, 5), sys.executable)
    assert command == ()
    assert says(why, "24.11.0", "slurmctld", "26.05")


def test_one_that_does_not_import_is_not_chosen(commands: Commands) -> None:
    command, why = choose(in_mode(commands, "broken"), (24, 11), sys.executable)
    assert command == ()
    assert "cannot open shared object file" in why


def test_without_one_nothing_is_started(commands: Commands) -> None:
    command, why = choose(commands, (24, 11))
    assert command == (), "this Python has no pyslurm"
    assert "not installed" in why


def test_a_python_that_is_not_there_is_not_chosen(commands: Commands) -> None:
    command, why = choose(commands, (24, 11), "/nowhere/python")
    assert command == ()
    assert "/nowhere/python" in why


def test_what_it_shows_is_made_into_a_snapshot(commands: Commands) -> None:
    seen = reader(commands).snapshot()
    (node,) = seen.nodes
    assert (node.state, node.gres, node.weight, set(node.features)) == (NodeState.PLANNED, "gpu:2", 0, {"a100"})
    assert {job.id: job.state for job in seen.jobs} == {
        "7": SlurmState.PENDING,
        "4_1": SlurmState.PENDING,
        "4_2": SlurmState.PENDING,
        "4_3": SlurmState.PENDING,
        "4_0": SlurmState.RUNNING,
        "8+1": SlurmState.PENDING,
    }, "what has ended is not shown, as squeue does not"
    of = {job.id: job for job in seen.jobs}
    assert (of["7"].planned_nodes, of["7"].time_limit_s, of["7"].user) == (("n0",), 300.0, "root")
    assert of["4_0"].nodes == ("n0",)
    assert of["8+1"].dependency == "afterok:2"


@pytest.mark.parametrize(
    ("mode", "said"),
    [("down", "Unable to contact"), ("fatal", "exit status 1"), ("silent", "no answer"), ("noise", "wrong shape")],
)
def test_no_answer_is_no_snapshot(commands: Commands, mode: str, said: str) -> None:
    with pytest.raises(ClusterUnavailable, match=said):
        reader(in_mode(commands, mode, 2.0 if mode == "silent" else 60.0)).snapshot()
