"""An iterable data set is refused with two solutions in the message: streams, and shards with an index, whose records
are read by number."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

from malletrain import elastic
from malletrain.elastic.data.sample_loader import SampleLoader
from malletrain.elastic.errors import ElasticError


class Stream(IterableDataset[dict[str, Any]]):
    """An iterable data set: shards read from start to end."""

    def __init__(self, shards: list[Path]) -> None:
        self.shards = shards

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for shard in self.shards:
            for line in shard.read_text().splitlines():
                yield json.loads(line)


class Indexed(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The documented solution: finds the offset of each record once, then reads records by number."""

    def __init__(self, shards: list[Path]) -> None:
        self.places = []
        for shard in shards:
            with shard.open("rb") as stream:
                offset = 0
                for line in stream:
                    self.places.append((shard, offset))
                    offset += len(line)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        shard, offset = self.places[index]
        with shard.open("rb") as stream:
            stream.seek(offset)
            record = json.loads(stream.readline())
        return torch.tensor(record["x"]), torch.tensor(record["y"])


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    paths = []
    for number, count in enumerate((7, 1, 12)):
        path = tmp_path / f"shard-{number}.jsonl"
        path.write_text("".join(json.dumps({"x": [n / 10, number], "y": n % 2}) + "\n" for n in range(count)))
        paths.append(path)
    return paths


def test_a_stream_is_refused_and_the_message_says_what_to_do(shards: list[Path]) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(
        ElasticError,
        match=r"elastic.Streams\(open_stream, count\), or made map-style",
    ):
        elastic.Session(model, torch.optim.SGD(model.parameters(), lr=0.1), Stream(shards), batch_size=4)


def test_indexed_shards_train_each_record_once_an_epoch(shards: list[Path]) -> None:
    data = Indexed(shards)
    assert len(data) == len(list(Stream(shards))) == 20
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    s = elastic.Session(model, optimizer, data, batch_size=6)
    for _ in s.epochs(2):
        seen = []
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            seen += [tuple(row) for row in x.tolist()]
        wanted = [tuple(torch.tensor(record["x"]).tolist()) for record in Stream(shards)]
        assert sorted(seen) == sorted(wanted)


def test_any_worker_reads_the_same_record(shards: list[Path]) -> None:
    one, two = (SampleLoader(Indexed(shards), 0, None) for _ in range(2))
    for index in (0, 7, 8, 19):
        for left, right in zip(one.load(0, [index]), two.load(0, [index]), strict=True):
            assert torch.equal(left, right)
