"""The session says in which sense a resized run is a static one, and warns where that is weak."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from malletrain import elastic
from malletrain.elastic.equality import Equality, judge
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients.sync_batchnorm import SyncBatchNorm


def model_with(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), *layers, nn.Linear(4, 2))


def judged(model: nn.Module, **more: bool) -> Equality:
    given: dict[str, Any] = {"shards": False, "fixed_batch": True, "additive": True, **more}
    return judge(model, **given).equality


@pytest.mark.parametrize(
    "layers",
    [(nn.BatchNorm1d(4),), (nn.Dropout(0.1),), (nn.AlphaDropout(0.2),), (nn.RReLU(),),
     (nn.InstanceNorm1d(4, track_running_stats=True),), (nn.LSTM(4, 4, 2, dropout=0.5),),
     (nn.MultiheadAttention(4, 2, dropout=0.1),), (nn.SyncBatchNorm(4),)],
    ids=lambda layers: type(layers[0]).__name__,
)  # fmt: skip
def test_layers_that_depend_on_the_split_are_named(layers: tuple[nn.Module, ...]) -> None:
    found = judge(model_with(*layers), shards=False, fixed_batch=True, additive=True)
    assert found.equality is Equality.STATISTICAL
    assert type(layers[0]).__name__ in str(found) and "Where equality matters" in str(found)
    assert judged(model_with(*layers), shards=True) is Equality.VIRTUAL_SHARDS


@pytest.mark.parametrize(
    "layer",
    [nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.Dropout(0.0), nn.InstanceNorm1d(4), nn.LSTM(4, 4), nn.ReLU()],
    ids=lambda layer: type(layer).__name__,
)
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
    torch.testing.assert_close(synced(x), plain(x))
    torch.testing.assert_close(synced.state_dict(), plain.state_dict())
    synced.eval()
    plain.eval()
    torch.testing.assert_close(synced(x), plain(x))


def test_the_session_warns_when_it_is_weak_and_not_when_it_is_strong(caplog: pytest.LogCaptureFixture) -> None:
    data = TensorDataset(torch.randn(8, 4), torch.zeros(8, dtype=torch.int64))
    model = model_with(nn.BatchNorm1d(4))
    session = elastic.Session(model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=4)
    assert session.info.equality.startswith("statistical") and "BatchNorm1d" in session.info.equality
    with pytest.raises(ElasticError, match="one of the two"):
        model = elastic.sync_batchnorm(model_with(nn.BatchNorm1d(4)))
        elastic.Session(model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=4, virtual_shards=2)
