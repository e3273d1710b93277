"""Checkpoints on disk: complete or absent."""

from __future__ import annotations

import io
import json
import math
import random
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load, load_file
from torch import nn

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.state.checkpoint_store import STATE_FILE, CheckpointStore
from malletrain.elastic.state.shared_values import SharedValues
from malletrain.elastic.state.tensor_file import read_tensors, write_tensors
from malletrain.elastic.state.training_state import SCRIPT_VALUES, Position, TrainingState
from tests.waiting import wait_until

KINDS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
]


class Best(NamedTuple):
    step: int
    score: float


class Odd:
    """Tensors of odd types."""

    def __init__(self, held: dict[str, torch.Tensor]) -> None:
        self.held = held

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self.held

    def load_state_dict(self, state_dict: Any) -> None:
        self.held = state_dict


def state(step: int = 0, seed: int = 0) -> TrainingState:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    held = TrainingState(model, [optimizer], Position(step=step))
    held.track("scheduler", torch.optim.lr_scheduler.StepLR(optimizer, 3))
    for _ in range(step):
        model(torch.randn(4, 5)).sum().backward()
        optimizer.step()
    return held


def same(left: TrainingState, right: TrainingState) -> bool:
    ours, theirs = left.capture(), right.capture()
    return all(torch.equal(a, b) for a, b in zip(ours[1], theirs[1], strict=True)) and left.position == right.position


def test_what_is_saved_is_loaded_and_other_programs_find_tensors_by_name(tmp_path: Path) -> None:
    kept = state(3)
    path = CheckpointStore(tmp_path / "c").save(kept)
    assert path.stat().st_mode & 0o077 == 0
    other = state(seed=1)
    assert CheckpointStore(tmp_path / "c").load(other) == path
    assert same(kept, other)
    found = load_file(path / STATE_FILE)
    assert torch.equal(found["model.0.weight"], kept.model.get_parameter("0.weight"))
    with safe_open(path / STATE_FILE, "pt") as file:
        assert "model.0.weight" in json.loads(file.metadata()["malletrain.index"])["names"]


def test_a_job_begins_where_another_one_stopped(tmp_path: Path) -> None:
    CheckpointStore(tmp_path / "41").save(state(step=7))
    own = CheckpointStore(tmp_path / "42", resumed=tmp_path / "41")
    fresh = state(step=0)
    assert own.load(fresh) == tmp_path / "41" / "step-7"
    assert fresh.position.step == 7
    own.save(state(step=9))
    assert own.load(fresh) == tmp_path / "42" / "step-9", "its own counts once there is one"
    own.discard()
    assert (tmp_path / "41" / "step-7").exists(), "the other's stays"
    with pytest.raises(ElasticError, match=r"43 .*no checkpoint"):
        CheckpointStore(tmp_path / "44", resumed=tmp_path / "43").load(fresh)


@given(st.lists(st.sampled_from(KINDS), max_size=4), st.lists(st.lists(st.integers(0, 4), max_size=3), max_size=4))
def test_tensors_of_every_type_and_shape_are_read_as_they_were_written(
    kinds: list[torch.dtype], shapes: list[list[int]]
) -> None:
    tensors = {
        f"t{n}": torch.arange(math.prod(shape)).reshape(shape).to(kind)
        for n, (kind, shape) in enumerate(zip(kinds, shapes, strict=False))
    }
    file = io.BytesIO()
    write_tensors(file, tensors, {"a": "ä"})
    assert all(torch.equal(load(file.getvalue())[name], tensor) for name, tensor in tensors.items())
    found, texts = read_tensors(io.BufferedReader(io.BytesIO(file.getvalue())))
    assert texts == {"a": "ä"}
    assert {name: tensor.dtype for name, tensor in found.items()} == {n: t.dtype for n, t in tensors.items()}
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


@given(st.binary(max_size=60), st.integers(0, 200))
def test_files_of_anything_are_refused(content: bytes, length: int) -> None:
    for text in (content, length.to_bytes(8, "little") + content):
        with pytest.raises(ElasticError):
            read_tensors(io.BufferedReader(io.BytesIO(text)))


def test_types_that_the_format_lacks_and_tied_tensors_are_kept(tmp_path: Path) -> None:
    held, other = state(1), state(seed=1)
    tied = torch.arange(6.0)
    for each, value in ((held, tied), (other, torch.zeros(6))):
        each.track("odd", Odd({"complex": value * 1j, "tied": value, "view": value[2:4]}))
    CheckpointStore(tmp_path / "c").save(held)
    CheckpointStore(tmp_path / "c").load(other)
    assert same(held, other)


def test_an_async_checkpoint_has_the_state_of_the_moment_it_began_and_is_found_once_its_step_is_confirmed(
    tmp_path: Path,
) -> None:
    checkpoints = CheckpointStore(tmp_path / "c", every_s=0.0)
    kept, other = state(3), state(seed=1)
    assert checkpoints.is_due()
    checkpoints.save_async(kept)
    with torch.no_grad():
        for parameter in kept.model.parameters():
            parameter.zero_()
    wait_until(lambda: any((tmp_path / "c").glob(f".step-3.*/{STATE_FILE}")), 90, "it is written aside")
    assert CheckpointStore(tmp_path / "c").load(other) is None
    assert not checkpoints.is_due()
    checkpoints.confirm()
    wait_until(checkpoints.is_due, 90, "it is written")
    assert checkpoints.load(other) == tmp_path / "c" / "step-3"
    assert same(state(3), other)
    assert not CheckpointStore(tmp_path / "c", every_s=100.0).is_due()


def test_unfinished_checkpoints_of_lost_workers_are_removed(tmp_path: Path) -> None:
    CheckpointStore(tmp_path / "c", every_s=0.0).save_async(state(3))
    wait_until(lambda: any((tmp_path / "c").glob(f".step-3.*/{STATE_FILE}")), 90, "it is written aside")
    (tmp_path / "c" / ".step-9.other.1").mkdir()
    CheckpointStore(tmp_path / "c").save(state(4))
    assert {path.name for path in (tmp_path / "c").iterdir()} == {"step-4", ".step-9.other.1"}


def test_the_newest_two_are_kept_and_discard_removes_all(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(tmp_path / "c")
    for step in (1, 2, 10):
        checkpoints.save(state(step))
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["step-10", "step-2"]
    checkpoints.save(state(10))
    checkpoints.discard()
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("damage", ["cut", "no file"])
def test_a_damaged_checkpoint_is_refused_for_an_older_one_or_at_all(tmp_path: Path, damage: str) -> None:
    checkpoints = CheckpointStore(tmp_path / "c")
    checkpoints.save(state(1))
    data = checkpoints.save(state(2)) / STATE_FILE
    if damage == "no file":
        data.unlink()
    else:
        data.write_bytes(data.read_bytes()[:-2000])
    other, older = state(seed=1), tmp_path / "c" / "step-1"
    assert checkpoints.load(other) == older
    assert same(state(1), other)
    (older / STATE_FILE).write_bytes(b"x")
    with pytest.raises(ElasticError, match=r"no checkpoint .*step-2.*step-1"):
        checkpoints.load(other)


def test_a_flipped_bit_anywhere_is_found_or_changes_nothing(tmp_path: Path) -> None:
    """In the header, in the skeleton (the step, the learning rate, the scheduler) and in tensors."""
    checkpoints = CheckpointStore(tmp_path / "c")
    data = checkpoints.save(state(2)) / STATE_FILE
    sound = data.read_bytes()
    rng, unseen = random.Random(1), []
    header = int.from_bytes(sound[:8], "little") + 8
    for at in [*rng.sample(range(header), 40), *rng.sample(range(header, len(sound)), 80)]:
        damaged = bytearray(sound)
        damaged[at] ^= 1 << rng.randrange(8)
        data.write_bytes(damaged)
        other = state(seed=1)
        try:
            checkpoints.load(other)
        except ElasticError:
            continue
        if not same(state(2), other) or other.position != state(2).position:
            unseen.append(at)
    assert unseen == []


@pytest.mark.parametrize("lacks", ["skeleton", "sums", "names", "malletrain.index", "malletrain.skeleton"])
def test_a_checkpoint_that_lacks_a_part_is_refused_with_what_to_do(tmp_path: Path, lacks: str) -> None:
    checkpoints = CheckpointStore(tmp_path / "c")
    data = checkpoints.save(state(1)) / STATE_FILE
    with data.open("rb") as file:
        tensors, texts = read_tensors(file)
    index = json.loads(texts["malletrain.index"])
    for part in (tensors, texts, index):
        part.pop(lacks, None)
    if texts:
        texts["malletrain.index"] = json.dumps(index)
    with data.open("wb") as out:
        write_tensors(out, tensors, texts)
    with pytest.raises(ElasticError, match=rf"step-1: .*'{lacks}'.*release"):
        checkpoints.load(state())


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (np.linspace(1e-2, 1e-4, 4)[1], r" .* numpy\.float64.*float\("),
        ((number for number in range(3)), r" .* builtins\.generator"),
        (lambda step: 0.5, r" .* builtins\.function"),
        (threading.Lock(), r" .* _thread\.lock"),
        ({"a.b": np.int64(3)}, r'\["a\.b"\] .* numpy\.int64'),
        ({np.int64(3): 1.0}, r" .* numpy\.int64"),
        ({threading.Lock(): 1.0}, r" .* _thread\.lock"),
        ({1.5, threading.Lock()}, r" .* builtins\.set"),
    ],
    ids=["number of numpy's", "generator", "lambda", "lock", "key with a dot", "key", "odd key", "set"],
)
def test_a_value_that_the_state_cannot_keep_is_named_by_object_and_key(value: Any, kind: str) -> None:
    """A schedule as an array of numpy's, for example, makes the learning rate one of numpy's numbers."""
    held = state()
    values = SharedValues()
    values["epoch"] = {"held": 1}
    held.track(SCRIPT_VALUES, values)
    with pytest.raises(ElasticError, match=r's\.state\["best"\]' + kind):
        values["best"] = value
    values["epoch"]["held"] = value
    with pytest.raises(ElasticError, match=r's\.state\["epoch"\]\["held"\]' + kind):
        held.capture()
    values["epoch"]["held"] = 1
    held.optimizers[0].param_groups[0]["lr"] = value
    with pytest.raises(ElasticError, match=r'optimizer\.param_groups\[0\]\["lr"\]' + kind):
        held.capture()
    held.optimizers[0].param_groups[0]["lr"] = 0.1
    several = TrainingState(held.model, [*held.optimizers, *state().optimizers], Position())
    several.optimizers[1].param_groups[0]["lr"] = value
    with pytest.raises(ElasticError, match=r'optimizer\[1\]\.param_groups\[0\]\["lr"\]' + kind):
        several.capture()
    held.track("average", Odd({"seen": [value]}))  # type: ignore[dict-item]
    with pytest.raises(ElasticError, match=r'average\["seen"\]\[0\]' + kind):
        held.capture()


def test_devices_generators_and_named_tuples_of_the_script_are_kept() -> None:
    held, other = state(), state()
    for each in (held, other):
        each.track(SCRIPT_VALUES, SharedValues())
    values, theirs = held.tracked[SCRIPT_VALUES], other.tracked[SCRIPT_VALUES]
    assert isinstance(values, SharedValues) and isinstance(theirs, SharedValues)
    values["device"], values["draws"] = torch.device("cuda:3"), [torch.Generator().manual_seed(1)]
    values["best"], theirs["best"] = Best(3, 0.5), Best(0, 0.0)
    other.restore(*held.copy())
    assert theirs["device"] == torch.device("cuda:3") and theirs["best"].score == 0.5
    assert theirs["draws"][0].initial_seed() == 1
