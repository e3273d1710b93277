"""What a researcher holds stays small, and what it was before is read for one release; the session says in which
sense a resized run is a static one."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from malletrain import elastic
from malletrain.elastic.equality import Equality, judge
from malletrain.elastic.gradients.sync_batchnorm import SyncBatchNorm
from malletrain.elastic.old_names import NEW_NAMES
from malletrain.elastic.session import Info

MOST_ARGUMENTS, MOST_METHODS, MOST_PROPERTIES = 12, 10, 6
DATA = TensorDataset(torch.arange(24.0).reshape(8, 3), torch.ones(8, 1))


def session(model: nn.Module | None = None, **more: Any) -> elastic.Session:
    model = model or nn.Linear(3, 1)
    return elastic.Session(model, torch.optim.SGD(model.parameters(), lr=0.01), DATA, batch_size=4, **more)


def test_what_a_session_takes_and_has_is_counted() -> None:
    arguments = [each for each in inspect.signature(elastic.Session).parameters if each != "old"]
    public = {name: value for name, value in vars(elastic.Session).items() if not name.startswith("_")}
    methods = [name for name, value in public.items() if callable(value)]
    properties = [name for name, value in public.items() if isinstance(value, property)]
    assert len(arguments) <= MOST_ARGUMENTS, arguments
    assert len(methods) <= MOST_METHODS, methods
    assert len(properties) == len(public) - len(methods) <= MOST_PROPERTIES, properties
    assert not [name for name in vars(session()) if not name.startswith("_")], "attributes of its own"


OLD_NAMES = {*NEW_NAMES, *(name for name in vars(Info) if not name.startswith("_"))}


@pytest.mark.parametrize("name", sorted(OLD_NAMES))
def test_an_old_name_is_read_with_the_new_one_said(name: str) -> None:
    s = session()
    with pytest.warns(DeprecationWarning, match=rf"^s\.{name} .*gone .*; say ") as said:
        value = getattr(s, name)
    assert said[0].filename == __file__
    assert callable(value) if name in NEW_NAMES else value == getattr(s.info, name)


def test_an_old_argument_is_read_with_the_new_one_said() -> None:
    with pytest.warns(DeprecationWarning, match=r"order=...\) .*gone .*elastic.Options\(order=...\)") as said:
        s = session(order=lambda _: [7, 6, 5, 4, 3, 2, 1, 0], options=elastic.Options(must_be_finite=False))
    assert said[0].filename == __file__
    for x, y in s.batches():
        (s._runtime.model(x) - y).mean().backward()
        assert x[0].tolist() == [21.0, 22.0, 23.0]
        break
    assert not s._runtime.reducer.must_be_finite


def test_a_name_that_never_was_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'barrier'"):
        session().barrier  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(elastic.ElasticError, match=r"Session\(..., batchsize=...\): .*no such"):
        session(batchsize=4)


def test_the_callbacks_of_options_are_called() -> None:
    seen: list[str] = []
    s = session(options=elastic.Options(when_main=lambda: seen.append("main")))
    epochs = s.epochs(1)
    assert seen == ["main"], "the world is entered as epochs() is called"
    with pytest.raises(elastic.ElasticError, match="first epoch"):
        s.track(more=torch.amp.GradScaler("cpu"))
    assert list(epochs) == [0]


def test_a_tensor_agrees_by_its_sum() -> None:
    s = session()
    assert s.agree(torch.ones(2), "sum").tolist() == [1.0, 1.0]
    assert s.agree(torch.tensor(3.0)) == 3.0
    with pytest.raises(elastic.ElasticError, match="not 'max'"):
        s.agree(torch.ones(2), "max")


def test_the_reference_page_names_all_of_it() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "session.md").read_text()
    words = set(re.findall(r"\w+", "".join(re.findall(r"`[^`]+`", page))))
    names = {name for kind in (elastic.Session, Info) for name in vars(kind) if not name.startswith("_")}
    names |= {each.name for each in dataclasses.fields(elastic.Options)}
    names |= {*inspect.signature(elastic.Session).parameters} - {"old"}
    assert names <= words, names - words
    old = [name for name in OLD_NAMES if re.search(rf"\bs\.{name}\b", page)]
    assert not old


def model_with(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), *layers, nn.Linear(4, 2))


def judged(model: nn.Module, **more: bool) -> Equality:
    given: dict[str, Any] = {"shards": False, "fixed_batch": True, "additive": True, **more}
    return judge(model, **given).equality


#: These depend on the split, those are of each sample alone.
OF_THE_SPLIT = [
    nn.BatchNorm1d(4),
    nn.Dropout(0.1),
    nn.AlphaDropout(0.2),
    nn.RReLU(),
    nn.InstanceNorm1d(4, track_running_stats=True),
    nn.LSTM(4, 4, 2, dropout=0.5),
    nn.MultiheadAttention(4, 2, dropout=0.1),
    nn.SyncBatchNorm(4),
]
OF_SAMPLES = [nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.Dropout(0.0), nn.InstanceNorm1d(4), nn.LSTM(4, 4), nn.ReLU()]

each_layer = functools.partial(pytest.mark.parametrize, "layer", ids=lambda layer: type(layer).__name__)


@each_layer(OF_THE_SPLIT)
def test_layers_that_depend_on_the_split_are_named(layer: nn.Module) -> None:
    found = judge(model_with(layer), shards=False, fixed_batch=True, additive=True)
    assert found.equality is Equality.STATISTICAL
    assert type(layer).__name__ in str(found) and "Where equality matters" in str(found)
    assert judged(model_with(layer), shards=True) is Equality.VIRTUAL_SHARDS


@each_layer(OF_SAMPLES)
def test_layers_of_each_sample_alone_are_additive(layer: nn.Module) -> None:
    assert judged(model_with(layer)) is Equality.ADDITIVE


def test_what_else_makes_it_statistical() -> None:
    assert judged(model_with(), additive=False) is Equality.STATISTICAL
    assert judged(model_with(), additive=False, shards=True) is Equality.VIRTUAL_SHARDS
    assert judged(model_with(), fixed_batch=False, shards=True) is Equality.STATISTICAL


def test_converting_keeps_parameters_buffers_and_names() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sequential(nn.BatchNorm2d(8, eps=1e-3), nn.Dropout(0.5)))
    before, keys = list(model.parameters()), list(model.state_dict())
    converted = elastic.sync_batchnorm(model)
    assert [a is b for a, b in zip(before, converted.parameters(), strict=True)] == [True] * len(before)
    assert list(converted.state_dict()) == keys
    layer = converted.get_submodule("1.0")
    assert isinstance(layer, SyncBatchNorm) and layer.eps == 1e-3
    assert judged(converted) is Equality.STATISTICAL, "dropout is still there"
    assert judged(nn.Sequential(converted.get_submodule("0"), layer)) is Equality.SYNC_BATCHNORM
    assert elastic.sync_batchnorm(nn.BatchNorm1d(4)).training


def test_alone_it_is_batchnorm() -> None:
    torch.manual_seed(0)
    plain = nn.BatchNorm1d(5)
    synced = elastic.sync_batchnorm(nn.BatchNorm1d(5))
    x = torch.randn(7, 5)
    for training in (True, False):
        torch.testing.assert_close(synced.train(training)(x), plain.train(training)(x))
        torch.testing.assert_close(synced.state_dict(), plain.state_dict())


def test_the_session_says_when_it_is_weak_and_refuses_two_ways_to_be_strong() -> None:
    found = session(model_with(nn.BatchNorm1d(4))).info.equality
    assert found.startswith("statistical") and "BatchNorm1d" in found
    with pytest.raises(elastic.ElasticError, match="one of the two"):
        session(elastic.sync_batchnorm(model_with(nn.BatchNorm1d(4))), virtual_shards=2)
