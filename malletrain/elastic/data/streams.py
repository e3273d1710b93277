"""Data that can only be read from start to end: tar files, lines of compressed text, a service.

The script opens a fixed number of streams. Each step takes its samples from all streams that are not over, as evenly
as possible, so what a step consists of does not depend on the number of workers. Each stream is read by one worker.
How many samples were taken from each, and which are over, is part of the training state and is agreed beside the
gradients of each step: a worker that takes a stream over passes over the samples that were taken.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch.utils.data import default_collate

from malletrain.elastic.data.random_seeds import kept_random_state, seed_sample
from malletrain.elastic.data.sampler import Share, mix, part_of
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients.reducer import GradientReducer
from malletrain.elastic.state.training_state import Position


class Streams:
    """A data set of streams, for `Session(model, optimizer, elastic.Streams(open_stream, 16), batch_size=256)`.

    Args:
        open_stream: called with the number of a stream, from 0, and the epoch; returns its samples, the same ones in
            the same order on every worker. If what it returns has a method `skip(n)`, that is called to pass over
            samples, and must return the rest (as an `IterableDataset` of Hugging Face does); otherwise they are read.
        count: number of streams. At most so many workers have samples; a step needs one sample of each.

    Raises:
        ElasticError: `count` is below 1.
    """

    def __init__(self, open_stream: Callable[[int, int], Iterable[Any]], count: int) -> None:
        if count < 1:
            raise ElasticError(f"Streams: count must be at least 1, not {count}")
        self.open_stream = open_stream
        self.count = count


class StreamPositions:
    """How far each stream has been read in an epoch: part of the training state."""

    def __init__(self, count: int) -> None:
        self.epoch = -1
        self.taken = [0] * count
        self.over = [False] * count

    def begin(self, epoch: int) -> None:
        """Start all streams anew if `epoch` is another one."""
        if epoch != self.epoch:
            self.epoch, self.taken, self.over = epoch, [0] * len(self.taken), [False] * len(self.over)

    def is_over(self, epoch: int) -> bool:
        """Whether all streams of an epoch are over."""
        return epoch == self.epoch and all(self.over)

    def live(self) -> list[int]:
        return [stream for stream, over in enumerate(self.over) if not over]

    def advance(self, taken: list[int], over: list[int]) -> None:
        """A step is committed: so many samples of each stream were taken, and these are over."""
        self.taken = [before + more for before, more in zip(self.taken, taken, strict=True)]
        self.over = [before or bool(now) for before, now in zip(self.over, over, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "taken": list(self.taken), "over": list(self.over)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.taken, self.over = state["epoch"], list(state["taken"]), list(state["over"])


class StreamSampler:
    """Stands in for a `Sampler`: the epoch is over when all streams are."""

    length = sys.maxsize

    def __init__(self, position: Position, positions: StreamPositions, batch_size: int, seed: int) -> None:
        if batch_size < len(positions.taken):
            raise ElasticError(
                f"a step of {batch_size} samples cannot take one of each of {len(positions.taken)} streams: fewer "
                "streams, each of several files, or a larger batch_size"
            )
        self._position = position
        self._positions = positions
        self.batch_size = batch_size
        self.seed = seed

    @property
    def epoch_length(self) -> int:
        """0 once the present epoch is over, else more than there can be."""
        return 0 if self._positions.is_over(self._position.epoch) else self.length

    def share(self, epoch: int, cursor: int, rank: int, size: int) -> Share:
        """As many samples as a step has."""
        return Share(list(range(self.batch_size)), self.batch_size, self.batch_size)


@dataclass(slots=True)
class _Open:
    """A stream as one worker has it: the samples from `first` on that are read but not committed, and the rest."""

    epoch: int
    first: int
    rest: Iterator[Any]
    samples: deque[Any] = field(default_factory=deque)
    ended: bool = False


class StreamReader:
    """Reads streams on one worker. Random augmentation depends on seed, epoch, stream and sample."""

    def __init__(self, streams: Streams, seed: int, collate: Callable[[list[Any]], Any] | None) -> None:
        self.dataset = streams
        self._seed = seed
        self.collate = collate or default_collate
        self._open: dict[int, _Open] = {}
        self.a_sample: list[Any] = []  #: for a worker that has no stream

    def load(self, epoch: int, indices: list[int]) -> Any:
        """A batch to warm up with: the first samples of the first stream."""
        samples, _ = self.read(epoch, 0, 0, len(indices))
        if not samples:
            raise ElasticError("stream 0 is empty")
        return self.collate(samples)

    def read(self, epoch: int, stream: int, first: int, count: int) -> tuple[list[Any], bool]:
        """`count` samples of a stream from number `first` on, or as many as there are; and whether it is over then.

        They are kept until a later sample is asked for: a step may be repeated.
        """
        with kept_random_state():
            opened = self._open.get(stream)
            if opened is None or opened.epoch != epoch or opened.first > first:
                opened = self._open[stream] = self._start(epoch, stream, first)
            self._pass_over(opened, stream, first)
            self._pull(opened, stream, count + 1)  # one more tells whether it is over
        samples = list(islice(opened.samples, count))
        self.a_sample = samples[:1] or self.a_sample
        return samples, opened.ended and len(opened.samples) <= count

    def _start(self, epoch: int, stream: int, first: int) -> _Open:
        seed_sample(mix(self._seed, epoch, stream))
        items: Any = self.dataset.open_stream(stream, epoch)
        if first > 0 and hasattr(items, "skip"):
            return _Open(epoch, first, iter(items.skip(first)))
        return _Open(epoch, 0, iter(items))

    def _pass_over(self, opened: _Open, stream: int, first: int) -> None:
        """Read on to sample number `first`."""
        while opened.first < first:
            self._pull(opened, stream, 1)
            if not opened.samples:
                raise ElasticError(
                    f"stream {stream} has {opened.first} samples here, and at least {first} on another worker: "
                    "it must give the same samples in the same order everywhere"
                )
            opened.samples.popleft()
            opened.first += 1

    def _pull(self, opened: _Open, stream: int, count: int) -> None:
        """Read on until `count` samples are at hand, or the stream is over."""
        while len(opened.samples) < count and not opened.ended:
            seed_sample(mix(self._seed, opened.epoch, stream, opened.first + len(opened.samples)))
            try:
                opened.samples.append(next(opened.rest))
            except StopIteration:
                opened.ended = True


class StreamBatches:
    """Loads one member's parts of global batches from its streams; stands in for a `BatchLoader`. `taken`: samples of
    the step committed last, over all members."""

    def __init__(
        self, sampler: StreamSampler, reader: StreamReader, positions: StreamPositions, reducer: GradientReducer
    ) -> None:
        self._sampler = sampler
        self._reader = reader
        self._positions = positions
        self._reducer = reducer
        self._mine: dict[int, tuple[int, bool]] = {}
        self.taken = 0
        reducer.add_extras(1, self._contribute, self._apply)

    def load(self, epoch: int, cursor: int, rank: int, size: int) -> tuple[Share, Any]:
        """Load the part of member `rank` of `size`; see `BatchLoader.load`."""
        positions = self._positions
        positions.begin(epoch)
        live = positions.live()
        samples: list[Any] = []
        self._mine = {}
        for place, stream in enumerate(live):
            if stream % size == rank:
                count = len(part_of(self._sampler.batch_size, place, len(live)))
                got, over = self._reader.read(epoch, stream, positions.taken[stream], count)
                self._mine[stream] = len(got), over
                samples += got
        share = Share([], len(samples), self._sampler.batch_size)
        return share, self._reader.collate(samples or self._reader.a_sample)

    def _contribute(self) -> list[torch.Tensor]:
        """What this member has taken of each stream, and whether it is over: beside the last sums of a step."""
        table = torch.zeros(2, len(self._positions.taken), dtype=torch.int64)
        if self._reducer.passes_left == 1:
            for stream, (taken, over) in self._mine.items():
                table[0, stream], table[1, stream] = taken, int(over)
        return [table.reshape(-1)]

    def _apply(self, sums: list[torch.Tensor]) -> None:
        if self._reducer.passes_left > 1:
            return
        taken, over = sums[0].view(2, -1).tolist()
        self._positions.advance(taken, over)
        self.taken = sum(taken)
        if not self.taken:
            raise ElasticError(f"epoch {self._positions.epoch}: no stream has a sample")
