"""Rows there and back through JSON, and what is no row."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.wire.rows import (
    BadRow,
    DecisionRow,
    EventRow,
    JobRow,
    NodeRow,
    PilotRow,
    PoolRow,
    Row,
    StatusRow,
    UsageRow,
)
from tests.messages import naming

KINDS = [PilotRow, JobRow, NodeRow, PoolRow, EventRow, DecisionRow, StatusRow, UsageRow]

_number = st.floats(allow_nan=False, allow_infinity=False)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | _number | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
st.register_type_strategy(float, _number)
_objects = st.dictionaries(st.text(max_size=5), _json, max_size=3)


def rows_of(kind: type[Row]) -> st.SearchStrategy[Row]:
    given_fields: dict[str, Any] = {}
    for name in ("metrics", "result", "data", "sizes"):
        if name in kind.__dataclass_fields__ and kind is not JobRow:
            given_fields[name] = _objects
    if kind is JobRow:
        given_fields = {"metrics": _objects, "result": _objects, "pilots": st.tuples() | st.tuples(rows_of(PilotRow))}
    if kind is StatusRow:
        given_fields = {
            "pool": rows_of(PoolRow),
            "nodes": st.lists(rows_of(NodeRow), max_size=2).map(tuple),
            "jobs": st.lists(rows_of(JobRow), max_size=2).map(tuple),
            "decision": rows_of(DecisionRow),
        }
    return st.builds(kind, **given_fields)


@given(row=st.sampled_from(KINDS).flatmap(rows_of))
def test_a_row_comes_back_as_it_went(row: Row) -> None:
    assert type(row).from_json(json.loads(json.dumps(row.to_json()))) == row


@given(kind=st.sampled_from(KINDS), value=_json)
def test_anything_else_is_a_bad_row_or_a_row(kind: type[Row], value: Any) -> None:
    try:
        row = kind.from_json(value)
    except BadRow as bad:
        assert kind.__name__ in str(bad)
    else:
        assert isinstance(row, kind)


@given(row=rows_of(JobRow), key=st.sampled_from(list(JobRow.__dataclass_fields__)), value=_json)
def test_a_key_of_another_type_is_named(row: Row, key: str, value: Any) -> None:
    body = row.to_json() | {key: value}
    try:
        changed = JobRow.from_json(body)
    except BadRow as bad:
        assert f".{key}" in str(bad)
    else:
        kept = json.loads(json.dumps(changed.to_json()))[key]
        assert kept == value or kept == int(value)


def test_newer_and_older_daemons_are_understood() -> None:
    row = NodeRow.from_json({"name": "n1", "state": "idle", "colour_of_2030": "green"})
    assert row == NodeRow("n1", "idle")
    with pytest.raises(BadRow, match=naming("NodeRow.state:", "releases")):
        NodeRow.from_json({"name": "n1"})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "NodeRow: "),
        ({"name": 1, "state": "idle"}, "NodeRow.name: "),
        ({"name": "n1", "state": "idle", "job": True}, "not True"),
        ({"name": "n1", "state": "idle", "until": "soon"}, "not 'soon'"),
    ],
)
def test_the_fault_is_named(body: Any, words: str) -> None:
    with pytest.raises(BadRow) as bad:
        NodeRow.from_json(body)
    assert words in str(bad.value)


def test_what_has_no_place_in_json_is_refused() -> None:
    with pytest.raises(TypeError):
        EventRow(1, 1.0, "pool", data={"x": object()}).to_json()  # type: ignore[dict-item]
