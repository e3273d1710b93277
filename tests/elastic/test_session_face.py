"""What a researcher holds stays small, and what it was before is read for one release."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from malletrain import elastic
from malletrain.elastic.old_names import NEW_NAMES
from malletrain.elastic.session import Info

MOST_ARGUMENTS, MOST_METHODS, MOST_PROPERTIES = 12, 10, 6
DATA = TensorDataset(torch.arange(24.0).reshape(8, 3), torch.ones(8, 1))


def session(**more: Any) -> elastic.Session:
    model = nn.Linear(3, 1)
    return elastic.Session(model, torch.optim.SGD(model.parameters(), lr=0.01), DATA, batch_size=4, **more)


def test_what_a_session_takes_and_has_is_counted() -> None:
    arguments = [
        each
        for each in inspect.signature(elastic.Session).parameters.values()
        if each.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    public = {name: value for name, value in vars(elastic.Session).items() if not name.startswith("_")}
    properties = [name for name, value in public.items() if isinstance(value, property)]
    methods = [name for name, value in public.items() if callable(value)]
    assert len(arguments) <= MOST_ARGUMENTS, arguments
    assert len(methods) <= MOST_METHODS, methods
    assert len(properties) <= MOST_PROPERTIES, properties
    assert len(public) == len(properties) + len(methods)
    assert not [name for name in vars(session()) if not name.startswith("_")], "attributes of its own"


OLD_NAMES = {*NEW_NAMES, *(name for name in vars(Info) if not name.startswith("_"))}


@pytest.mark.parametrize("name", sorted(OLD_NAMES))
def test_an_old_name_is_read_with_the_new_one_said(name: str) -> None:
    s = session()
    with pytest.warns(DeprecationWarning, match=rf"^s\.{name} will be gone in the next release; say ") as said:
        value = getattr(s, name)
    assert said[0].filename == __file__
    if name not in NEW_NAMES:
        assert value == getattr(s.info, name)
    else:
        assert callable(value)


def test_an_old_argument_is_read_with_the_new_one_said() -> None:
    with pytest.warns(DeprecationWarning, match=r"order=...\) will be gone .*elastic.Options\(order=...\)") as said:
        s = session(order=lambda _: [7, 6, 5, 4, 3, 2, 1, 0], options=elastic.Options(must_be_finite=False))
    assert said[0].filename == __file__
    for x, y in s.batches():
        with s.step():
            (s._runtime.model(x) - y).mean().backward()
        assert x[0].tolist() == [21.0, 22.0, 23.0]
        break
    assert not s._runtime.reducer.must_be_finite


def test_a_name_that_never_was_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'barrier'"):
        session().barrier  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(elastic.ElasticError, match=r"Session\(..., batchsize=...\): there is no such argument"):
        session(batchsize=4)


def test_the_callbacks_of_options_are_called() -> None:
    seen: list[str] = []
    s = session(options=elastic.Options(when_main=lambda: seen.append("main")))
    epochs = s.epochs(1)
    assert seen == ["main"], "the world is entered as epochs() is called"
    with pytest.raises(elastic.ElasticError, match="before the first epoch"):
        s.track(more=torch.amp.GradScaler("cpu"))
    assert list(epochs) == [0]


def test_a_tensor_agrees_by_its_sum() -> None:
    s = session()
    assert s.agree(torch.ones(2), "sum").tolist() == [1.0, 1.0]
    assert s.agree(torch.tensor(3.0)) == 3.0
    with pytest.raises(elastic.ElasticError, match="makes the sum, not 'max'"):
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
