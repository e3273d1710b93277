"""What the script sets on its data set is compared; what the data set changes as it loads is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset

from malletrain.elastic.data.plain_attributes import MAX_LISTED
from malletrain.elastic.guards.data_sets.dataset_attributes import AS_AT_FIRST, DatasetAttributes


class Rows(Dataset[Any]):
    def __init__(self) -> None:
        self.labels = [0, 1, 2, 3]
        self.codes = np.array([0, 1, 2, 3])
        self.losses = [0.0, 0.0]
        self.loaded: list[int] = []
        self.long = [0] * (MAX_LISTED + 1)
        self.cache: list[Any] = [None] * 4

    def __getitem__(self, index: int) -> Any:
        self.loaded.append(index)
        self.names = ["a", "b"]
        self.cache[index] = torch.zeros(2)
        return self.cache[index], self.labels[index]


def test_lists_and_arrays_that_the_script_changes_are_compared() -> None:
    data = Rows()
    attributes = DatasetAttributes(Subset(data, [0, 1]))
    with attributes.loading(watched=True):
        data[1]
    names = {f"dataset.dataset.{name}" for name in ("labels", "codes")} | {"dataset.indices"}
    assert attributes.compared_values() == dict.fromkeys(names, AS_AT_FIRST)
    data.labels[2] = 0
    data.codes[2] = 0
    data.losses[0] = 1.0
    data.long[0] = 1
    data[2]
    changed = attributes.compared_values()
    assert {name for name, value in changed.items() if value != AS_AT_FIRST} == names - {"dataset.indices"}
    data.labels[2] = 2
    assert attributes.compared_values()["dataset.dataset.labels"] == AS_AT_FIRST
    data.codes[2] = 1
    assert attributes.compared_values()["dataset.dataset.codes"] != changed["dataset.dataset.codes"]
