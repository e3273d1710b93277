"""Nodes with several processes, one member each, and processes that were started together: every process group
satisfies the contract, and the result is that of a static run."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from malletrain.elastic.comm.authentication import Meeting
from malletrain.elastic.comm.group import Group, SoloGroup, Work, wait_complete
from malletrain.elastic.comm.node_group import LocalRank, find_local_rank
from malletrain.elastic.comm.static_rendezvous import environment_world, meeting_file, rank_and_size
from malletrain.elastic.comm.world_group import make_world_group
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.resize.state_recovery import MemberState, plan_recovery
from scripts.lab.ports import free_port
from tests.elastic import group_contract
from tests.elastic.coordinator import HERE, Coordinator, Pod, outside_slurm, run_ranks, running
from tests.elastic.digits import (
    EPOCHS,
    SCRIPT,
    Static,
    assert_every_sample_once,
    diary,
    slow,
    wait_lines,
)
from tests.elastic.stores import HOST, PATIENCE, run
from tests.waiting import wait_until
from tests.world import data_of

PLACES = 2


@pytest.mark.parametrize(("nodes", "places"), [(1, 3), (2, 2), (3, 2)])
def test_a_group_of_nodes_keeps_the_contract(nodes: int, places: int) -> None:
    def make(meeting: Meeting, rank: int) -> Group:
        node, place = divmod(rank, places)
        return make_world_group(meeting, node, nodes, LocalRank(place, places), HOST, PATIENCE)

    def act(group: Group) -> str:
        node, place = divmod(group.rank, places)
        in_node = [node * places + other for other in range(places)]
        at_place = [other * places + place for other in range(nodes)]
        return group_contract.check(group, [ring for ring in (in_node, at_place) if len(ring) > 1])

    assert run(nodes * places, act, make) == ["kept"] * (nodes * places)


@given(st.integers(1, 4), st.lists(st.tuples(st.booleans(), st.integers(0, 2)), min_size=1, max_size=6))
def test_everyone_gets_the_state_from_the_same_place_and_who_missed_a_round_leaves(
    places: int, said: list[tuple[bool, int]]
) -> None:
    """`said`: of each node whether it holds the state, and whether it is a round ahead: 1: its last process is, 2:
    all are."""
    states = [
        MemberState(whole, 7 + (ahead == 2 or (ahead == 1 and place == places - 1)))
        for whole, ahead in said
        for place in range(places)
    ]
    plan = plan_recovery(states, places)
    rounds = [{states[node * places + place].done for place in range(places)} for node in range(len(said))]
    newest = max((max(rounds[n]) for n, (whole, _) in enumerate(said) if whole and len(rounds[n]) == 1), default=-1)
    assert plan.newest == newest
    assert plan.leaving == {n for n, (whole, _) in enumerate(said) if whole and rounds[n] != {newest}}
    if plan.leaving:
        return
    assert sorted([*plan.donors, *plan.fresh]) == list(range(len(states)))
    got = list(plan.donors)
    for giver, takers in plan.receivers().items():
        for taker in takers:
            begins = newest < 0 and giver == 0 and taker < places
            assert giver % places == taker % places or begins
            got.append(taker)
    assert sorted(got) == list(range(len(states))), "each is given it, and none twice"


def test_where_a_process_stands() -> None:
    assert find_local_rank({}) == LocalRank(0, 1)
    assert find_local_rank({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "4"}) == LocalRank(1, 4)
    slurm = {"SLURM_LOCALID": "2", "SLURM_STEP_TASKS_PER_NODE": "3", "SLURM_STEP_NUM_TASKS": "3"}
    assert find_local_rank({**slurm, "MALLETRAIN_URL": "http://d"}) == LocalRank(2, 3)
    assert find_local_rank(slurm) == LocalRank(), "outside a pilot, tasks may be trainings of their own"
    assert find_local_rank(
        {"SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_STEP_NUM_TASKS": "1"}
    ).is_leader
    with pytest.raises(ElasticError, match="this node"):
        find_local_rank({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"})


def spawn_with_a_laggard(
    daemon: Coordinator, pod: Pod, given: list[str], rounds: int, nodes: int = 2, **environ: str
) -> None:
    """Nodes of two; the last process of all takes its group for broken in a round that the others commit."""
    for node, place in itertools.product(range(nodes), range(PLACES)):
        local = {"LOCAL_RANK": str(place), "LOCAL_WORLD_SIZE": str(PLACES)}
        last = (node, place) == (nodes - 1, PLACES - 1)
        others = nodes * PLACES - 1
        told = {"LAG_AT": f"{rounds},{others}"} if last else {"COMMITTED": f"{rounds},{node}.{place}"}
        pod.spawn(daemon.url, node, [SCRIPT, *given], 0, **local, **told, **(environ if node else {}))


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(10, id="in a step"),
        pytest.param(29, id="in an evaluation", marks=pytest.mark.nightly),
    ],
)
def test_a_node_of_which_a_process_missed_a_round_leaves(tmp_path: Path, static: Static, rounds: int) -> None:
    go = tmp_path / "go"
    given = ["--epochs", "4", "--evaluate", "--wait-for", "4", "--step-seconds", "1", "--slow-until", str(go)]
    with running(tmp_path, check_in_s=20.0, arrive_s=20.0, reconnect_s=30.0) as (daemon, pod):
        spawn_with_a_laggard(daemon, pod, given, rounds)
        daemon.wait_world([0, 1])
        go.touch()
        assert [pod.wait(node) for node in (1, 0)] == [143, 0]
        assert not daemon.seen("worker_lost")
    static.assert_like(tmp_path, "--epochs", "4", "--evaluate")


def test_the_only_node_saves_its_state_where_a_process_missed_a_round(tmp_path: Path, static: Static) -> None:
    """No whole node is left to take it from: one step may be made again, and not all since the last checkpoint."""
    given = ["--epochs", "2", "--wait-for", "2"]
    with running(tmp_path, places=PLACES, check_in_s=20.0, arrive_s=20.0, reconnect_s=30.0) as (daemon, pod):
        spawn_with_a_laggard(daemon, pod, given, 10, nodes=1)
        assert pod.wait(0) == 143
        pod.spawn(daemon.url, 1, [SCRIPT, *given])
        assert pod.wait(1) == 0
    resumed = min(line["step"] for line in diary(tmp_path) if line.get("task") == "1")
    assert resumed >= 11
    static.assert_like(tmp_path, "--epochs", "2")


@pytest.mark.nightly
def test_a_frozen_process_takes_its_node_out_and_all_can_leave_and_resume(tmp_path: Path, static: Static) -> None:
    with running(tmp_path, places=PLACES) as (daemon, pod):
        pod.begin(daemon, (0, 1), [SCRIPT, *slow(tmp_path)])
        wait_until(lambda: any(line["size"] == 4 for line in diary(tmp_path)), 60, "a step of four processes")
        pod.kill((0, 1), signal.SIGSTOP)
        daemon.wait_world([1], 90)
        pod.kill((0, 1), signal.SIGCONT)
        assert 0 not in pod.wait_node(0)
        wait_lines(tmp_path, 3, 90, "steps of the other node")
        pod.kill((1, 1), signal.SIGTERM)
        assert pod.wait(1) == 143, "a node leaves as one"
        assert [event.pilot for event in daemon.seen("worker_lost")] == ["100_0"]
        pod.begin(daemon, (2,), [SCRIPT, *slow(tmp_path)])
        pod.finish(2)
    static.assert_like(tmp_path)


@pytest.mark.parametrize(
    ("how", "carrier"), [(["--clip"], {}), ([], {"STANDIN": "20"})], ids=["accumulating", "over a device"]
)
def test_nodes_of_two_grow_shrink_and_are_lost_like_a_static_run(
    tmp_path: Path, static: Static, how: list[str], carrier: dict[str, str]
) -> None:
    script = [SCRIPT, *slow(tmp_path), "--step-seconds", "0.5", *how]  # a kill must find the time between two
    with running(tmp_path, places=PLACES) as (daemon, pod):
        pod.begin(daemon, (0,), script, 0, **carrier)
        pod.grow(daemon, (1, 2), script, **carrier)
        wait_until(lambda: any(line["size"] == 6 for line in diary(tmp_path)), 60, "a step of six processes")
        pod.kill_between_steps((1, 1))
        daemon.wait_world([0, 2], 90)
        assert 0 not in pod.wait_node(1), "the node ends as one"
        daemon.leave(0)
        daemon.wait_world([2], 90)
        assert pod.wait(0) == 143
        wait_until(lambda: diary(tmp_path)[-1]["size"] == 2, 60, "steps of one node")
        pod.finish(2)
        assert [event.pilot for event in daemon.seen("worker_lost")] == ["100_1"]
        assert daemon.seen("job_completed")
        assert {data_of(event)["nodes"] for event in daemon.seen("samples")} <= {1, 2, 3}
    assert_every_sample_once(diary(tmp_path), int(EPOCHS))
    static.assert_like(tmp_path, "--epochs", EPOCHS, *how)


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PLACES}"]


def test_torchrun_in_a_pilot_leaves_in_order(tmp_path: Path) -> None:
    """And commands after it do not run, whatever its exit status is."""
    worker = [*TORCHRUN, str(HERE / "as_worker.py"), SCRIPT, "--epochs", "100", "--step-seconds", "0.1"]
    body = f"cd {shlex.quote(str(tmp_path))}; trap 'exit 143' TERM; {shlex.join(worker)}; touch after"
    with running(tmp_path) as (daemon, pod):
        process = pod.launch(daemon.url, 0, "/bin/bash", "-c", body)
        daemon.wait_world([0])
        wait_until(lambda: any(line["size"] == PLACES for line in diary(tmp_path)), 60, "a step of both")
        daemon.leave(0)
        left = daemon.wait_seen("worker_left")
        assert process.wait(60) != 0
        assert str(data_of(left)["saved"]).startswith(str(tmp_path / ".malletrain"))
        assert not daemon.seen("worker_lost")
    assert not (tmp_path / "after").exists()


@pytest.mark.parametrize("carrier", [{}, {"STANDIN": "20"}], ids=["gloo", "stand-in"])
def test_a_node_with_another_number_of_processes_is_told_so(tmp_path: Path, carrier: dict[str, str]) -> None:
    with running(tmp_path, places=PLACES) as (daemon, pod):
        pod.begin(daemon, (0,), [SCRIPT, *slow(tmp_path)], 0, **carrier)
        pod.places = 1
        pod.spawn(daemon.url, 1, [SCRIPT, *slow(tmp_path)], 0, **carrier)
        assert pod.wait(1) == 1
        assert re.search(r"node has 1 training .*have 2: ", pod.log(1))
        pod.finish(0)


def mpi() -> list[str]:
    """The command `mpiexec -n 3 python`; skips the test without MPI. MALLETRAIN_TEST_MPI names a python with
    mpi4py."""
    python = os.environ.get("MALLETRAIN_TEST_MPI", sys.executable)
    beside = Path(python).parent / "mpiexec"
    command = str(beside) if beside.exists() else shutil.which("mpiexec")
    if command is None:
        pytest.skip("no mpiexec: apt-get install mpich, or pip install mpich")
    if subprocess.run([python, "-c", "import mpi4py.MPI"], capture_output=True, timeout=60).returncode:
        pytest.skip("no mpi4py: pip install mpi4py, or MALLETRAIN_TEST_MPI=/path/to/python that has it")
    return [command, "-n", "3", python]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_gloo_group_satisfies_the_contract(size: int) -> None:
    assert run(size, group_contract.check) == ["kept"] * size


def test_an_operation_that_is_kept_does_not_keep_its_group_open() -> None:
    """A step's operations are kept until the next one's: dropping them closed the group, and stopped training."""
    kept: list[Work] = []

    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    def act(group: Group) -> None:
        kept.extend(group.all_reduce(torch.zeros(1)) for _ in range(2))
        wait_complete(kept[-1])

    before = threads()
    run(2, act)
    wait_until(lambda: threads() <= before, 20, "gloo's threads to end")
    assert len(kept) == 4


def test_mpi_group_satisfies_the_contract() -> None:
    command = [*mpi(), group_contract.__file__]
    done = subprocess.run(command, env=outside_slurm(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [f"kept by rank {rank} of 3" for rank in range(3)]


def test_processes_of_one_mpiexec_train_as_one(tmp_path: Path, static: Static) -> None:
    options = ["--epochs", "2", "--clip"]
    command = [*mpi(), SCRIPT, *options, "--world", "mpi"]
    subprocess.run(command, env=outside_slurm(MALLETRAIN_TEST_DIR=str(tmp_path)), check=True, timeout=300)
    assert_every_sample_once(diary(tmp_path), 2)
    assert {line["size"] for line in diary(tmp_path) if "step" in line} == {3}
    static.assert_like(tmp_path, *options)


@pytest.mark.parametrize("carrier", [{}, {"STANDIN": "20"}], ids=["host", "device"])
def test_processes_of_one_step_train_as_one(tmp_path: Path, static: Static, carrier: dict[str, str]) -> None:
    """One rank from Slurm's variables, one from torchrun's."""
    options = ["--epochs", "2", "--clip"]
    more = {"MASTER_PORT": str(free_port()), **carrier}
    (tmp_path / "meeting").mkdir(mode=0o700)
    stale = tmp_path / "meeting" / f"meeting-127.0.0.1_{more['MASTER_PORT']}-"
    stale.write_text(json.dumps([f"127.0.0.1:{free_port()}", "of an earlier run"]))
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": str(os.getpid())}
    script = [SCRIPT, *options, "--world", "environment"]
    statuses, logs = run_ranks(tmp_path, script, [slurm | more, {"RANK": "1"} | more])
    assert statuses == [0, 0], logs
    assert not list((tmp_path / "meeting").iterdir()), "the secret is removed when all have come"
    assert_every_sample_once(diary(tmp_path), 2)
    static.assert_like(tmp_path, *options)


def test_rank_and_meeting_come_from_the_environment() -> None:
    slurm = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "8"}
    assert rank_and_size(slurm) == (3, 4)
    assert meeting_file(slurm | {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "1"}) == "meeting-5_1-"
    assert meeting_file({"MASTER_ADDR": "::1", "MASTER_PORT": "29500"}) == "meeting-__1_29500-"
    assert isinstance(environment_world({"RANK": "0", "WORLD_SIZE": "1"}), SoloGroup)
    with pytest.raises(ElasticError, match="torchrun"):
        rank_and_size({"RANK": "4", "WORLD_SIZE": "4"})
    with pytest.raises(ElasticError, match="set MASTER_ADDR"):
        meeting_file({"SLURM_JOB_ID": "5"})
    with pytest.raises(ElasticError, match="and MASTER_ADDR"):
        environment_world({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "nowhere.invalid", "MASTER_PORT": "1"})
