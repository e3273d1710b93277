"""What members compare, and how: digests, rows, data sets, values of the script."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, random_split

from malletrain.elastic.comm.step_commit import StepCommitter, TrainingWorld
from malletrain.elastic.data.dataset_digest import dataset_digest
from malletrain.elastic.errors import ElasticError, LayoutChanged
from malletrain.elastic.invariants.agreement import (
    KIND,
    LAYOUT,
    PLACE_CURSOR,
    ROW_LENGTH,
    Agreement,
    RoundKind,
    odd_ones,
)
from malletrain.elastic.invariants.digest import digest, exceeds_rounding
from malletrain.elastic.state.shared_values import SharedValues
from malletrain.elastic.state.training_state import Position, pack, unpack
from tests.elastic.test_checkpoint import KINDS

# --- digests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*KINDS, torch.int32, torch.complex64], ids=str)
def test_a_digest_is_that_of_an_equal_tensor_and_no_others(dtype: torch.dtype) -> None:
    tensor = torch.arange(24).reshape(2, 3, 4).to(dtype)
    before = digest([("a", tensor), ("b", tensor)]).total
    assert digest([("a", tensor.clone()), ("b", tensor.clone())]).total == before
    changed = tensor.clone()
    changed[1, 2, 3] = 0
    assert digest([("a", changed), ("b", tensor)]).total != before
    assert digest([("a", tensor), ("b", changed)]).total != digest([("a", changed), ("b", tensor)]).total


@pytest.mark.parametrize("many", [10, 5000, 3_000_001])
def test_elements_that_change_places_are_seen(many: int) -> None:
    tensor = torch.randn(many, generator=torch.Generator().manual_seed(0))
    changed = tensor.clone()
    changed[[1, many - 3]] = tensor[[many - 3, 1]]
    for other in (changed, tensor.flip(0), tensor.roll(2)):
        assert digest([("a", tensor)]).total != digest([("a", other)]).total


def test_one_bit_is_seen_and_the_way_a_tensor_lies_in_memory_is_not() -> None:
    tensor = torch.randn(2, 3, 4, 5)
    changed = tensor.clone()
    changed[1, 2, 3, 4] = torch.nextafter(tensor[1, 2, 3, 4], torch.tensor(9.0))
    other = tensor.to(memory_format=torch.channels_last)
    assert digest([("a", tensor)]).total == digest([("a", other)]).total != digest([("a", changed)]).total
    assert digest([]).total == 0


def test_rounding_is_told_from_a_difference() -> None:
    tensor = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert not exceeds_rounding(tensor * (1 + 1e-6), tensor.double())
    assert exceeds_rounding(tensor * (1 + 1e-2), tensor.double())
    assert exceeds_rounding(tensor * float("nan"), tensor.double())
    assert exceeds_rounding(torch.ones(3, dtype=torch.int64), torch.ones(3).double()), "integers are never rounded"


# --- rows ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_odd_ones_are_those_unlike_most(values: list[int]) -> None:
    odd = odd_ones(values)
    assert (not odd) == (len(set(values)) < 2)
    for rank in odd:
        usual = [value for other, value in enumerate(values) if other not in odd]
        assert len(set(usual)) == 1 and values[rank] not in usual
        assert usual.count(usual[0]) >= values.count(values[rank])


def judge_of(size: int) -> Callable[[list[list[int]]], None]:
    committer = StepCommitter(monitor=None)  # type: ignore[arg-type]  # nothing of it is used
    committer.world = TrainingWorld(1, tuple(f"w{rank}" for rank in range(size)))
    Agreement(committer, Position(), lambda: 0, dict, lambda: digest([]))
    return committer.judge_rows


def row(column: int = KIND, value: int = RoundKind.STEP) -> list[int]:
    """Of a member in a step, with one value that is given."""
    return [{KIND: RoundKind.STEP, column: value}.get(each, 0) for each in range(ROW_LENGTH)]


def test_members_at_other_places_are_named() -> None:
    judge_of(3)([row(), row(), row()])
    place = r"^w2 .*: in s.finish\(\), .* s.step\(\)"
    with pytest.raises(ElasticError, match=place):
        judge_of(3)([row(), row(), row(KIND, RoundKind.FINISH)])
    with pytest.raises(ElasticError, match=r"63 samples, .* 0 samples"):
        judge_of(3)([row(), row(PLACE_CURSOR, 63), row()])


def test_a_new_layout_is_taken_by_all_or_refused() -> None:
    with pytest.raises(LayoutChanged):
        judge_of(2)([row(LAYOUT, 7), row(LAYOUT, 7)])
    with pytest.raises(ElasticError, match=r"^w1 .*parameters"):
        judge_of(3)([row(LAYOUT, 7), row(), row(LAYOUT, 7)])


# --- data sets ----------------------------------------------------------------------------------------------------


class Files(Dataset[str]):
    def __init__(self, names: list[Any]) -> None:
        self.names = names

    def __len__(self) -> int:
        return len(self.names)


def split(seed: int) -> Subset[Any]:
    whole = TensorDataset(torch.zeros(100, 2))
    return random_split(whole, [80, 20], generator=torch.Generator().manual_seed(seed))[0]


def test_data_sets_are_told_apart_by_what_they_hold() -> None:
    assert dataset_digest(split(0)) == dataset_digest(split(0))
    assert dataset_digest(split(0)) != dataset_digest(split(1))
    assert dataset_digest(ConcatDataset([split(0)])) == dataset_digest(ConcatDataset([split(0)]))
    assert dataset_digest(Files(["a", "b"])) != dataset_digest(Files(["b", "a"]))
    assert dataset_digest(Files(["a"])) != dataset_digest(Files(["a", "b"]))
    numbers = [np.array([1, 2]), np.array([2, 1])]
    assert dataset_digest(Files(numbers[0])) != dataset_digest(Files(numbers[1]))  # type: ignore[arg-type]


def test_the_place_of_the_files_on_a_node_does_not_count() -> None:
    def images(root: str) -> Files:
        return Files([(f"{root}/train/cat/1.png", 0), (f"{root}/train/dog/2.png", 1)])

    assert dataset_digest(images("/scratch/job1")) == dataset_digest(images("/local/7"))


@given(st.lists(st.one_of(st.integers(), st.text(), st.floats(), st.binary(), st.none()), max_size=5))
def test_any_data_set_has_a_digest(names: list[Any]) -> None:
    assert dataset_digest(Files(names)) == dataset_digest(Files(list(names)))


# --- values of the script -----------------------------------------------------------------------------------------


def carried_over(values: SharedValues, into: SharedValues) -> SharedValues:
    """As the training state travels."""
    skeleton, tensors = pack(values.state_dict())
    into.load_state_dict(unpack(skeleton, [tensor.clone() for tensor in tensors]))
    return into


def test_values_travel() -> None:
    values = SharedValues()
    values["n"], values["best"], values["name"], values["none"] = 3, 0.5, "x", None
    values["average"] = {"w": torch.ones(2), "steps": [1, 2]}
    got = carried_over(values, SharedValues())
    assert got["average"]["w"].tolist() == [1, 1]
    assert dict(got) | {"average": None} == {"n": 3, "best": 0.5, "name": "x", "none": None, "average": None}
    assert got.plain() == {"n": 3, "best": 0.5, "name": "x"}
    assert [name for name, _ in got.tensors()] == ["average.w"]


def test_whoever_holds_a_dictionary_or_tensor_sees_the_values() -> None:
    values, own = SharedValues(), SharedValues()
    values["average"] = {"w": torch.ones(2)}
    shadow = {"w": torch.zeros(2)}
    own["average"] = shadow
    weight = shadow["w"]
    carried_over(values, own)
    assert weight.tolist() == [1, 1] and own["average"] is shadow


def test_generators_go_on_where_they_are() -> None:
    values, own = SharedValues(), SharedValues()
    kinds: dict[str, tuple[Callable[[], Any], Callable[[Any], float]]] = {
        "torch": (lambda: torch.Generator().manual_seed(1), lambda g: float(torch.rand(1, generator=g))),
        "python": (lambda: random.Random(1), lambda g: float(g.random())),
        "numpy": (lambda: np.random.default_rng(1), lambda g: float(g.random())),
        "legacy": (lambda: np.random.RandomState(1), lambda g: float(g.randn())),
    }
    for name, (make, draw) in kinds.items():
        values[name], own[name] = make(), make()
        draw(values[name])
    carried_over(values, own)
    for name, (_, draw) in kinds.items():
        assert draw(own[name]) == draw(values[name])


def test_what_cannot_travel_is_refused_at_once() -> None:
    with pytest.raises(ElasticError, match=r's.state\["head"\] .*Linear.*s.track'):
        SharedValues()["head"] = torch.nn.Linear(1, 1)
