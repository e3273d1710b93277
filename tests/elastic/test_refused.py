"""Models and loops that cannot be trained this way are refused, and the message says what to do; a loop over a
DataLoader as it is, by `elastic.ddp`, is equal to its static run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from malletrain import elastic
from malletrain.elastic.adapters.ddp import ElasticLoader
from malletrain.elastic.adapters.steps import Steps
from malletrain.elastic.data.sampler import Sampler
from tests.elastic.coordinator import HERE, running
from tests.elastic.digits import assert_equal, run_alone
from tests.elastic.test_habits import steps_of
from tests.waiting import wait_until

DATA = TensorDataset(torch.zeros(8, 4), torch.zeros(8, dtype=torch.int64))


@pytest.fixture
def one_process() -> Iterator[None]:
    """PyTorch's global group, of this process alone: sharding needs it."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def two_processes() -> Iterator[None]:
    """The same as the first of two that exchange nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def test_a_sharded_model(two_processes: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    with pytest.raises(elastic.ElasticError, match="the model is sharded"):
        elastic.Session(model, torch.optim.SGD(model.parameters(), lr=0.1), DATA, batch_size=4)


def test_a_model_in_ddp(one_process: None) -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(elastic.ElasticError, match="give Session the plain model"):
        elastic.Session(model, optimizer, DATA, batch_size=4)
    with pytest.raises(elastic.ElasticError, match=r"init_process_group has been called.*loader.session has is_main"):
        elastic.ddp(nn.Linear(4, 3), optimizer, DataLoader(DATA, batch_size=4))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"optimizer": []}, "Session needs an optimizer"),
        ({"optimizer": [3]}, "an optimizer must be a torch.optim.Optimizer, not int"),
        ({"model": [nn.Linear(1, 1), 3]}, "a model must be a torch.nn.Module, not int"),
        ({"optimizer": torch.optim.LBFGS(nn.Linear(1, 1).parameters())}, r"LBFGS calls .*LBFGS\(..., max_iter=1\)"),
    ],
    ids=["none", "number", "model", "lbfgs"],
)
def test_models_and_optimizers_of_other_kinds(given: dict[str, Any], text: str) -> None:
    model = nn.Linear(4, 3)
    whole = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), **given}
    with pytest.raises(elastic.ElasticError, match=text):
        elastic.Session(dataset=DATA, batch_size=4, **whole)


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        (None, "there is none: track it only where"),
        (3, "int has no state_dict and .*: give it both, .* s.steps_done"),
    ],
)
def test_what_cannot_be_tracked_is_told_the_way(thing: Any, text: str) -> None:
    model = nn.Linear(4, 3)
    s = elastic.Session(model, torch.optim.SGD(model.parameters(), lr=0.1), DATA, batch_size=4)
    with pytest.raises(elastic.ElasticError, match=rf"track\(scheduler=...\): {text}"):
        s.track(scheduler=thing)


def test_a_frozen_model() -> None:
    model = nn.Linear(4, 3).requires_grad_(False)
    with pytest.raises(elastic.ElasticError, match="no parameter that requires a gradient"):
        elastic.Session(model, torch.optim.SGD(model.parameters(), lr=0.1), DATA, batch_size=4)


@pytest.mark.parametrize("order", [[0] * 8, list(range(7)), list(range(1, 9))], ids=["twice", "missing", "beyond"])
def test_an_order_that_does_not_hold_each_sample_once(order: list[int]) -> None:
    sampler = Sampler(8, 4, seed=0, shuffle=True, drop_last=False, order=lambda _: order)
    with pytest.raises(elastic.ElasticError, match=r"order\(3\) must return each index from 0 to 7 once"):
        sampler.permutation(3)


BATCHES = [[7, 6], [5, 4, 3, 2], [], [1, 0]]


def test_batches_of_unequal_sizes_follow_the_scripts_order() -> None:
    sampler = Sampler(8, 4, seed=0, shuffle=True, drop_last=False, order=lambda _: BATCHES)
    assert [sampler.next_batch(0, cursor) for cursor in (0, 2, 6)] == [2, 4, 2]
    assert sampler.following(0, 2) == (0, 6) and sampler.following(0, 6) == (1, 0)
    shares = [sampler.share(0, 2, rank, 3) for rank in range(3)]
    assert [share.indices for share in shares] == [[5, 4], [3], [2]] and {share.batch for share in shares} == {4}
    assert sampler.batch_ends(0) == [2, 6, 8]
    plain = Sampler(8, 4, seed=0, shuffle=True, drop_last=False)
    assert plain.batch_ends(0) == [] and plain.next_batch(0, 4) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 3}, r"order\(0\) has a batch of 4 samples: batch_size, 3, is that of the largest"),
        ({"batch_size": 4, "drop_last": True}, "an order that consists of batches: leave drop_last out"),
    ],
)
def test_batches_that_do_not_fit_the_session_are_refused(options: dict[str, Any], message: str) -> None:
    sampler = Sampler(8, seed=0, shuffle=True, order=lambda _: BATCHES, **{"drop_last": False, **options})
    if "drop_last" in options:
        sampler.epoch_length = 4
    with pytest.raises(elastic.ElasticError, match=message):
        sampler.next_batch(0, 0)


def test_batches_of_a_script_need_a_fixed_batch_and_a_loop_of_its_own() -> None:
    model = nn.Linear(4, 2)
    given: Any = (model, torch.optim.SGD(model.parameters(), lr=0.1), DATA)
    with pytest.raises(elastic.ElasticError, match="needs a batch_size that is a number, that of the largest"):
        elastic.Session(*given, batch_size=elastic.Chosen(4), options=elastic.Options(order=lambda _: BATCHES))
    session = elastic.Session(*given, batch_size=4, options=elastic.Options(order=lambda _: BATCHES))
    with pytest.raises(elastic.ElasticError, match="give an order of indices, not of batches"):
        Steps(session, DATA, 1)


@pytest.mark.parametrize("closure", [None, lambda: torch.zeros(())], ids=["plain", "closure"])
def test_a_step_that_is_refused_has_changed_nothing(closure: Any) -> None:
    """What a failing worker saves of its state would hold it; with a closure, gradients are made in the step."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = elastic.Session(model, optimizer, TensorDataset(torch.ones(8, 3)), batch_size=4)
    before = model.weight.detach().clone()
    with pytest.raises(elastic.ElasticError, match=r"optimizer.step\(\) comes before this step's backward\(\)"):
        for _ in session.epochs(1):
            for _ in session.batches():
                with session.step():
                    model.weight.grad = torch.ones_like(model.weight)
                    optimizer.step(closure)
    assert torch.equal(model.weight, before) is (closure is None)


@pytest.mark.parametrize("must_be_finite", [True, False])
def test_sparse_gradients_are_refused_before_a_second_worker_joins(must_be_finite: bool) -> None:
    model = nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Linear(4, 3))
    data = TensorDataset(torch.arange(8), torch.zeros(8, dtype=torch.int64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = elastic.Session(
        model, optimizer, data, batch_size=4, options=elastic.Options(must_be_finite=must_be_finite)
    )
    with pytest.raises(elastic.ElasticError, match=r"0.weight: sparse gradients cannot be summed"):
        for _ in session.epochs(1):
            for x, y in session.batches():
                with session.step():
                    nn.functional.cross_entropy(model(x), y).backward()


ROWS = TensorDataset(torch.zeros(32, 4), torch.zeros(32, dtype=torch.int64))
MODEL = nn.Sequential(nn.Linear(4, 3))
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)


def made(
    model: nn.Module = MODEL, sampler: torch.utils.data.Sampler[int] | None = None, **settings: Any
) -> ElasticLoader:
    return elastic.ddp(model, OPTIMIZER, DataLoader(ROWS, batch_size=8, sampler=sampler), **settings)[1]


def backward(x: torch.Tensor, y: torch.Tensor) -> None:
    OPTIMIZER.zero_grad()
    functional.cross_entropy(MODEL(x), y).backward()
    OPTIMIZER.step()


def evaluates_within() -> None:
    loader = made()
    for _ in loader.epochs(1):
        for x, y in loader:
            backward(x, y)
            loader.session.evaluate(lambda batch: {"n": len(batch)})


def reduces_within() -> None:
    loader = made()
    for _ in loader.epochs(1):
        for x, y in loader:
            backward(x, y)
            loader.session.agree(1.0)


def accumulates_over_batches() -> None:
    parallel, loader = elastic.ddp(MODEL, OPTIMIZER, DataLoader(ROWS, batch_size=8))
    for _ in loader.epochs(1):
        for x, y in loader:
            with parallel.no_sync():
                functional.cross_entropy(parallel(x), y).backward()


def leaves_a_batch() -> None:
    loader = made()
    for _ in loader.epochs(2):
        for _ in loader:
            break


def second_backward() -> None:
    loader = made()
    for _ in loader.epochs(1):
        for x, y in loader:
            backward(x, y)
            backward(x, y)


REFUSED: list[tuple[Callable[[], object], str]] = [
    (
        lambda: made(sampler=DistributedSampler(ROWS, num_replicas=2, rank=0)),
        r"leave DistributedSampler out: DataLoader\(dataset, batch_size=N, shuffle=True\)",
    ),
    (lambda: made(nn.SyncBatchNorm(3)), r"elastic.sync_batchnorm\(model\)"),
    (lambda: made(virtual_shards=4), r"virtual_shards=...\): a loop over shards"),
    (evaluates_within, r"evaluate\(\) belongs after the loop over batches"),
    (reduces_within, r"after the `with s.step\(\):` block, not inside"),
    (accumulates_over_batches, r"without a backward\(\) outside step.accumulate\(\)"),
    (leaves_a_batch, r"without a backward\(\)"),
    (second_backward, r"a second time in a step"),
]


@pytest.mark.parametrize(("habit", "said"), REFUSED)
def test_what_cannot_be_kept_is_refused_by_name(habit: Callable[[], object], said: str) -> None:
    OPTIMIZER.zero_grad()
    with pytest.raises(elastic.ElasticError, match=said):
        habit()


def test_a_loop_over_a_loader_is_equal_over_changes_of_size(tmp_path: Path) -> None:
    """From one worker to three; one is killed within its fourth step; another joins. That step is repeated by the
    others, with the scheduler and the script's own count taken back."""
    script = [str(HERE / "train_habits.py"), "by_ddp"]
    static = run_alone(tmp_path / "static", *script)
    with running(tmp_path) as (daemon, pod):
        pod.spawn(daemon.url, 0, script)
        wait_until(lambda: len(steps_of(tmp_path, 0)) >= 2, 60, "two steps")
        pod.spawn(daemon.url, 1, script)
        pod.spawn(daemon.url, 2, script, TROUBLE="kill@backward#4")
        wait_until(lambda: len(steps_of(tmp_path, 2)) >= 2, 60, "two steps of three")
        daemon.wait_world([0, 1])
        made = len(steps_of(tmp_path, 0))
        wait_until(lambda: len(steps_of(tmp_path, 0)) >= made + 1, 60, "a step of two")
        pod.grow(daemon, (3,), script)
        pod.finish(0)
    assert_equal(torch.load(tmp_path / "final.pt"), static, 1e-12)
    bodies = [steps_of(tmp_path, task) for task in (0, 1)]
    assert any(len(set(each)) < len(each) for each in bodies), "the kill must have aborted a step on some worker"
    assert "statistical" not in pod.logs(), "what takes a step back is none of the script's operations"
