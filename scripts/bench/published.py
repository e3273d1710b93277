"""Published measurements of how trainings scale, as benches read them from a folder of public data."""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

#: Samples/s of one training by nodes.
Truth = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class PolluxRow:
    """One measurement of Pollux: seconds of a step of `batch` samples a GPU on GPUs of so many nodes."""

    app: str
    nodes: int
    gpus: int
    batch: int
    step_s: float

    @property
    def gpus_a_node(self) -> int | None:
        """1, 2 or 4 where all nodes have as many; None elsewhere."""
        each = self.gpus // self.nodes
        return each if each * self.nodes == self.gpus and each in (1, 2, 4) else None


@dataclass(frozen=True, slots=True)
class GavelRow:
    """One measurement of Gavel: steps/s of all workers together, each step of one batch a worker (empty where
    there is none); `consolidated`: the workers were close together."""

    model: str
    batch: str
    gpu_type: str
    gpus: int
    consolidated: bool
    steps_per_s: float


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a compressed table."""
    with gzip.open(path, "rt") as file:
        yield from csv.DictReader(file)


def pollux_rows(data: Path) -> Iterator[PolluxRow]:
    for name in ("placements", "scalability"):
        for row in rows_of(data / "pollux" / f"{name}.csv.gz"):
            nodes, gpus, batch = (int(row[key]) for key in ("nodes", "gpus", "local_bsz"))
            yield PolluxRow(row["app"], nodes, gpus, batch, float(row["step_time_s"]))


def gavel_rows(data: Path) -> Iterator[GavelRow]:
    for row in rows_of(data / "gavel" / "throughputs.csv.gz"):
        if (rate := float(row["steps_per_s"])) > 0:
            close = row["consolidated"] == "yes"
            yield GavelRow(row["model"], row["batch_size"], row["gpu_type"], int(row["gpus"]), close, rate)


def imagenet(data: Path) -> dict[str, Truth]:
    models: dict[str, dict[int, float]] = defaultdict(dict)
    with (data / "bftrainer" / "scaling_imagenet.csv").open() as file:
        for row in csv.DictReader(file):
            if int(row["nodes"]):
                models[row["model"]][int(row["nodes"])] = float(row["images_per_s"])
    return dict(models)


def pollux(data: Path) -> dict[str, Truth]:
    """Fixed batch a GPU, the same number of GPUs on every node, five node counts or more."""
    rates: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in pollux_rows(data):
        if each := row.gpus_a_node:
            rates[f"{row.app}:{row.batch}:{each}"][row.nodes].append(row.gpus * row.batch / row.step_s)
    found = {key: {n: median(r) for n, r in by_size.items()} for key, by_size in rates.items()}
    return {key: truth for key, truth in found.items() if len(truth) >= 5 and 1 in truth}


def gavel(data: Path) -> dict[str, Truth]:
    """On 1, 2, 4, 8 GPUs, which stand for nodes."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for row in gavel_rows(data):
        found[f"{row.model}:{row.batch}:{row.gpu_type}:{row.consolidated}"][row.gpus] = row.steps_per_s
    return {key: truth for key, truth in found.items() if len(truth) == 4}
