"""Sums whose operations complete asynchronously and look complete after an abort: NCCL's way, here by a stand-in."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from malletrain.elastic.comm import carrier as carriers
from malletrain.elastic.comm.authentication import Meeting
from malletrain.elastic.comm.background import BackgroundThread
from malletrain.elastic.comm.carrier import DeviceCarrier, find_carrier
from malletrain.elastic.comm.device_group import DeviceGroup, PairedGroup
from malletrain.elastic.comm.group import Group
from malletrain.elastic.comm.node_group import LocalRank
from malletrain.elastic.comm.world_group import make_world_group
from malletrain.elastic.errors import ElasticError, PeerLost
from tests.elastic import device_stand_in, group_contract
from tests.elastic.coordinator import run_ranks, running
from tests.elastic.device_stand_in import Completion, StandInCollectives
from tests.elastic.digits import SCRIPT, Static, slow
from tests.elastic.stores import HOST, PATIENCE, run
from tests.waiting import wait_until


def worlds(size: int, act: Callable[[Group], object], carrier: DeviceCarrier | None = None) -> list[object]:
    """As `run`, with the stand-in."""

    def make(meeting: Meeting, rank: int) -> Group:
        chosen = carrier or device_stand_in.carrier()
        return make_world_group(meeting, rank, size, LocalRank(), HOST, PATIENCE, chosen)

    def connected(group: Group) -> object:
        assert isinstance(group, PairedGroup)
        group.connect_now(PATIENCE, lambda: None)
        return act(group)

    return run(size, connected, make)


@pytest.mark.parametrize("size", [2, 4])
def test_a_pair_of_host_and_device_satisfies_the_contract(size: int) -> None:
    assert worlds(size, group_contract.check) == ["kept"] * size


def test_all_members_drop_what_one_could_not_connect_beside() -> None:
    tried: list[str] = []

    def connect(store: Any, rank: int, size: int, timeout: timedelta) -> StandInCollectives:
        tried.append(f"{rank}")
        if rank == 1 and tried.count("1") == 1:
            raise PeerLost("no route")
        return device_stand_in.connect(store, rank, size, min(timeout, timedelta(seconds=3)))

    failing = replace(device_stand_in.carrier(timedelta(seconds=3)), connect=connect)
    assert worlds(3, group_contract.check, failing) == ["kept"] * 3
    assert sorted(tried) == ["0", "0", "1", "1", "2", "2"], "each tried beside training, and again at the boundary"


def test_an_operation_that_an_abort_completed_is_not_taken_for_done() -> None:
    def act(group: Group) -> str:
        collectives = StandInCollectives(group, delay_s=60.0)
        device = DeviceGroup(collectives, group.rank, group.size)
        tensor = torch.ones(4)
        work = device.all_reduce(tensor)
        assert not work.wait(0.05)
        device.abandon()
        with pytest.raises(PeerLost):
            work.wait(30.0)
        with pytest.raises(PeerLost):
            work.wait(0.0)
        with pytest.raises(PeerLost):
            device.all_reduce(tensor)
        return "refused"

    before = {*threading.enumerate()}  # other tests of this process leave threads that are stuck by intent
    assert run(2, act) == ["refused"] * 2
    ours = [each for each in {*threading.enumerate()} - before if isinstance(each, BackgroundThread)]
    for each in ours:
        each.join(10.0)
    assert not any(each.is_alive() for each in ours)


def test_the_event_comes_before_the_flag_is_looked_at() -> None:
    """The group is given up between two queries, and the aborted operation completes at once."""

    class Aborting(Completion):
        group: DeviceGroup

        def __call__(self) -> bool:
            self.group.abandon()
            return True

    event = Aborting()

    class Idle:
        def all_reduce(self, tensor: torch.Tensor) -> Completion:
            return event

        def abort(self) -> None:
            pass

    event.group = DeviceGroup(Idle(), 0, 2)
    work = event.group.all_reduce(torch.ones(1))
    with pytest.raises(PeerLost):
        work.wait(1.0)


def test_a_device_that_is_connected_too_late_is_given_up() -> None:
    made: list[DeviceGroup] = []
    begun, go_on = threading.Event(), threading.Event()

    def act(group: Group) -> str:
        def connect(attempt: str, limit: timedelta) -> DeviceGroup:
            if attempt == "beside" and group.rank == 0:
                begun.set()
                go_on.wait(90)
            device = DeviceGroup(StandInCollectives(group), group.rank, group.size)
            if attempt == "beside" and group.rank == 0:
                made.append(device)
            return device

        paired = PairedGroup(group, lambda tensor: tensor.is_floating_point(), connect)
        paired.connect_in_background(timedelta(seconds=0.5))
        assert paired.flat is None
        go_on.set()
        return "dropped"

    assert run(2, act) == ["dropped"] * 2
    wait_until(lambda: bool(made) and made[0].abandoned, 90, "the late communicator is given up")


def model_on(*devices: str) -> Any:
    tensors = [SimpleNamespace(device=torch.device(name)) for name in devices]
    return SimpleNamespace(parameters=lambda: tensors, buffers=list)


SLICE = {"CUDA_VISIBLE_DEVICES": "MIG-7a1c"}


@pytest.mark.parametrize(
    ("devices", "environ", "says"),
    [
        (("cuda:0", "cuda:1"), {}, "cuda:0 and cuda:1: "),
        (("cpu",), {"MALLETRAIN_BACKEND": "nccl"}, "the GPU"),
        (("cuda:0",), {"MALLETRAIN_BACKEND": "ncl"}, "auto, nccl or gloo"),
        (("cuda:0",), {"MALLETRAIN_BACKEND": "nccl", **SLICE}, r"\(MIG-7a1c\), .*NCCL"),
    ],
)
def test_what_no_carrier_can_serve_is_refused(devices: tuple[str, ...], environ: dict[str, str], says: str) -> None:
    with pytest.raises(ElasticError, match=says):
        find_carrier(model_on(*devices), environ)


def test_the_models_device_chooses_the_carrier(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert find_carrier(model_on("cuda:0"), SLICE) is None
    assert "(MIG-7a1c), which NCCL" in caplog.text
    monkeypatch.setattr(carriers, "_lacks_nccl", lambda environ: "")
    assert find_carrier(model_on("cpu"), {}) is None
    assert find_carrier(model_on("cuda:0"), {"MALLETRAIN_BACKEND": "gloo"}) is None
    chosen = find_carrier(model_on("cpu", "cuda:0"), {})
    assert chosen is not None and chosen.connect_limit
    assert not chosen.takes(torch.zeros(1)), "tensors in host memory go by the host's carrier"
    monkeypatch.setattr(carriers, "_lacks_nccl", lambda environ: "NCCL 2.10.3")
    assert find_carrier(model_on("cuda:0"), {}) is None


def test_a_newcomer_that_sums_in_another_way_is_refused_and_the_others_go_on(
    tmp_path: Path, static: Static, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice of a GPU beside whole GPUs: its sums by gloo would wait for the others', by NCCL, for ever."""
    monkeypatch.delenv("STANDIN", raising=False)
    given = slow(tmp_path)
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, range(2), [SCRIPT, *given], STANDIN="20")
        pod.spawn(daemon.url, 2, [SCRIPT, *given])
        assert pod.wait(2) not in (0, 143)
        daemon.wait_world([0, 1])
        pod.finish(0, 1)
        reason = daemon.seen("worker_lost")[0].reason
    assert re.search(r"100_2\.0: ElasticError: .* over gloo, .* over NCCL", reason), reason
    static.assert_like(tmp_path)


def test_processes_started_together_on_unlike_devices_end_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STANDIN", raising=False)
    script = [SCRIPT, "--epochs", "2", "--world", "environment"]
    statuses, logs = run_ranks(tmp_path, script, [{"RANK": "0", "STANDIN": "20"}, {"RANK": "1"}])
    assert 0 not in statuses
    assert re.search(r"rank 1 .* rank 0", logs[0])
    assert "over gloo" in logs[1]
