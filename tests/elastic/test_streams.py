"""Streams: what a step consists of does not depend on who reads, and each sample counts once an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from malletrain import elastic
from malletrain.elastic.comm.step_commit import StepCommitter
from malletrain.elastic.data.streams import StreamBatches, StreamPositions, StreamReader, Streams, StreamSampler
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients.reducer import GradientReducer
from malletrain.elastic.state.training_state import Position
from tests.elastic.calm import Calm

LENGTHS = [3, 10, 1, 0, 7]


def open_stream(stream: int, epoch: int) -> Iterable[tuple[int, int, int]]:
    return [(stream, epoch, index) for index in range(LENGTHS[stream])]


class Reader:
    """One member's batches."""

    def __init__(self, streams: Streams, batch_size: int) -> None:
        self.positions = StreamPositions(streams.count)
        sampler = StreamSampler(Position(), self.positions, batch_size, seed=0)
        reader = StreamReader(streams, 0, list)
        reducer = GradientReducer(list(nn.Linear(1, 1).named_parameters()), StepCommitter(Calm()), mean=True)
        self.batches = StreamBatches(sampler, reader, self.positions, reducer)
        reader.load(0, [0])  # as a worker that warms up

    def load(self, epoch: int, rank: int, size: int) -> list[Any]:
        share, batch = self.batches.load(epoch, 0, rank, size)
        return list(batch[: share.weight])


def steps(sizes: list[int], batch_size: int = 8) -> Iterator[list[Any]]:
    """The samples of each step of an epoch, with so many members in each."""
    members = [Reader(Streams(open_stream, len(LENGTHS)), batch_size) for _ in range(max(sizes))]
    for step in range(100):
        size = sizes[step % len(sizes)]
        if members[0].positions.is_over(4):
            return
        parts = [member.load(4, rank, size) for rank, member in enumerate(members[:size])]
        again = [member.load(4, rank, size) for rank, member in enumerate(members[:size])]
        assert parts == again, "a step that is repeated has the same samples"
        given = [member.batches._contribute() for member in members[:size]]
        sums = [torch.stack(list(each)).sum(0) for each in zip(*given, strict=True)]
        for member in members:  # those outside get the state as they join
            member.positions.begin(4)
            member.batches._apply(sums)
        yield sorted(each for part in parts for each in part)


@pytest.mark.parametrize("sizes", [[1], [3], [1, 3, 2], [5, 2]])
def test_a_step_has_the_same_samples_at_every_size(sizes: list[int]) -> None:
    made = list(steps(sizes))
    assert made == list(steps([1]))
    assert sorted(each for step in made for each in step) == [
        (stream, 4, index) for stream, length in enumerate(LENGTHS) for index in range(length)
    ]
    assert [len(step) for step in made] == [6, 6, 8, 1], "evenly of the streams that go on"


class Skips(list[Any]):
    """A stream that notes what it passes over."""

    skipped = 0

    def skip(self, count: int) -> Skips:
        Skips.skipped = count
        return Skips(self[count:])


def test_a_stream_that_can_skip_is_not_read_again() -> None:
    reader = StreamReader(Streams(lambda stream, epoch: Skips(range(10)), 1), 0, list)
    assert reader.read(0, 0, 6, 2) == ([6, 7], False)
    assert Skips.skipped == 6
    assert reader.read(0, 0, 8, 2) == ([8, 9], True)


def test_random_numbers_belong_to_the_sample() -> None:
    def noisy(stream: int, epoch: int) -> Iterator[float]:
        for _ in range(6):
            yield float(torch.rand(()))

    state = torch.get_rng_state()
    readers = [StreamReader(Streams(noisy, 2), 0, list) for _ in range(2)]
    whole, _ = readers[0].read(0, 1, 0, 6)
    assert readers[1].read(0, 1, 3, 3)[0] == whole[3:]
    assert len(set(whole)) == 6 and readers[0].read(1, 1, 0, 6)[0] != whole
    assert torch.equal(torch.get_rng_state(), state)


def test_streams_that_differ_between_workers_are_named() -> None:
    with pytest.raises(ElasticError, match="stream 0 has 3 samples here, and at least 5 on another worker"):
        StreamReader(Streams(open_stream, 5), 0, list).read(0, 0, 5, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 4}, "a step of 4 samples cannot take one of each of 5 streams"),
        ({"virtual_shards": 2}, r"Session\(..., virtual_shards=...\) needs map-style data"),
        ({"loaders": 2}, r"Session\(..., loaders=...\) needs map-style data"),
        ({"drop_last": True}, r"Session\(..., drop_last=...\) needs map-style data"),
    ],
)
def test_what_streams_cannot_bear_is_refused(settings: dict[str, Any], message: str) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ElasticError, match=message):
        elastic.Session(model, optimizer, Streams(open_stream, 5), **{"batch_size": 8, **settings})


def test_streams_are_not_evaluated_on() -> None:
    model = nn.Linear(1, 1)
    s = elastic.Session(model, torch.optim.SGD(model.parameters(), lr=0.1), Streams(open_stream, 5), batch_size=8)
    with pytest.raises(ElasticError, match="needs a map-style data set"):
        s.evaluate(lambda batch: {"n": 1.0})
