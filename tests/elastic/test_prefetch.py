"""Batches loaded ahead: dropped when the share changes, never used twice, and no process left behind."""

from __future__ import annotations

import os
import signal
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

from malletrain.elastic.data.prefetch import LoadRequest, Prefetcher, SampleLoader
from malletrain.elastic.data.sampler import Sampler
from malletrain.elastic.errors import ElasticError
from tests.elastic.coordinator import running
from tests.elastic.digits import SCRIPT, Static, assert_equal, assert_every_sample_once, diary
from tests.waiting import wait_until

LENGTH = 50


class Noisy(Dataset[tuple[int, torch.Tensor]]):
    """A data set with random augmentation that records which process reads which sample."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def __len__(self) -> int:
        return LENGTH

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


class Opened(Dataset[str]):
    """Opens its file as it is first read, as data sets do that are sent to other processes."""

    is_open = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self.length = 3

    def __len__(self) -> int:
        return LENGTH

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
    with pytest.raises(ElasticError, match=r"has set place.length on its data set, .* have no place: make such"):
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


class Staged(Dataset[int]):
    """A data set whose samples depend on what the script sets."""

    def __init__(self) -> None:
        self.epoch = 0
        self.inner = Noisy(Path("unused"))

    def __len__(self) -> int:
        return LENGTH

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
    with pytest.raises(ElasticError, match="a process that loads batches is gone"):
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
    assert_equal(torch.load(tmp_path / "final.pt"), static("--epochs", "6"), 1e-12)
