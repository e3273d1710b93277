"""Models and loops that cannot be trained this way are refused, and the message says what to do; a loop over a
DataLoader as it is, by `elastic.ddp`, is equal to its static run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from malletrain import elastic
from malletrain.elastic.adapters.ddp import ElasticLoader
from malletrain.elastic.adapters.steps import Steps
from malletrain.elastic.data.sampler import Sampler
from tests.elastic.test_habits import changes_of_size, steps_of

DATA = TensorDataset(torch.zeros(8, 4), torch.zeros(8, dtype=torch.int64))


def session_of(model: nn.Module, /, **given: Any) -> elastic.Session:
    """A session of this model, except for what is given."""
    usual: dict[str, Any] = {"model": model, "dataset": DATA, "batch_size": 4}
    usual["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    return elastic.Session(**usual | given)


def batches(session: elastic.Session) -> Iterator[Any]:
    """The first epoch's."""
    for _ in session.epochs(1):
        yield from session.batches()


@pytest.fixture
def two_processes() -> Iterator[None]:
    """PyTorch's global group, as the first of two processes that exchange nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def test_a_sharded_model(two_processes: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    with pytest.raises(elastic.ElasticError, match="sharded"):
        session_of(model)


def test_a_model_in_ddp(two_processes: None) -> None:
    with pytest.raises(elastic.ElasticError, match="plain model"):
        session_of(nn.parallel.DistributedDataParallel(nn.Linear(4, 3)))
    with pytest.raises(elastic.ElasticError, match=r"init_process_group .*loader.session .*is_main"):
        made()


BATCHES = [[7, 6], [5, 4, 3, 2], [], [1, 0]]


def ordered(order: list[Any], batch_size: int = 4, *, drop_last: bool = False) -> Sampler:
    return Sampler(8, batch_size, seed=0, shuffle=True, drop_last=drop_last, order=lambda _: order)


def test_batches_of_unequal_sizes_follow_the_scripts_order() -> None:
    sampler = ordered(BATCHES)
    assert [sampler.next_batch(0, cursor) for cursor in (0, 2, 6)] == [2, 4, 2]
    assert sampler.following(0, 2) == (0, 6) and sampler.following(0, 6) == (1, 0)
    shares = [sampler.share(0, 2, rank, 3) for rank in range(3)]
    assert [share.indices for share in shares] == [[5, 4], [3], [2]] and {share.batch for share in shares} == {4}
    assert sampler.batch_ends(0) == [2, 6, 8]
    plain = Sampler(8, 4, seed=0, shuffle=True, drop_last=False)
    assert plain.batch_ends(0) == [] and plain.next_batch(0, 4) == 4


@pytest.mark.parametrize("closure", [None, lambda: torch.zeros(())], ids=["plain", "closure"])
def test_a_step_that_is_refused_has_changed_nothing(closure: Any) -> None:
    """What a failing worker saves of its state would hold it; with a closure, gradients are made in the step."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = session_of(model, optimizer=optimizer)
    before = model.weight.detach().clone()
    with pytest.raises(elastic.ElasticError, match=r"optimizer.step\(\) .*before .*backward\(\)"):
        for _ in batches(session):
            model.weight.grad = torch.ones_like(model.weight)
            optimizer.step(closure)
    assert torch.equal(model.weight, before) is (closure is None)


@pytest.mark.parametrize("must_be_finite", [True, False])
def test_sparse_gradients_are_refused_before_a_second_worker_joins(must_be_finite: bool) -> None:
    model = nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Linear(4, 3))
    data = TensorDataset(torch.arange(8), torch.zeros(8, dtype=torch.int64))
    session = session_of(model, dataset=data, options=elastic.Options(must_be_finite=must_be_finite))
    with pytest.raises(elastic.ElasticError, match=r"0.weight: sparse"):
        for x, y in batches(session):
            functional.cross_entropy(model(x), y).backward()


MODEL = nn.Sequential(nn.Linear(4, 3))
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)


def made(
    model: nn.Module = MODEL, sampler: torch.utils.data.Sampler[int] | None = None, **settings: Any
) -> tuple[Any, ElasticLoader]:
    return elastic.ddp(model, OPTIMIZER, DataLoader(DATA, batch_size=2, sampler=sampler), **settings)


def backward(x: torch.Tensor, y: torch.Tensor) -> None:
    OPTIMIZER.zero_grad()
    functional.cross_entropy(MODEL(x), y).backward()
    OPTIMIZER.step()


Body = Callable[[elastic.Session, torch.Tensor, torch.Tensor], object]


def loop(*parts: Body) -> Callable[[], elastic.Session]:
    """Two epochs of a loop whose body does this."""

    def train() -> elastic.Session:
        s = session_of(MODEL, optimizer=OPTIMIZER)
        for _ in s.epochs(2):
            for x, y in s.batches():
                for part in parts:
                    part(s, x, y)
        return s

    return train


def block(*parts: Body) -> Body:
    """One that does this as its step."""

    def run(s: elastic.Session, x: torch.Tensor, y: torch.Tensor) -> None:
        with s.step():
            for part in parts:
                part(s, x, y)

    return run


def learns(s: elastic.Session, x: torch.Tensor, y: torch.Tensor) -> None:
    backward(x, y)


def agrees(s: elastic.Session, x: torch.Tensor, y: torch.Tensor) -> None:
    assert s.agree(2.0) == 2.0


def evaluates(s: elastic.Session, x: torch.Tensor, y: torch.Tensor) -> None:
    assert s.evaluate(lambda batch: {"samples": len(batch[1])}) == {"samples": 1.0}


def accumulates(*, leaves: bool) -> None:
    """Over several batches; or the loop is left in the middle of a step, without a word."""
    parallel, loader = made()
    for _ in loader.epochs(2):
        for x, y in loader:
            with parallel.no_sync():
                functional.cross_entropy(parallel(x), y).backward()
            if leaves:
                break


NET, IN_BATCHES = nn.Linear(4, 3), elastic.Options(order=lambda _: BATCHES)
LBFGS = torch.optim.LBFGS(NET.parameters())

REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: session_of(NET, optimizer=[]), "Session needs an optimizer"),
    (lambda: session_of(NET, optimizer=[3]), "an optimizer must be a torch.optim.Optimizer, not int"),
    (lambda: session_of(NET, optimizer=LBFGS), r"LBFGS calls .*LBFGS\(..., max_iter=1\)"),
    (lambda: session_of(NET, model=[NET, 3]), "a model must be a torch.nn.Module, not int"),
    (lambda: session_of(nn.Linear(4, 3).requires_grad_(False)), "no parameter that requires a gradient"),
    (lambda: session_of(NET).track(some=cast(Any, None)), r"track\(some=...\): there is none: track it only where"),
    (
        lambda: session_of(NET).track(some=cast(Any, 3)),
        r"track\(some=...\): int has no state_dict and .*: give it both, .* s.steps_done",
    ),
    *(
        (lambda order=order: ordered(order).permutation(3), r"order\(3\) must return each index from 0 to 7 once")
        for order in ([0] * 8, list(range(7)), list(range(1, 9)))
    ),
    (lambda: ordered(BATCHES, 3).next_batch(0, 0), r"order\(0\) has a batch of 4 samples: batch_size, 3, is that"),
    (lambda: ordered(BATCHES, 5, drop_last=True).next_batch(0, 0), "order that consists of batches: leave drop_last"),
    (
        lambda: session_of(NET, batch_size=elastic.Chosen(4), options=IN_BATCHES),
        "needs a batch_size that is a number, that of the largest",
    ),
    (lambda: Steps(session_of(NET, options=IN_BATCHES), DATA, 1), "give an order of indices, not of batches"),
    (
        lambda: made(sampler=DistributedSampler(DATA, num_replicas=2, rank=0)),
        r"leave DistributedSampler out: DataLoader\(dataset, batch_size=N, shuffle=True\)",
    ),
    (lambda: made(nn.SyncBatchNorm(3)), r"elastic.sync_batchnorm\(model\)"),
    *(
        (loop(*parts), rf"call s.{call.__name__[:-1]}\(\) after the step, not inside it")
        for call in (agrees, evaluates)
        for parts in ([call, learns], [block(call, learns)], [block(learns, call)])
    ),
    (loop(learns, agrees, lambda s, x, y: OPTIMIZER.step()), r"optimizer.step\(\) comes after s.agree\(\)"),
    (loop(), r"after 0 of 1 backward\(\) calls outside step.accumulate\(\)"),
    (loop(block()), r"after 0 of 1 backward\(\) calls outside step.accumulate\(\)"),
    (loop(learns, block(learns)), r"came before `with s.step\(\):`"),
    (loop(block(learns), block(learns)), "once for each batch"),
    (lambda: accumulates(leaves=False), r"after 0 of 1 backward\(\) calls outside step.accumulate\(\)"),
    (lambda: accumulates(leaves=True), r"the loop was left before the last backward\(\)"),
]


@pytest.mark.parametrize(("habit", "said"), REFUSED)
def test_what_cannot_be_kept_is_refused_by_name(habit: Callable[[], object], said: str) -> None:
    OPTIMIZER.zero_grad()
    with pytest.raises(elastic.ElasticError, match=said):
        habit()


@pytest.mark.parametrize("step", [learns, block(learns)])
def test_what_may_follow_a_step_in_its_body(step: Body) -> None:
    assert loop(step, agrees, evaluates, agrees)().steps_done == 4


@pytest.mark.parametrize("step", [learns, block(learns)])
@pytest.mark.parametrize("leaves_before", [True, False])
def test_a_loop_may_be_left_before_a_step_and_after_it(step: Body, leaves_before: bool) -> None:
    """Also with the iterator kept, as by a look at the first batch."""
    s = session_of(MODEL, optimizer=OPTIMIZER)
    for _ in s.epochs(2):
        looked = iter(s.batches())
        first = next(looked)[0]
        for x, y in s.batches():
            assert torch.equal(x, first)
            if leaves_before:
                break
            step(s, x, y)
            break
    assert s.agree(1.0) == 1.0 and s.steps_done == (0 if leaves_before else 2)


@pytest.mark.parametrize("form", ["by_ddp", "decays_after_block"])
def test_a_loop_of_each_form_is_equal_over_changes_of_size(form: str, tmp_path: Path) -> None:
    """One worker is killed within its fourth step, which the others repeat: the scheduler and the script's own count
    are taken back."""
    said = changes_of_size(tmp_path, form, TROUBLE="kill@backward#4")
    bodies = [steps_of(tmp_path, task) for task in (0, 1)]
    assert any(len(set(each)) < len(each) for each in bodies), "the kill must have aborted a step on some worker"
    assert "statistical" not in said, "what takes a step back is none of the script's operations"
