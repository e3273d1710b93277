"""Steps that are tried in forked copies of a worker: what the copies compare, and that they touch nothing."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from malletrain.elastic.comm.step_commit import StepCommitter, TrainingWorld
from malletrain.elastic.data.pieces import SAMPLES, Pieces
from malletrain.elastic.data.sampler import Share
from malletrain.elastic.errors import PeerLost
from malletrain.elastic.guards.split_trial.isolation import isolate
from malletrain.elastic.guards.split_trial.memory_room import bytes_free, resident_bytes
from malletrain.elastic.guards.split_trial.socket_group import SocketGroup, receive_bytes, send_bytes
from malletrain.elastic.guards.split_trial.trial_member import Trained, Unmonitored, farthest, multiplies_exactly
from malletrain.elastic.guards.split_trial.trials import MAX_TIME_SHARE, SplitTrials
from tests.waiting import wait_until


@given(st.integers(0, 2**31), st.floats(1e-6, 1e6), st.floats(0.01, 0.5))
def test_what_lies_apart_is_named_at_any_scale(seed: int, scale: float, by: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    one = scale * torch.randn(7, 3, generator=generator, dtype=torch.float64)
    other = scale * torch.randn(5, generator=generator, dtype=torch.float64)
    rounded = one * (1 + 1e-12)
    assert farthest([("one", one, rounded), ("other", other, other)], 1e-7, 0.0) is None
    found = farthest([("one", one, rounded), ("other", other, (1 + by) * other)], 1e-7, 0.0)
    assert found is not None and found[0] == "other"
    assert found[1] == pytest.approx(by / (1 + by))


def test_what_rounding_leaves_is_not_compared() -> None:
    noise = torch.full((4,), 1e-17, dtype=torch.float64)
    assert farthest([("one", noise, -noise)], 1e-7, 1e-13) is None
    assert farthest([("one", torch.zeros(4), torch.zeros(4))], 1e-7, 0.0) is None


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_the_precision_of_products_is_measured(precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        one = torch.linspace(0.1, 1.9, 256 * 256).reshape(256, 256)
        error = float((one @ one - one.double() @ one.double()).norm() / (one.double() @ one.double()).norm())
        assert multiplies_exactly() is (error < 1e-5)
        assert multiplies_exactly() or precision != "highest"
    finally:
        torch.set_float32_matmul_precision(before)


def in_both(call: Callable[[SocketGroup], None]) -> None:
    first, second = socket.socketpair()
    other = threading.Thread(target=call, args=(SocketGroup(second, 1),))
    other.start()
    call(SocketGroup(first, 0))
    other.join(60)
    assert not other.is_alive()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
def test_two_processes_have_bitwise_the_same_sums(dtype: torch.dtype) -> None:
    sums: list[torch.Tensor] = []

    def call(group: SocketGroup) -> None:
        large = (torch.arange(300_000) % 7 * (group.rank + 1)).to(dtype)
        for tensor in (large, torch.tensor(group.rank + 1, dtype=dtype), torch.empty(0, dtype=dtype)):
            assert group.all_reduce(tensor).wait(0.0)
            sums.append(tensor)
        into = [torch.empty(2, dtype=dtype), torch.empty(2, dtype=dtype)]
        group.all_gather(into, torch.full((2,), group.rank, dtype=dtype))
        assert [each.tolist() for each in into] == [[0, 0], [1, 1]]

    in_both(call)
    large = [each for each in sums if each.numel() > 1]
    assert torch.equal(*large) and torch.equal(large[0], (torch.arange(300_000) % 7 * 3).to(dtype))
    assert [each.item() for each in sums if each.ndim == 0] == [3, 3]


def test_a_copy_that_is_gone_is_noticed() -> None:
    first, second = socket.socketpair()
    send_bytes(second, b"{}")
    second.close()
    assert receive_bytes(first) == b"{}"
    with pytest.raises(PeerLost, match="gone"):
        SocketGroup(first, 0).all_reduce(torch.ones(3))


def test_a_copy_touches_nothing(tmp_path: Path) -> None:
    """What it writes is lost, what it would do outside otherwise ends it; the files that its parent has open, and the
    memory that it shares, stay as they are."""
    written, read, mapped = tmp_path / "written", tmp_path / "read", tmp_path / "mapped"
    read.write_text("0123456789")
    array = np.memmap(mapped, dtype=np.int64, mode="w+", shape=(4096,))
    shared = torch.zeros(4096).share_memory_()
    library, path = ctypes.CDLL(None), str(read).encode()
    outcomes = []
    with written.open("w") as out, read.open("rb", buffering=0) as source:
        assert source.read(2) == b"01"
        for act in (
            lambda: print("seen", file=out, flush=True),
            lambda: os.write(1, b"seen"),
            lambda: os.write(out.fileno(), source.read(3)),
            lambda: (tmp_path / "new").write_text("seen"),
            lambda: read.open("a").write("seen"),
            lambda: torch.save(shared, tmp_path / "new"),
            lambda: array.fill(1),
            lambda: shared.fill_(1),
            lambda: library.open(path, os.O_RDONLY),
            lambda: (tmp_path / "new").mkdir(),
            lambda: read.open("r+").write("seen"),
            lambda: read.unlink(),
            lambda: os.system("touch new"),
            lambda: os.fork(),
            lambda: socket.create_connection(("127.0.0.1", 1)),
            lambda: library.open(path, os.O_WRONLY | os.O_TRUNC),
            lambda: library.truncate(path, 0),
            lambda: library.unlink(path),
            lambda: library.kill(1, 0),
        ):
            parent, child = os.getpid(), os.fork()
            if not child:
                try:
                    isolate([], parent, 20, lambda event: os._exit(3))
                    act()
                except BaseException:  # noqa: BLE001  a copy must not go on as a test
                    os._exit(4)
                os._exit(0)
            outcomes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        assert source.read(3) == b"234"
    assert outcomes == [0] * 9 + [3] * 6 + [-signal.SIGSYS] * 4
    assert not array.any() and not shared.any()
    assert written.read_text() == "" and read.read_text() == "0123456789"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["mapped", "read", "written"]


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_a_copy_does_not_wait_for_threads_of_the_group_that_it_has_left(in_a_cycle: bool) -> None:
    """Its destructor joins them, in whatever line the last reference goes, or where garbage is collected: copies hung
    in the second step of a trial."""
    untyped: Any = dist
    group = untyped.ProcessGroupGloo(untyped.HashStore(), 0, 1, timedelta(seconds=20))
    committer, ring = StepCommitter(Unmonitored()), [group]
    if in_a_cycle:
        ring.append(ring)
    else:
        committer.world = TrainingWorld(1, ("n1",), ring.pop())
    parent, child = os.getpid(), os.fork()
    if not child:
        isolate([], parent, 20, lambda event: os._exit(3))
        committer.leave_for(TrainingWorld(1, ("first", "second")), Unmonitored())
        del group, ring
        gc.collect()
        os._exit(0)
    wait_until(lambda: bool(os.waitpid(child, os.WNOHANG)[0]), 90, "the end of the copy")


def trials_of(model: torch.nn.Module) -> SplitTrials:
    named = list(model.named_parameters())
    return SplitTrials(lambda norm: Trained(named, lambda: list(named), dict, norm))


def test_steps_are_tried_ever_more_seldom_in_other_parts() -> None:
    trials = trials_of(torch.nn.Linear(2, 2))
    tried = {step: cut for step in range(1, 100) if (cut := trials.cut(64))}
    assert tried == {1: 32, 2: 21, 5: 8, 10: 32, 21: 21, 42: 8, 85: 32}
    assert {place % 6 for step in tried for place in (step, step + 1)} == set(range(6)), "with the steps that follow"
    assert trials_of(torch.nn.Linear(2, 2)).cut(1) == 0
    for pieces, part in ((8, 2), (3, 1), (2, 1)):  # an eighth, but no single sample where there are four
        trials = trials_of(torch.nn.Linear(2, 2))
        assert [trials.cut(pieces) for _ in range(5)][-1] == part


def test_steps_are_tried_as_often_as_takes_their_share_of_the_time() -> None:
    clock = [1000.0]

    def now() -> float:
        clock[0] += 0.1
        return clock[0]

    named = list(torch.nn.Linear(2, 2).named_parameters())
    trials = SplitTrials(lambda norm: Trained(named, lambda: list(named), dict, norm), now)
    step = 85
    cuts = [trials.cut(2) for _ in range(step)]
    assert cuts[-1] == 1
    copy = trials.fork(step, 1, Pieces(2, SAMPLES, lambda first, last: (Share([0, 1], 2, 2), None)), None)
    if copy is not None:
        copy[0].give_up("it is a test")
    assert trials.cut(2) == 0
    assert trials.verdict(10.0, step + 1) == ""
    began = clock[0]
    while not trials.cut(2):
        clock[0] += 1.0
        assert clock[0] < began + 1000
    assert clock[0] - began >= 0.2 / MAX_TIME_SHARE  # forking and waiting took .1 s each, and more


def test_large_models_are_not_tried() -> None:
    trials = trials_of(torch.nn.Linear(2**13, 2**13 + 1, device="meta"))
    assert trials.cut(64) == 0
    assert not trials.possible


def test_room_is_the_least_that_any_limit_leaves(tmp_path: Path) -> None:
    for path, text in {
        "proc/meminfo": "MemTotal: 100 kB\nMemAvailable: 50 kB\n",
        "proc/self/status": "VmRSS:\t 7 kB\n",
        "proc/self/cgroup": "0::/slurm/job\n",
        "sys/fs/cgroup/slurm/memory.max": "30000\n",
        "sys/fs/cgroup/slurm/memory.current": "10000\n",
        "sys/fs/cgroup/slurm/job/memory.max": "max\n",
        "sys/fs/cgroup/slurm/job/memory.current": "10000\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert bytes_free(tmp_path) == 20000
    assert resident_bytes(tmp_path) == 7 * 1024
    (tmp_path / "proc/self/cgroup").write_text("9:memory:/slurm/job\n1:cpu:/\n")
    assert bytes_free(tmp_path) == 50 * 1024
    assert resident_bytes() > 0 and bytes_free() > 0
