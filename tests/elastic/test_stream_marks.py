"""Streams that can say where they are go on from there; what they say is believed if the same samples follow."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from malletrain.elastic.comm.step_commit import StepCommitter
from malletrain.elastic.data.stream_marks import (
    STEPS_BETWEEN_MARKS,
    decoded,
    digest_of,
    encoded,
    state_text,
)
from malletrain.elastic.data.streams import StreamBatches, StreamPositions, StreamReader, Streams, StreamSampler
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients.reducer import GradientReducer
from malletrain.elastic.state.training_state import Position
from tests.elastic.calm import Calm

STEPS = 3 * STEPS_BETWEEN_MARKS


class Numbers:
    """A stream of 1,000 numbers that can say where it is. `buffer`: they are shuffled in one that it forgets."""

    reads = 0

    def __init__(self, stream: int, buffer: int = 0) -> None:
        self._base, self._at, self._size = 10_000 * stream, 0, buffer

    def __iter__(self) -> Iterator[int]:
        chance, buffer = random.Random(self._base), list[int]()
        while self._at < 1000:
            self._at += 1
            Numbers.reads += 1
            buffer.append(self._base + self._at)
            if len(buffer) > self._size:
                yield buffer.pop(chance.randrange(len(buffer)))
        yield from buffer

    def state_dict(self) -> dict[str, Any]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._at = state["at"]


class Member:
    """One member's batches, of which each step is committed."""

    def __init__(self, open_stream: Callable[[int, int], Any], streams: int, positions: dict[str, Any] | None = None):
        self.positions = StreamPositions(streams)
        if positions is not None:
            self.positions.load_state_dict(positions)
        self.reader = StreamReader(Streams(open_stream, streams), 0, list)
        reducer = GradientReducer(list(nn.Linear(1, 1).named_parameters()), StepCommitter(Calm()), mean=True)
        sampler = StreamSampler(Position(), self.positions, 8, seed=0)
        self.batches = StreamBatches(sampler, self.reader, self.positions, reducer)


def train(members: list[Member], steps: int) -> list[list[Any]]:
    """The samples of each of the next steps of these members."""
    made = []
    for _ in range(steps):
        size = len(members)
        parts = [each.batches.load(0, 0, rank, size) for rank, each in enumerate(members)]
        given = [each.batches._contribute() for each in members]
        sums = [torch.stack([own[0] for own in given]).sum(0)]
        for each in members:
            each.batches._apply([table.clone() for table in sums])
        samples = [sample for share, batch in parts for sample in list(batch)[: share.weight]]
        made.append(sorted(samples, key=repr))
    return made


def whole(open_stream: Callable[[int, int], Any], steps: int, streams: int = 2) -> list[list[Any]]:
    return train([Member(open_stream, streams)], steps)


def test_a_worker_that_takes_a_stream_over_goes_on_where_it_was() -> None:
    def open_stream(stream: int, epoch: int) -> Numbers:
        return Numbers(stream)

    first = Member(open_stream, 2)
    made = train([first], STEPS)
    state = first.positions.state_dict()
    assert sorted(state["marks"]) == ["0", "1"]
    Numbers.reads = 0
    made += train([Member(open_stream, 2, state), Member(open_stream, 2, state)], 5)
    assert made == whole(open_stream, STEPS + 5)
    assert Numbers.reads < 2 * 4 * (STEPS_BETWEEN_MARKS + 8) + 8 * (STEPS + 6), "those before the mark are not read"


def test_reads_after_a_mark_are_few() -> None:
    def open_stream(stream: int, epoch: int) -> Numbers:
        return Numbers(stream)

    first = Member(open_stream, 2)
    train([first], STEPS + 3)
    Numbers.reads = 0
    train([Member(open_stream, 2, first.positions.state_dict())], 1)
    assert Numbers.reads < 2 * 4 * (STEPS_BETWEEN_MARKS + 3)


def test_a_state_that_lacks_a_shuffle_buffer_is_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    def open_stream(stream: int, epoch: int) -> Numbers:
        return Numbers(stream, buffer=50)

    first = Member(open_stream, 2)
    made = train([first], STEPS)
    state = first.positions.state_dict()
    assert state["marks"]
    with caplog.at_level(logging.WARNING):
        made += train([Member(open_stream, 2, state)], 5)
    assert made == whole(open_stream, STEPS + 5)
    assert "other samples follow after load_state_dict than before" in caplog.text


def test_a_step_that_is_repeated_with_other_readers_brings_the_marks_of_these() -> None:
    """Two have each stream open at one place then."""

    def open_stream(stream: int, epoch: int) -> Numbers:
        return Numbers(stream)

    members = [Member(open_stream, 2), Member(open_stream, 2)]
    made = []
    for _ in range(STEPS):
        for rank, each in enumerate(reversed(members)):
            each.batches.load(0, 0, rank, 2)
        made += train(members, 1)
    assert made == whole(open_stream, STEPS)
    marks = members[0].positions.marks
    assert {mark.taken for mark in marks.values()} == {4 * (2 * STEPS_BETWEEN_MARKS + 1)} and sorted(marks) == [0, 1]
    assert all(mark.state for mark in marks.values())


def test_a_stream_that_another_worker_has_in_another_order_is_an_error() -> None:
    order = {"first": 1}

    def open_stream(stream: int, epoch: int) -> list[int]:
        return random.Random(order["first"]).sample(range(1000), 1000)

    first = Member(open_stream, 2)
    train([first], 2)
    order["first"] = 2
    with pytest.raises(ElasticError, match=r"stream 0 gives other samples here .*shuffle\(1000, seed=epoch\)"):
        train([Member(open_stream, 2, first.positions.state_dict())], 1)


def test_marks_travel_and_odd_states_do_not() -> None:
    text, samples = '{"at": 3}', [torch.arange(3), b"x", {"a": 1.5}]
    row = encoded(text, samples)
    mark = decoded(row, 7)
    assert mark is not None
    assert mark.state == text and mark.taken == 7
    assert mark.is_followed_by([*samples, 5]) and not mark.is_followed_by([torch.arange(1, 4), *samples[1:]])
    assert decoded(torch.zeros_like(row), 7) is None
    assert digest_of([object()]) == digest_of([object()])

    class Odd(Numbers):
        def state_dict(self) -> dict[str, Any]:
            return {"at": object()}

    assert state_text(Odd(0)) == "" and state_text(iter([])) == ""


@pytest.mark.nightly
def test_hugging_face_streaming(tmp_path: Path) -> None:
    """The recipe of the how-to: with and without a shuffle buffer."""
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    files = []
    for shard in range(4):
        path = tmp_path / f"{shard}.jsonl"
        path.write_text("".join(f'{{"number": {1000 * shard + i}}}\n' for i in range(400)))
        files.append(str(path))
    data = datasets.load_dataset("json", data_files=files, split="train", streaming=True, cache_dir=str(tmp_path))

    def plain(number: int, epoch: int) -> Any:
        return data.shard(4, number)

    def shuffled(number: int, epoch: int) -> Any:
        return data.shard(4, number).shuffle(seed=epoch, buffer_size=100)

    for open_stream in (plain, shuffled):
        first = Member(open_stream, 4)
        made = train([first], STEPS)
        state = first.positions.state_dict()
        assert len(state["marks"]) == 4
        made += train([Member(open_stream, 4, state), Member(open_stream, 4, state)], 6)
        numbers = [[sample["number"] for sample in step] for step in _sorted(made)]
        assert numbers == [[s["number"] for s in step] for step in _sorted(whole(open_stream, STEPS + 6, 4))]
        flat = [number for step in numbers for number in step]
        assert len(set(flat)) == len(flat), "each sample once"


@pytest.mark.nightly
def test_webdataset(tmp_path: Path) -> None:
    """The recipe of the how-to: WebDataset has no state, so what was taken is passed over."""
    webdataset = pytest.importorskip("webdataset", reason="pip install webdataset")
    for shard in range(4):
        with webdataset.TarWriter(str(tmp_path / f"{shard}.tar")) as writer:
            for i in range(60):
                writer.write({"__key__": f"{shard}-{i}", "cls": 1000 * shard + i})

    def open_stream(number: int, epoch: int) -> Any:
        shards = [str(tmp_path / f"{number}.tar")]
        return webdataset.WebDataset(shards, shardshuffle=False).shuffle(20, seed=epoch).decode().to_tuple("cls")

    first = Member(open_stream, 4)
    made = train([first], 10)
    state = first.positions.state_dict()
    assert {mark["state"] for mark in state["marks"].values()} == {""}
    made += train([Member(open_stream, 4, state), Member(open_stream, 4, state)], 15)
    flat = [sample for step in made for (sample,) in step]
    assert made == whole(open_stream, 25, 4) and len(set(flat)) == len(flat) == 200

    def unseeded(number: int, epoch: int) -> Any:
        shards = [str(tmp_path / f"{number}.tar")]
        return webdataset.WebDataset(shards, shardshuffle=False).shuffle(20).decode().to_tuple("cls")

    first = Member(unseeded, 4)
    train([first], 10)
    with pytest.raises(ElasticError, match="other samples here than on the worker that read it before"):
        train([Member(unseeded, 4, first.positions.state_dict())], 1)


def _sorted(made: list[list[Any]]) -> list[list[Any]]:
    return [sorted(step, key=lambda sample: int(sample["number"])) for step in made]
