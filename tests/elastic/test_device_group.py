"""Sums whose operations complete asynchronously and look complete after an abort: NCCL's way, here by a stand-in."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from malletrain.elastic.comm import carrier as carriers
from malletrain.elastic.comm.background import all_closed
from malletrain.elastic.comm.carrier import DeviceCarrier, find_carrier
from malletrain.elastic.comm.device_group import DeviceGroup, PairedGroup
from malletrain.elastic.comm.group import Group
from malletrain.elastic.comm.node_group import LocalRank
from malletrain.elastic.comm.world_group import make_world_group
from malletrain.elastic.errors import ElasticError, PeerLost
from tests.elastic import device_stand_in, group_contract
from tests.elastic.coordinator import running
from tests.elastic.device_stand_in import Completion, StandInCollectives
from tests.elastic.digits import EPOCHS, SCRIPT, Static, assert_equal, assert_every_sample_once, diary, slow
from tests.elastic.stores import meeting, serve
from tests.elastic.test_transfer import run
from tests.waiting import wait_until

PATIENCE = timedelta(seconds=30)


def worlds(size: int, act: Any, carrier: DeviceCarrier | None = None) -> list[object]:
    """Runs `act(group)` in a thread for each member of a world with the stand-in; returns results or errors."""
    server = serve()
    results: list[object] = [None] * size

    def member(rank: int) -> None:
        chosen = carrier or device_stand_in.carrier()
        try:
            group = make_world_group(meeting(server.address), rank, size, LocalRank(), "127.0.0.1", PATIENCE, chosen)
            if isinstance(group, PairedGroup):
                group.connect_now(PATIENCE, lambda: None)
            results[rank] = act(group)
        except (AssertionError, PeerLost) as error:
            results[rank] = error
        finally:
            done.wait(60)
            group.abandon()

    done = threading.Barrier(size)
    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    return results


def contract(group: Group) -> str:
    group_contract.check(group)
    return "kept"


@pytest.mark.parametrize("size", [2, 4])
def test_a_pair_of_host_and_device_satisfies_the_contract(size: int) -> None:
    assert worlds(size, contract) == ["kept"] * size


def test_all_members_drop_what_one_could_not_connect_beside() -> None:
    tried: list[str] = []

    def connect(store: Any, rank: int, size: int, timeout: timedelta) -> StandInCollectives:
        tried.append(f"{rank}")
        if rank == 1 and tried.count("1") == 1:
            raise PeerLost("no route")
        return device_stand_in.connect(store, rank, size, min(timeout, timedelta(seconds=3)))

    failing = replace(device_stand_in.carrier(timedelta(seconds=3)), connect=connect)
    assert worlds(3, contract, failing) == ["kept"] * 3
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

    assert run(2, act) == ["refused"] * 2
    assert all_closed(10.0)


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
        paired.connect_beside(timedelta(seconds=0.5))
        assert paired.flat is None
        go_on.set()
        return "dropped"

    assert run(2, act) == ["dropped"] * 2
    wait_until(lambda: bool(made) and made[0].given_up, 90, "the late communicator is given up")


def model_on(*devices: str) -> Any:
    tensors = [SimpleNamespace(device=torch.device(name)) for name in devices]
    return SimpleNamespace(parameters=lambda: tensors, buffers=list)


@pytest.mark.parametrize(
    ("devices", "environ", "says"),
    [
        (("cuda:0", "cuda:1"), {}, "cuda:0 and cuda:1: a process trains on one GPU"),
        (("cpu",), {"MALLETRAIN_BACKEND": "nccl"}, "move it to the GPU"),
        (("cuda:0",), {"MALLETRAIN_BACKEND": "ncl"}, "must be auto, nccl or gloo"),
    ],
)
def test_what_no_carrier_can_serve_is_refused(devices: tuple[str, ...], environ: dict[str, str], says: str) -> None:
    with pytest.raises(ElasticError, match=says):
        find_carrier(model_on(*devices), environ)


def test_the_models_device_chooses_the_carrier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carriers, "_lacks_nccl", lambda environ: "")
    assert find_carrier(model_on("cpu"), {}) is None
    assert find_carrier(model_on("cuda:0"), {"MALLETRAIN_BACKEND": "gloo"}) is None
    chosen = find_carrier(model_on("cpu", "cuda:0"), {})
    assert chosen is not None and chosen.beside_limit
    assert not chosen.takes(torch.zeros(1)), "tensors in host memory go by the host's carrier"
    monkeypatch.setattr(carriers, "_lacks_nccl", lambda environ: "NCCL 2.10.3")
    assert find_carrier(model_on("cuda:0"), {}) is None
    with pytest.raises(ElasticError, match=r"NCCL 2\.10\.3"):
        find_carrier(model_on("cuda:0"), {"MALLETRAIN_BACKEND": "nccl"})


def test_slices_of_a_gpu_are_summed_by_gloo(caplog: pytest.LogCaptureFixture) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "MIG-7a1c"}
    assert find_carrier(model_on("cuda:0"), environ) is None
    assert "a slice of a GPU (MIG-7a1c), which NCCL does not connect" in caplog.text
    with pytest.raises(ElasticError, match="MIG-7a1c"):
        find_carrier(model_on("cuda:0"), {**environ, "MALLETRAIN_BACKEND": "nccl"})


@pytest.mark.parametrize(
    ("limit_s", "hangs"),
    [("20", ""), ("2", "2")],
    ids=["beside", "hangs beside"],
)
def test_growing_shrinking_and_a_kill_equal_a_static_run(
    tmp_path: Path, static: Static, limit_s: str, hangs: str
) -> None:
    options = slow(tmp_path)
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, range(2), [SCRIPT, *options], STANDIN=limit_s)
        for task in (2, 3):
            pod.spawn(daemon.url, task, [SCRIPT, *options], STANDIN=limit_s, STANDIN_HANGS=hangs)
        daemon.wait_world([0, 1, 2, 3])
        pod.kill_after_a_step(1)
        daemon.wait_world([0, 2, 3])
        daemon.leave(2)
        daemon.wait_world([0, 3])
        pod.finish(0, 3)
    assert_every_sample_once(diary(tmp_path), int(EPOCHS))
    assert_equal(torch.load(tmp_path / "final.pt"), static("--epochs", EPOCHS), 1e-12)
