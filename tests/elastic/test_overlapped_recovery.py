"""Newcomers receive the state while the others make a step, unless the script changes it within steps."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from malletrain.elastic.comm.group import Group, SoloGroup
from malletrain.elastic.comm.local_rank import LocalRank
from malletrain.elastic.comm.step_commit import StepCommitter, StepOutcome
from malletrain.elastic.data.batch_loader import BatchLoader
from malletrain.elastic.data.proportional_shares import ProportionalShares
from malletrain.elastic.data.sample_loader import SampleLoader
from malletrain.elastic.data.sampler import Sampler
from malletrain.elastic.resize.lifecycle import WorkerLifecycle
from malletrain.elastic.resize.pending_groups import PendingGroups
from malletrain.elastic.resize.reconfigure import Reconfigurer
from malletrain.elastic.resize.recovery_plan import MemberState, plan_recovery
from malletrain.elastic.state.overlapped_recovery import OverlappedSnapshot
from malletrain.elastic.state.training_state import Position, TrainingState
from malletrain.wire import messages
from scripts.bench.elastic.overhead import Calm
from tests.elastic.coordinator import running
from tests.elastic.digits import SCRIPT, Static, assert_equal, assert_every_sample_once, diary, wait_lines

#: Tensors with so many columns are shared, not copied; their steps are long, so there are fewer.
WIDE = "2048"
EPOCHS = "8"


def state() -> TrainingState:
    model = torch.nn.Sequential(torch.nn.Linear(600, 600), torch.nn.BatchNorm1d(600), torch.nn.Linear(600, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(4, 600)).sum().backward()
    optimizer.step()
    return TrainingState(model, [optimizer], Position())


def weight(kept: TrainingState) -> torch.nn.Parameter:
    return kept.model.get_parameter("0.weight")


def step(kept: TrainingState) -> None:
    kept.optimizers[0].step()


def in_place(kept: TrainingState) -> None:
    with torch.no_grad():
        weight(kept)[17, 3] += 1.0


def behind_the_back(kept: TrainingState) -> None:
    weight(kept).data.mul_(1.001)


def of_the_optimizer(kept: TrainingState) -> None:
    kept.optimizers[0].state[weight(kept)]["momentum_buffer"].zero_()


@pytest.mark.parametrize("change", [step, in_place, behind_the_back, of_the_optimizer])
def test_a_change_of_shared_tensors_is_detected(change: Callable[[TrainingState], None]) -> None:
    kept = state()
    lent = OverlappedSnapshot(kept)
    assert not lent.changed()
    change(kept)
    assert lent.changed()


def test_forward_and_backward_change_no_shared_tensor() -> None:
    kept = state()
    lent = OverlappedSnapshot(kept)
    before = [tensor.clone() for tensor in lent.tensors]
    buffer = kept.model.get_buffer("1.running_mean").clone()
    kept.model(torch.randn(4, 600)).sum().backward()
    assert not torch.equal(buffer, kept.model.get_buffer("1.running_mean"))
    assert not lent.changed()
    assert all(torch.equal(now, then) for now, then in zip(lent.tensors, before, strict=True))


@given(
    st.lists(
        st.builds(MemberState, st.booleans(), st.integers(0, 3), st.just(4), st.booleans()), min_size=1, max_size=6
    ),
    st.booleans(),
)
def test_recovery_is_overlapped_only_for_newcomers_and_if_all_donors_can(
    states: list[MemberState], sharded: bool
) -> None:
    plan = plan_recovery(states, 1, sharded=sharded)
    allowed = not sharded and plan.newest > 0 and bool(plan.fresh) and not plan.behind
    assert plan.overlapped == (allowed and all(states[rank].can_overlap for rank in plan.donors))


@given(st.integers(1, 40), st.integers(2, 9), st.data())
def test_during_recovery_the_others_share_the_whole_batch(batch: int, size: int, data: st.DataObject) -> None:
    recovering_ranks = data.draw(st.frozensets(st.integers(1, size - 1), min_size=1))
    dataset = torch.utils.data.TensorDataset(torch.arange(100))
    sampler = Sampler(100, batch, seed=3, shuffle=True, drop_last=False)
    whole = data.draw(st.booleans())
    feed = BatchLoader(
        sampler, SampleLoader(dataset, 3, None), ProportionalShares(balance=False), None, 0, whole=whole
    )
    cursor = data.draw(st.integers(0, 99))
    shares = [feed.load(0, cursor, rank, size, recovering_ranks) for rank in range(size)]
    taken = [index for share, _ in shares if share.weight for index in share.indices]
    assert taken == sampler.permutation(0)[cursor : cursor + sampler.next_batch(0, cursor)]
    assert all(shares[rank][0].weight == 0 for rank in recovering_ranks)
    expected = {len(sampler.share(0, cursor, rank, size).indices) if whole else 1 for rank in recovering_ranks}
    assert {len(shares[rank][0].indices) for rank in recovering_ranks} == expected
    assert all(loaded[0].tolist() == share.indices and share.indices for share, loaded in shares)


class Pair(SoloGroup):
    """A group of two that does nothing."""

    size = 2


class FakeMember(Calm):
    """A member without a daemon, which records what is done with it."""

    def __init__(self) -> None:
        self.committer = StepCommitter(self)
        self.worker, self.local_rank = "a", LocalRank()
        self.pending_groups = PendingGroups(lambda generation, reason: None)
        self.link, self.local_leader, self.finishing = None, None, False
        self.calls: list[str] = []

    def check(self, generation: int) -> None:
        self.calls.append("go on")

    def need_link(self) -> Any:
        return SimpleNamespace(say=lambda message: self.calls.append("report"))

    # --- of a StateRecovery whose second rank receives the state during the first step

    def recover(self, plan: messages.Plan, group: Group) -> frozenset[int]:
        self.calls.append("recover")
        return frozenset({1})

    def first_round_committed(self, *, changed: bool) -> None:
        self.calls.append(f"changed: {changed}")


@pytest.mark.parametrize("follows", ["between_steps", "between_rounds"])
@pytest.mark.parametrize("changed", [False, True])
def test_newcomers_that_got_a_changed_state_get_the_right_one_whatever_follows(follows: str, changed: bool) -> None:
    """The step may be the last of its epoch, and an evaluation come next."""
    fake: Any = FakeMember()
    silent: Any = SimpleNamespace(send_held=lambda: None, confirm=lambda: None, release_save=lambda: False)
    reconfigurer = Reconfigurer(
        fake,
        state(),
        fake,
        silent,
        silent,
        entered=lambda: None,
        prepare=lambda: None,
        top_up=lambda _: None,
        store_server=None,
    )
    lifecycle = WorkerLifecycle(fake, reconfigurer, silent, silent, silent, in_pilot=True)
    reconfigurer.enter_static_world(Pair())
    lifecycle.begin()
    lifecycle.committed(StepOutcome([], torch.zeros(8), agreed=0, ending=0, save_due=False, state_changed=changed))
    getattr(lifecycle, follows)()
    getattr(lifecycle, follows)()
    again = ["recover"] if changed else []
    assert fake.calls == ["recover", f"changed: {changed}", "report", *again, "go on", "go on"]


@pytest.mark.skipif("STANDIN" in os.environ, reason="from device to device the state is sent between two steps")
@pytest.mark.parametrize("how", [("--baseline",), ("--meddle",)], ids=["left alone", "meddled with"])
def test_newcomers_come_to_the_state_of_a_static_run(tmp_path: Path, static: Static, how: tuple[str, ...]) -> None:
    options = ["--epochs", EPOCHS, "--width", WIDE, *how]
    slow = ["--step-seconds", "0.15", "--slow-until", str(tmp_path / "go")]
    # (Newcomers run the script from its begin, so they evaluate where the others made steps long ago.)
    with running(tmp_path) as (daemon, pod):
        for tasks in ((0,), (0, 1, 2), (0, 1, 2, 3)):
            for task in tasks:
                if task not in pod.processes:
                    pod.spawn(daemon.url, task, [SCRIPT, *options, *slow])
            daemon.wait_world(tasks)
            wait_lines(tmp_path, 8, 20, "some steps")
        (tmp_path / "go").touch()
        assert [pod.wait(task) for task in range(4)] == [0, 0, 0, 0]
        logs = pod.logs()
    first = {
        task: json.loads((tmp_path / f"diary-{task}.0.jsonl").read_text().splitlines()[0])["indices"]
        for task in range(4)
    }
    meddled = "--meddle" in how
    assert first[0]
    assert not (first[1] and first[2]), "the state came in a step of the others"
    assert bool(first[3]) == meddled, "what was seen to change is not lent again"
    assert ("changes its state within a step" in logs) == meddled
    assert_every_sample_once(diary(tmp_path), int(EPOCHS))
    assert_equal(torch.load(tmp_path / "final.pt"), static("--epochs", EPOCHS, "--width", WIDE, *how), 1e-12)
