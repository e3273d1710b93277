"""What a step consists of does not depend on who loads it, nor when: batches loaded ahead, seeds, and streams."""

from __future__ import annotations

import os
import random
import signal
import traceback
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from malletrain import elastic
from malletrain.elastic.comm.step_commit import StepCommitter
from malletrain.elastic.data.prefetch import LoadRequest, Prefetcher, SampleLoader
from malletrain.elastic.data.random_seeds import kept_random_state, seed_all
from malletrain.elastic.data.sampler import Sampler
from malletrain.elastic.data.streams import StreamBatches, StreamPositions, StreamReader, Streams, StreamSampler
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients.reducer import GradientReducer
from malletrain.elastic.state.training_state import Position
from tests.elastic.coordinator import running
from tests.elastic.digits import SCRIPT, Static, assert_every_sample_once, diary
from tests.elastic.stores import Calm
from tests.waiting import wait_until

LENGTH = 50


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return LENGTH


class Noisy(Rows):
    """A data set with random augmentation that records which process reads which sample."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        with self.notes.open("a") as stream:
            stream.write(f"{os.getpid()} {index}\n")
        if index == 49:
            raise LookupError("no sample 49")
        return index, torch.rand(2)


def orders(sizes: list[int]) -> Iterator[tuple[LoadRequest, list[LoadRequest]]]:
    """The requests of rank 0 as the world changes its size, each with those it would load next."""
    sampler = Sampler(LENGTH - 1, 8, seed=3, shuffle=True, drop_last=False)
    place = (0, 0)
    for size in sizes:
        coming, after = [], place
        for _ in range(4):
            after = sampler.following(*after)
            coming.append((after[0], tuple(sampler.share(*after, 0, size).indices)))
        yield (place[0], tuple(sampler.share(*place, 0, size).indices)), coming
        place = sampler.following(*place)


class Opened(Rows):
    """Opens its file as it is first read, as data sets do that are sent to other processes."""

    is_open = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self.length = 3

    def __getitem__(self, index: int) -> str:
        if not self.is_open:
            self.file = zipfile.ZipFile(self.path)
            self.is_open = True
        return self.file.read("lines").decode()[index : index + self.length]


def test_what_a_data_set_opens_in_this_process_is_not_taken_for_the_scripts(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "lines.zip", "w") as file:
        file.writestr("lines", "0123456789")
    loader = SampleLoader(Opened(tmp_path / "lines.zip"), 5, list)
    prefetch = Prefetcher(loader, 2)
    loader.load(0, [0, 1])  # by this process
    assert prefetch.load([(0, (1, 4))], []) == [["123", "456"]]
    loader.dataset.length = 2
    assert prefetch.load([(0, (1, 4))], []) == [["12", "45"]]
    loader.dataset.place = Opened(tmp_path / "lines.zip")
    with pytest.raises(ElasticError, match=r"place.length .*no place"):
        prefetch.load([(0, (1, 4))], [])


def test_a_batch_does_not_depend_on_when_it_is_loaded(tmp_path: Path) -> None:
    loader = SampleLoader(Noisy(tmp_path / "notes"), 5, None)
    prefetch = Prefetcher(loader, 2)
    for order, coming in orders([1, 1, 2, 2, 2, 1, 3, 3, 3, 3]):
        (indices, noise), (expected, theirs) = prefetch.load([order], coming)[0], loader.load(*order)
        assert indices.tolist() == expected.tolist() == list(order[1])
        assert torch.equal(noise, theirs)
    assert prefetch.dropped > 0, "the size changed: what was loaded for the old one is of no use"
    readers = {int(line.split()[0]) for line in (tmp_path / "notes").read_text().splitlines()}
    assert len(readers - {os.getpid()}) == 2


class Staged(Rows):
    """A data set whose samples depend on what the script sets."""

    def __init__(self) -> None:
        self.epoch = 0
        self.inner = Noisy(Path("unused"))

    def __getitem__(self, index: int) -> int:
        return 100 * self.epoch + getattr(self.inner, "stage", 0) + index


def test_what_the_script_sets_on_the_data_set_is_seen_by_every_process() -> None:
    dataset = Staged()
    prefetch = Prefetcher(SampleLoader(dataset, 5, None), 2)
    coming: list[LoadRequest] = [(0, (2, 3)), (0, (4, 5)), (0, (6, 7))]
    assert prefetch.load([(0, (0, 1))], coming)[0].tolist() == [0, 1]
    dataset.epoch = 3
    assert [batch.tolist() for batch in prefetch.load(coming[:2], coming[2:])] == [[302, 303], [304, 305]]
    assert prefetch.dropped == 3
    dataset.epoch = 0
    dataset.inner.stage = 50  # type: ignore[attr-defined]  # an attribute that it did not have
    for _ in range(2):
        for request in coming:
            assert prefetch.load([request], coming)[0].tolist() == [50 + index for index in request[1]]


def test_errors_of_the_data_set_are_raised_by_load(tmp_path: Path) -> None:
    prefetch = Prefetcher(SampleLoader(Noisy(tmp_path / "notes"), 5, None), 1)
    assert prefetch.load([(0, (1, 2))], [(0, (49,))])[0][0].tolist() == [1, 2]
    with pytest.raises(LookupError, match="no sample 49"):
        prefetch.load([(0, (49,))], [])


def test_a_lost_worker_process_is_an_error_and_no_hang(tmp_path: Path) -> None:
    prefetch = Prefetcher(SampleLoader(Noisy(tmp_path / "notes"), 5, None), 1)
    prefetch.load([(0, (1,))], [])
    reader = int((tmp_path / "notes").read_text().split()[0])
    os.kill(reader, signal.SIGKILL)
    with pytest.raises(ElasticError, match="loads batches"):
        for index in range(20):
            prefetch.load([(0, (index,))], [])


@pytest.mark.nightly
def test_loaded_ahead_through_changes_of_size_each_sample_counts_once(tmp_path: Path, static: Static) -> None:
    given = ["--epochs", "6", "--loaders", "1", "--step-seconds", "0.1", "--slow-until", str(tmp_path / "go")]
    with running(tmp_path, real=True) as (daemon, pod):
        pod.begin(daemon, (0, 1, 2), [SCRIPT, *given])
        wait_until(lambda: any(line["size"] == 3 for line in diary(tmp_path)), 60, "a step of three")
        children = Path(f"/proc/{pod.processes[1].pid}/task/{pod.processes[1].pid}/children").read_text().split()
        assert len(children) == 1
        pod.kill_after_a_step(1)
        daemon.wait_world([0, 2], 90)
        wait_until(lambda: not Path(f"/proc/{children[0]}").exists(), 90, "its loader has ended with it")
        pod.finish(0, 2)
    assert_every_sample_once(diary(tmp_path), 6)
    static.assert_like(tmp_path, "--epochs", "6")


def _draws() -> tuple[list[float], float, float]:
    return torch.rand(3).tolist(), random.random(), float(np.random.random())


def test_a_seed_is_that_of_torch_and_of_python_and_numpy() -> None:
    with kept_random_state():
        torch.manual_seed(2**60 + 7)
        random.seed(2**60 + 7)
        np.random.seed((2**60 + 7) % 2**32)
        wanted = _draws()
        seed_all(2**60 + 7)
        assert _draws() == wanted


class Drawing(Rows):
    """Samples, for each of which so many random numbers are drawn."""

    def __init__(self, numbers: int) -> None:
        self.numbers = numbers

    def __getitem__(self, index: int) -> torch.Tensor:
        for _ in range(self.numbers):
            _draws()
        return torch.full((2,), float(index))


def _drawn_by_a_script(dataset: Drawing) -> list[Any]:
    """Numbers that a script draws after each batch, in each step, after it, and after an evaluation."""
    found: list[Any] = []
    with kept_random_state():
        seed_all(3)
        model = nn.Linear(2, 1)
        s = elastic.Session(model, torch.optim.SGD(model.parameters(), lr=0.1), dataset, batch_size=20)
        for _ in s.epochs(2):
            for batch in s.batches():
                found.append(_draws())
                with s.step():
                    found.append(_draws())
                    model(batch).mean().backward()
                found.append(_draws())
            s.evaluate(lambda batch: {"count": len(batch)}, dataset)
            found.append(_draws())
        s.finish()
    return found


def test_what_a_data_set_draws_moves_no_number_of_the_script() -> None:
    drawn = _drawn_by_a_script(Drawing(3))
    assert len(drawn) == 20 and drawn == _drawn_by_a_script(Drawing(0))


@pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator is seeded by torch")
def test_seeding_asks_no_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sources of a script on a cluster are on a file system that all nodes share."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a stack is formatted, or a file looked at, in every step")

    with kept_random_state():
        seed_all(1)
        monkeypatch.setattr(os, "stat", refuse)
        monkeypatch.setattr(traceback, "format_stack", refuse)
        seed_all(2)


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
    with pytest.raises(ElasticError, match=r"stream 0 .*3 samples .*5 on"):
        StreamReader(Streams(open_stream, 5), 0, list).read(0, 0, 5, 1)


def session_on_streams(**settings: Any) -> elastic.Session:
    model = nn.Linear(1, 1)
    return elastic.Session(model, torch.optim.SGD(model.parameters(), 0.1), Streams(open_stream, 5), **settings)


@pytest.mark.parametrize("name", ["virtual_shards", "loaders", "drop_last"])
def test_what_streams_cannot_bear_is_refused(name: str) -> None:
    with pytest.raises(ElasticError, match=rf"Session\(..., {name}=...\) needs map-style data"):
        session_on_streams(batch_size=8, **{name: 2})


def test_a_step_takes_of_each_stream_and_none_is_evaluated_on() -> None:
    with pytest.raises(ElasticError, match=r"4 samples .*5 streams"):
        session_on_streams(batch_size=4)
    s = session_on_streams(batch_size=8)
    with pytest.raises(ElasticError, match="needs a map-style data set"):
        s.evaluate(lambda batch: {"n": 1.0})
