"""Session(model, optimizer, loader): what is trained on is what the loader's own loop would have had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from malletrain import elastic
from malletrain.elastic.data.loader_terms import loader_terms
from malletrain.elastic.data.sampler import Sampler as SessionSampler

DATA = TensorDataset(torch.arange(64.0).reshape(64, 1))


def session_of(loader: Any, **more: Any) -> tuple[elastic.Session, nn.Module]:
    model = nn.Linear(1, 1)
    return elastic.Session(model, torch.optim.SGD(model.parameters(), lr=1e-6), loader, **more), model


def steps(session: elastic.Session, model: nn.Module) -> Iterator[torch.Tensor]:
    """The batches of an epoch, each once it is trained on."""
    for (x,) in session.batches():
        model(x).mean().backward()
        yield x


def trained_on(loader: Any, epochs: int = 1, **more: Any) -> list[list[list[int]]]:
    """The rows of each batch that a session of one worker yields, by epoch."""
    session, model = session_of(loader, **more)
    return [[x.flatten().int().tolist() for x in steps(session, model)] for _ in session.epochs(epochs)]


def flat(batches: list[list[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


def test_a_subset_stays_a_subset() -> None:
    loader = DataLoader(DATA, batch_size=16, sampler=SubsetRandomSampler(range(32)))
    first, second = trained_on(loader, epochs=2)
    assert list(map(len, first)) == [16, 16]
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(32))
    assert flat(first) != flat(second) and flat(first) != list(range(32)), "each epoch has an order of its own"
    for sampler in (SequentialSampler(range(32)), RandomSampler(range(32))):
        assert sorted(flat(trained_on(DataLoader(DATA, batch_size=16, sampler=sampler))[0])) == list(range(32))
    half = trained_on(DataLoader(Subset(DATA, range(32, 64)), batch_size=16, shuffle=True))[0]
    assert sorted(flat(half)) == list(range(32, 64))


def test_order_of_the_usual_loaders() -> None:
    plain = trained_on(DataLoader(DATA, batch_size=24))[0]
    assert flat(plain) == list(range(64)) and list(map(len, plain)) == [24, 24, 16]
    shuffled = trained_on(DataLoader(DATA, batch_size=24, shuffle=True, drop_last=True))[0]
    assert list(map(len, shuffled)) == [24, 24] and len(set(flat(shuffled))) == 48
    same = trained_on(DATA, batch_size=24, drop_last=True)[0]
    assert shuffled == same, "a shuffling loader is the session's own order"


def test_samplers_that_repeat_and_leave_out() -> None:
    weights = [1.0 if row < 4 else 0.0 for row in range(64)]
    weighted = trained_on(DataLoader(DATA, batch_size=8, sampler=WeightedRandomSampler(weights, 40)))[0]
    assert len(flat(weighted)) == 40 and set(flat(weighted)) == set(range(4))
    again = RandomSampler(DATA, replacement=True, num_samples=100)
    assert len(flat(trained_on(DataLoader(DATA, batch_size=10, sampler=again))[0])) == 100


class Drawn(Sampler[int]):
    """Draws by numpy's global generator, or by this call, by default 20 samples."""

    def __init__(self, draw: Callable[[int], Any] = np.random.permutation) -> None:
        self.draw = draw

    def __iter__(self) -> Iterator[int]:
        return iter([int(each) for each in self.draw(20)])

    def __len__(self) -> int:
        return 20


class ByEpoch(Drawn):
    """Its call is given the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter([int(each) for each in self.draw(self.epoch)])


class NoLength(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(64))


@pytest.mark.parametrize("sampler", [Drawn(), ByEpoch(lambda epoch: np.random.default_rng(epoch).permutation(20))])
def test_any_sampler_draws_the_same_on_each_worker(sampler: Sampler[int]) -> None:
    loader = DataLoader(DATA, batch_size=8, sampler=sampler)
    torch.manual_seed(1)
    np.random.seed(1)
    before = np.random.get_state(legacy=False)["state"]["key"].tolist(), torch.get_rng_state().tolist()
    order = loader_terms(loader, seed=3)["order"]
    assert order is not None
    epochs = [order(epoch) for epoch in range(3)]
    assert (np.random.get_state(legacy=False)["state"]["key"].tolist(), torch.get_rng_state().tolist()) == before
    np.random.seed(7)
    joined_late = loader_terms(DataLoader(DATA, batch_size=8, sampler=sampler), seed=3)["order"]
    assert joined_late is not None and joined_late(2) == epochs[2]
    assert len({tuple(each) for each in epochs}) == 3


@given(st.integers(0, 2**40), st.integers(0, 50), st.integers(0, 9))
def test_a_generator_of_the_loader_is_seeded_and_left_as_it_was(seed: int, epoch: int, drawn_before: int) -> None:
    generator = torch.Generator().manual_seed(5)
    torch.randint(9, (drawn_before,), generator=generator)
    state = generator.get_state()
    loader = DataLoader(DATA, batch_size=8, sampler=SubsetRandomSampler(range(9), generator), generator=generator)
    order = loader_terms(loader, seed)["order"]
    assert order is not None and sorted(order(epoch)) == list(range(9))
    other = DataLoader(DATA, batch_size=8, sampler=SubsetRandomSampler(range(9), torch.Generator()))
    later = loader_terms(other, seed)["order"]
    assert later is not None and later(epoch) == order(epoch)
    assert torch.equal(generator.get_state(), state)


def test_a_plain_batch_sampler_is_read_like_the_loaders_own() -> None:
    whole = trained_on(DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 24, drop_last=True)))[0]
    assert whole == trained_on(DataLoader(DATA, batch_size=24, shuffle=True, drop_last=True))[0]
    half = BatchSampler(SubsetRandomSampler(range(20)), 8, drop_last=False)
    first = trained_on(DataLoader(DATA, batch_sampler=half))[0]
    assert list(map(len, first)) == [8, 8, 4] and sorted(flat(first)) == list(range(20))


class Tensors(Sampler[Any]):
    """Yields batches as tensors, or indices as numpy's numbers."""

    def __init__(self, *, batches: bool) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(32)
        yield from order.view(4, 8) if self.batches else order.numpy()

    def __len__(self) -> int:
        return 4 if self.batches else 32


def test_indices_may_be_tensors_and_arrays() -> None:
    in_batches: Any = DataLoader(DATA, batch_sampler=Tensors(batches=True))
    for loader in (in_batches, DataLoader(DATA, batch_size=8, sampler=Tensors(batches=False))):
        first, second = trained_on(loader, epochs=2)
        assert list(map(len, first)) == [8] * 4 and sorted(flat(first)) == sorted(flat(second)) == list(range(32))


class Doubling(DataLoader[Any]):
    def __iter__(self) -> Any:
        for (x,) in super().__iter__():
            yield (2 * x,)


class Rows(Dataset[tuple[torch.Tensor]]):
    """Values that the script sets, and a list of what was loaded: each worker's own."""

    def __init__(self) -> None:
        self.values = list(range(16))
        self.seen: list[int] = []

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        self.seen.append(index)
        return (torch.tensor([float(self.values[index])]),)


@pytest.mark.parametrize("processes", [0, 1])
def test_negatives_drawn_between_epochs_are_trained_on_and_agreed(processes: int) -> None:
    rows = Rows()
    session, model = session_of(DataLoader(rows, batch_size=8, num_workers=processes))
    digests = []
    try:
        for epoch in session.epochs(3):
            assert min(float(x.min()) for x in steps(session, model)) >= 100 * epoch
            digests.append(session._runtime.invariants._plain()["data set"])
            rows.values = [100 * (epoch + 1) + index for index in range(16)]
    except elastic.ElasticError as error:
        assert processes and "old one" in str(error)
    else:
        assert not processes and digests[0] == "" != digests[1] != digests[2]


def test_batches_of_a_batch_sampler_stay_together() -> None:
    batches = [[0, 1, 2], [9, 8], [30, 31, 32]]
    loader: Any = DataLoader(DATA, batch_sampler=batches)
    assert trained_on(loader)[0] == batches


def test_weights_that_change_between_epochs_are_drawn_with() -> None:
    """As of a sampler that takes hard samples more often: also where batches are loaded ahead."""
    sampler = WeightedRandomSampler([1.0] * 8 + [0.0] * 56, 16)
    session, model = session_of(DataLoader(DATA, batch_size=8, sampler=sampler, num_workers=1))
    for epoch in session.epochs(2):
        for x in steps(session, model):
            assert (x >= 8).any().item() == (epoch == 1)
        sampler.weights = 1.0 - sampler.weights


GENERATOR = np.random.default_rng(0)


class Lines(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(9))


@pytest.mark.parametrize(
    ("loader", "more", "text"),
    [
        (DataLoader(Lines(), batch_size=2), {}, r"Lines, .*elastic.Streams"),
        (Lines(), {"batch_size": 4}, r"elastic.Streams\(open_stream, count\)"),
        (Doubling(DATA, batch_size=4), {}, "Doubling .*__iter__"),
        (DataLoader(DATA, batch_size=None), {}, "batch_size=None"),
        (DataLoader(DATA, 4, sampler=DistributedSampler(DATA, 2, 0)), {}, "DistributedSampler out"),
        (DataLoader(DATA, 4, num_workers=1, worker_init_fn=print), {}, "leave worker_init_fn out"),
        (DataLoader(DATA, 4, sampler=Drawn(GENERATOR.permutation)), {}, "Drawn .*another order"),
        (
            DataLoader(DATA, 4, sampler=Drawn(lambda _: range(64))),
            {},
            "Drawn .*more .*length, 20",
        ),
        (DataLoader(DATA, 4, sampler=NoLength()), {}, "NoLength "),
        (DataLoader(DATA, 4), {"shuffle": False}, r"Session\(..., shuffle=...\): .*DataLoader"),
        (
            DataLoader(DATA, 4),
            {"options": elastic.Options(loaders=2)},
            r"Session\(..., loaders=...\): .*DataLoader",
        ),
        (DATA, {}, r"Session\(..., batch_size=N\)"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, DataLoader) else None,
)
def test_what_cannot_be_divided_is_refused_by_name(loader: Any, more: dict[str, Any], text: str) -> None:
    with pytest.raises(elastic.ElasticError, match=text):
        trained_on(loader, **more)


def test_epochs_of_other_lengths_are_refused() -> None:
    with pytest.raises(elastic.ElasticError, match=r"ByEpoch .*19 samples in epoch 1, .*20 in epoch 0"):
        loader = DataLoader(DATA, batch_size=4, sampler=ByEpoch(lambda epoch: range(20 - epoch)))
        order = loader_terms(loader, 0)["order"]
        SessionSampler(20, 4, seed=0, shuffle=False, drop_last=False, order=order).permutation(1)


def test_a_rule_for_the_batch_is_kept() -> None:
    seen = trained_on(DataLoader(DATA, batch_size=4), batch_size=elastic.Chosen(8))[0]
    assert len(seen[0]) == 8


def test_an_evaluation_names_its_data_set_where_the_sampler_leaves_samples_out() -> None:
    session, _ = session_of(DataLoader(DATA, batch_size=8, sampler=SubsetRandomSampler(range(8))))
    with pytest.raises(elastic.ElasticError, match="SubsetRandomSampler"):
        session.evaluate(lambda batch: {"sum": batch[0].sum()})
    assert session.evaluate(lambda batch: {"sum": batch[0].sum()}, DATA) == {"sum": 31.5}
