"""Steps of streams and of virtual shards are tried in parts too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import default_collate

from malletrain import elastic
from malletrain.elastic.comm.step_commit import StepCommitter
from malletrain.elastic.data.batch_loader import BatchLoader
from malletrain.elastic.data.pieces import SHARDS
from malletrain.elastic.data.sampler import Sampler
from malletrain.elastic.data.virtual_shards import VirtualShards
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients.reducer import GradientReducer
from malletrain.elastic.guards.split_trial.trial_member import Unmonitored

Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def samples(seed: int, count: int) -> list[tuple[torch.Tensor, int]]:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    return [(row, int(row[:3].argmax())) for row in rows]


def of_streams(stream: int, epoch: int) -> Iterator[Any]:
    return iter(samples(10 * epoch + stream, 12))


def train(loss: Loss, data: Any, model: nn.Module | None = None, **options: Any) -> elastic.Session:
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    model.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    s = elastic.Session(model, optimizer, data, batch_size=8, **options)
    for _ in s.epochs(2):
        for batch in s.batches():
            with s.step():
                optimizer.zero_grad()
                for x, y in s.shards(batch) if options.get("virtual_shards") else [batch]:
                    loss(s.model, x, y).backward()
                optimizer.step()
    s.finish()
    return s


def plain(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(x), y)


def by_count(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(x) * math.log(1 + x.shape[0]), y)


class ByMemory:
    """A loss by the largest output of the batch, or shard, before, in words that no rule reads."""

    def __init__(self) -> None:
        self.largest = 1.0

    def __call__(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = model(x)
        loss = functional.cross_entropy(logits / self.largest, y)
        self.largest = 1.0 + max(max(row) for row in logits.tolist())
        return loss


def test_a_step_of_streams_is_tried() -> None:
    with pytest.raises(ElasticError, match=r"step 0 was tried with one worker and with two \(4 and 4 samples\)"):
        train(by_count, elastic.Streams(of_streams, 3))


def test_the_step_of_streams_after_it_is_tried() -> None:
    with pytest.raises(ElasticError, match=r"step 1 was tried .* as the one before had been, and the gradients"):
        train(ByMemory(), elastic.Streams(of_streams, 3))


def test_what_streams_share_in_a_process_is_an_error() -> None:
    """A normaliser of all streams: two workers have one each."""
    largest = [1.0]

    def normalised(stream: int, epoch: int) -> Iterator[Any]:
        for row, target in samples(10 * epoch + stream, 40):
            largest[0] = max(largest[0], float(row.abs().max()))
            yield row / largest[0], target

    with pytest.raises(ElasticError, match=r"step \d+ was tried .* as the one before had been, and the gradients"):
        train(plain, elastic.Streams(normalised, 4))


def test_a_collate_of_streams_that_remembers_is_an_error() -> None:
    largest = [1.0]

    def collate(some: list[Any]) -> Any:
        x, y = default_collate(some)
        scale, largest[0] = largest[0], max(largest[0], float(x.abs().max()))
        return x / scale, y

    with pytest.raises(ElasticError, match="gives another batch for the same samples"):
        train(plain, elastic.Streams(of_streams, 3), collate=collate)


def test_streams_train_on_as_if_nothing_had_been_tried() -> None:
    tried, plainly = [train(plain, elastic.Streams(of_streams, 3), check=check) for check in ("error", "off")]
    assert tried.equality.startswith("additive")
    assert tried.steps_done == plainly.steps_done == 10
    for one, other in zip(tried.model.parameters(), plainly.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_step_of_shards_is_tried() -> None:
    with pytest.raises(ElasticError, match=r"with two \(2 and 2 virtual shards\).* those of a shard must follow"):
        train(ByMemory(), samples(0, 40), virtual_shards=4)


@pytest.mark.parametrize("loss", [plain, by_count], ids=["plain", "by_count"])
@pytest.mark.parametrize("shards", [1, 2, 3])
def test_what_looks_at_one_shard_is_right(loss: Loss, shards: int) -> None:
    """So are layers that look at all samples of a shard, and draw."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    assert train(loss, samples(0, 40), model, virtual_shards=shards).steps_done == 10


@pytest.mark.parametrize("count", [1, 3, 4])
def test_pieces_are_all_that_a_member_has(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[BatchLoader] = []
    load = BatchLoader.load

    def noted(loader: BatchLoader, *at: Any) -> Any:
        used.append(loader)
        return load(loader, *at)

    monkeypatch.setattr(BatchLoader, "load", noted)
    train(plain, samples(0, 40), virtual_shards=count)
    loader = used[0]
    share, batch = load(loader, 0, 8, 0, 1)
    pieces = loader.pieces(0, 8, 0, 1)
    assert (pieces.kind, pieces.count) == (SHARDS, count)
    parts = [pieces.load(number, number + 1) for number in range(count)]
    assert [index for part, _ in parts for index in part.indices] == share.indices
    assert [shard.number for _, some in parts for shard in some] == [shard.number for shard in batch]
    assert {part.batch for part, _ in parts} == {share.weight} == {8}
    assert loader.following_pieces(0, 32, 0, 1) is None


def test_a_worker_without_a_shard_has_all_samples_of_one_that_do_not_count() -> None:
    """BatchNorm refuses a single one: with fewer shards than workers the second worker ended."""
    model = nn.Linear(1, 1)
    reducer = GradientReducer(list(model.named_parameters()), StepCommitter(Unmonitored()), mean=True)
    shards = VirtualShards(1, model, reducer, 0, mean=True)
    sampler = Sampler(40, 8, seed=0, shuffle=True, drop_last=False)
    [(_, first)], [(_, second)] = [shards.parts(sampler, 0, 0, rank, 2) for rank in (0, 1)]
    assert (first.indices, first.weight, second.weight) == (second.indices, 8, 0)
