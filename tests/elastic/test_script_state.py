"""State that a script holds outside the session is named, or an error."""

from __future__ import annotations

import copy
import logging
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

from malletrain.elastic.errors import Aborted, ElasticError
from malletrain.elastic.guards.script_state import CopyWatch, generators, untracked
from malletrain.elastic.launch.failure_report import FailureReporter
from malletrain.elastic.session import Session
from malletrain.elastic.state.training_state import Position, TrainingState


def lose_a_peer() -> None:
    raise Aborted("a peer is lost")


def test_a_name_that_a_given_up_block_sets_is_explained() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    s = Session(model, optimizer, TensorDataset(torch.zeros(8, 2)), batch_size=4)
    said: list[str] = []
    reporter = FailureReporter(
        lambda: "alone", lambda: 0, lambda: None, lambda m: said.append(str(m)), s._runtime._hint
    )
    for _ in s.batches():
        with s.step():
            lose_a_peer()
        s._runtime.lifecycle._must_recover = False
        try:
            print(loss)  # type: ignore[name-defined]
        except NameError as error:
            reporter.report(error)
        break
    assert "NameError" in said[0] and "a name that only the block sets is not set then" in said[0]


def state_of(model: nn.Module) -> TrainingState:
    return TrainingState(model, [torch.optim.SGD(model.parameters(), lr=0.1)], Position())


class OwnScheduler:
    """Like timm's: none of torch's classes."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Trainer:
    def __init__(self, **things: Any) -> None:
        self.__dict__.update(things)


def names(state: TrainingState, **variables: Any) -> list[str]:
    return [name for name, _ in untracked(state, variables)]


def test_schedulers_averages_and_second_models_are_found() -> None:
    model, head, teacher = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)
    state = state_of(model)
    optimizer = state.optimizers[0]
    kept = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    state.track("kept", kept)
    variables = {
        "model": model, "layer": model, "optimizer": optimizer, "kept": kept, "head": head, "teacher": teacher,
        "average": AveragedModel(model), "loss": nn.CrossEntropyLoss(), "number": 3,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "own": OwnScheduler(optimizer),
        "other": torch.optim.SGD(head.parameters(), lr=0.1), "scaler": torch.amp.GradScaler("cpu"),
    }  # fmt: skip
    assert names(state, **variables) == ["head", "average", "scheduler", "own", "other", "scaler"]


def test_what_objects_lists_and_dictionaries_hold_is_found() -> None:
    model = nn.Linear(2, 2)
    state = state_of(model)
    schedulers = [torch.optim.lr_scheduler.StepLR(state.optimizers[0], 1) for _ in range(3)]
    trainer = Trainer(scheduler=schedulers[0], parts={"warm": [schedulers[1]]})
    assert names(state, trainer=trainer, both=[schedulers[2]]) == [
        "trainer.scheduler",
        "both[0]",
        "trainer.parts['warm'][0]",
    ]


def test_objects_of_libraries_are_not_looked_into() -> None:
    model = nn.Linear(2, 2)
    state = state_of(model)
    assert (
        names(state, space=SimpleNamespace(scheduler=torch.optim.lr_scheduler.StepLR(state.optimizers[0], 1))) == []
    )


def test_modules_are_not_looked_at(recwarn: pytest.WarningsRecorder) -> None:
    """Some of what `torch.distributed` has warns as soon as it is looked at."""
    assert names(state_of(nn.Linear(2, 2)), dist=torch.distributed) == []
    assert not recwarn.list


def test_what_belongs_to_something_tracked_is_not_forgotten() -> None:
    model, head = nn.Linear(2, 2), nn.Linear(2, 2)
    state = state_of(model)
    state.track("both", nn.Sequential(head))
    assert names(state, head=head) == []


def test_a_variable_of_the_calling_script_is_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with caplog.at_level(logging.WARNING, "malletrain.elastic"):
        Session(model, optimizer, torch.utils.data.TensorDataset(torch.zeros(4, 2)), batch_size=2).join()
    assert "s.track(scheduler=scheduler)" in caplog.text
    del scheduler


def averaged(model: nn.Module, kind: str) -> Any:
    if kind == "module":
        return copy.deepcopy(model).requires_grad_(False)
    values = [each.detach().clone() for each in model.parameters()]
    return values if kind == "list" else dict(zip("ab", values, strict=True))


def tensors_of(average: Any) -> list[torch.Tensor]:
    if isinstance(average, nn.Module):
        return list(average.parameters())
    return list(average.values()) if isinstance(average, dict) else average


@pytest.mark.parametrize("kind", ["module", "list", "dict"])
def test_a_copy_of_the_model_that_changes_is_an_error(kind: str) -> None:
    model = nn.Linear(2, 3)
    watch, average = CopyWatch(state_of(model)), averaged(model, kind)
    watch.look()
    watch.look()
    tensors_of(average)[0].mul_(0.9)
    with pytest.raises(ElasticError, match="average is a copy of the model that training changes"):
        watch.look()


def test_a_copy_that_only_a_closure_has_is_called_by_its_own_name() -> None:
    model = nn.Linear(2, 3)

    def distillation() -> Any:
        teacher = averaged(model, "module")
        return lambda x: teacher(x)

    watch, loss_of = CopyWatch(state_of(model)), distillation()
    watch.look()
    watch.look()
    tensors_of(loss_of.__closure__[0].cell_contents)[0].mul_(0.9)
    said = r"^teacher \(in loss_of\) is a copy of the model that training changes.* s\.track\(average=teacher\) if"
    with pytest.raises(ElasticError, match=said):
        watch.look()


@pytest.mark.parametrize("kind", ["arrays", "flat", "flat array"])
def test_an_average_outside_of_tensors_of_the_models_shapes_is_an_error(kind: str) -> None:
    model = nn.Linear(2, 3)
    watch = CopyWatch(state_of(model))
    flat = parameters_to_vector(model.parameters()).detach().clone()
    average: Any = flat if kind == "flat" else flat.numpy()
    if kind == "arrays":
        average = {name: each.detach().numpy().copy() for name, each in model.named_parameters()}
    watch.look()
    watch.look()
    if kind == "arrays":
        average["bias"] *= 0.9
    else:
        average *= 0.9
    with pytest.raises(ElasticError, match=r"(average|flat) is a copy of the model that training changes"):
        watch.look()


def test_a_flat_average_that_each_step_makes_anew_is_an_error() -> None:
    model = nn.Linear(2, 3)
    watch = CopyWatch(state_of(model))
    average = parameters_to_vector(model.parameters()).detach()
    s = SimpleNamespace(batches=lambda: range(3))
    with pytest.raises(ElasticError, match="average is a copy of the model that training changes"):
        for _ in s.batches():
            watch.look()
            average = 0.9 * average + 0.1 * parameters_to_vector(model.parameters()).detach()


def test_gradients_in_one_vector_are_no_copy() -> None:
    model = nn.Linear(2, 3)
    watch = CopyWatch(state_of(model))
    for number in range(4):
        watch.look()
        gradients = torch.full((9,), float(number))
        gradients = gradients * 2
        values = gradients.numpy().copy()
        assert len(values) == 9


def test_a_copy_that_stays_or_is_tracked_or_of_another_shape_is_none() -> None:
    model = nn.Linear(2, 3)
    state = state_of(model)
    tracked, teacher, other = averaged(model, "module"), averaged(model, "module"), [torch.zeros(7), torch.zeros(8)]
    state.track("tracked", tracked)
    watch = CopyWatch(state)
    watch.look()
    for tensor in [*tracked.parameters(), *other]:
        tensor.mul_(0.9)
    watch.look()
    assert not any(parameter.requires_grad for parameter in teacher.parameters())


class OwnAverage:
    """An average with what `Session.track` asks for; `whole`: whether its state has the copy."""

    def __init__(self, model: nn.Module, whole: bool) -> None:
        self.copy: Any = copy.deepcopy(model).requires_grad_(False)
        self.whole = whole

    def state_dict(self) -> dict[str, Any]:
        return {"copy": self.copy.state_dict()} if self.whole else {"updates": 1}

    def load_state_dict(self, state: Any) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("whole", [True, False])
def test_a_copy_that_a_tracked_object_keeps_in_its_state_is_none(whole: bool) -> None:
    model = nn.Linear(2, 3)
    state, average = state_of(model), OwnAverage(model, whole)
    state.track("average", average)
    watch = CopyWatch(state)
    watch.look()
    watch.look()
    average.copy.weight.mul_(0.9)
    if whole:
        watch.look()
    else:
        with pytest.raises(ElasticError, match=r"average\.copy is a copy of the model that training changes"):
            watch.look()


def test_a_tuple_made_anew_in_each_step_is_no_copy() -> None:
    """As torch.autograd.grad returns it: where the last one lay, a new one may lie."""
    model = nn.Linear(2, 3)
    watch = CopyWatch(state_of(model))
    first, second, third, fourth = torch.zeros(3, 2), torch.zeros(3), torch.ones(3, 2), torch.ones(3)
    held: list[Any] = [(first, second)]  # (a function's variables live on in its frame's f_locals)
    watch.look()
    place, others = id(held[0]), []
    held[0] = None
    while id(held[0]) != place:
        held[0] = (third, fourth)
        others.append(held[0])
        assert len(others) < 10000
    del others
    watch.look()
    held[0][0].mul_(0.9)
    with pytest.raises(ElasticError, match=r"held\[0\] is a copy of the model"):
        watch.look()


def test_generators_of_every_kind_are_seen() -> None:
    """The global ones, which each step seeds, are none of the script's own."""
    rng = random.Random(1)
    legacy = np.random.RandomState(1)
    shared = np.random.mtrand._rand
    found = generators([])
    assert {name for name in found if name.split()[0] in ("rng", "legacy", "shared")} == {
        "rng (a random generator)",
        "legacy (a random generator)",
    }
    before = dict(found)
    for drawn in (rng.random(), legacy.randn(), shared.rand()):
        assert drawn is not None
    after = generators([])
    assert [name for name in found if after[name] != before[name]] == [
        "rng (a random generator)",
        "legacy (a random generator)",
    ]
    assert not any(name.startswith("legacy") for name in generators([legacy]))


def test_a_batch_that_has_the_models_shapes_is_no_copy() -> None:
    model = torch.nn.Linear(4, 8)
    watch = CopyWatch(state_of(model))
    batch = [torch.zeros(8, 4), torch.zeros(8)]
    watch.look(batch)
    batch[:] = [torch.ones(8, 4), torch.ones(8)]  # a new list in the place of the last one, say
    watch.look(batch)
    watch.look()
    batch[0] = torch.zeros(8, 4)
    with pytest.raises(ElasticError, match="batch is a copy"):
        watch.look()
