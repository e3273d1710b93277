"""What may be asked of the actuator: exactly its five verbs, whatever comes over the socket."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.decision import CancelTasks, CutLimit, Outcome, RecyclePilot, StartPilot, Stray
from malletrain.domain.errors import InvalidInput
from malletrain.slurm.actuator.protocol import (
    ActuatorReply,
    ActuatorRequest,
    read_answer,
    read_request,
    write_reply,
    write_request,
)

MOST_S = 3600.0

jobs = st.integers(0, 2**40)
tasks = st.builds("{}_{}".format, st.integers(1, 10**9), st.integers(0, 10**6))
names = st.one_of(tasks, st.builds("{}+{}".format, tasks, st.integers(1, 300)))
nodes = st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True)
starts = st.lists(
    st.builds(StartPilot, jobs, names, nodes, st.floats(0, MOST_S), st.just("")), min_size=1, max_size=9
)
recycles = st.lists(st.builds(RecyclePilot, jobs, names, nodes, st.just("")), min_size=1, max_size=9)
cuts = st.builds(CutLimit, jobs, names, nodes, st.floats(0, 2e9), st.just("")).map(lambda cut: [cut])
cancels = st.builds(CancelTasks, jobs, st.lists(names, max_size=9).map(tuple), st.just("")).map(lambda c: [c])
plain = st.one_of(st.integers(1, 10**9).map(str), tasks, st.builds("{}+{}".format, st.integers(1, 10**9), st.just(1)))
strays = st.lists(st.builds(Stray, plain, nodes), min_size=1, max_size=9)


@given(st.one_of(starts, recycles, cuts, cancels, strays), st.integers(0, 2**31))
def test_an_order_reads_as_it_was_written(actions: list[Any], uid: int) -> None:
    owners = {a.job_id: uid for a in actions if isinstance(a, StartPilot)}
    request = ActuatorRequest(tuple(actions), owners)
    assert read_request(write_request(request), MOST_S) == request


@given(
    st.lists(
        st.builds(Outcome, st.booleans(), st.text(max_size=50), unfit=st.booleans(), refused=st.booleans()),
        max_size=5,
    ),
    st.text(max_size=30),
    st.text(max_size=30),
)
def test_an_answer_reads_as_it_was_written(outcomes: list[Outcome], unavailable: str, refused: str) -> None:
    answer = ActuatorReply(tuple(outcomes), unavailable, refused)
    assert read_answer(write_reply(answer)) == answer


START = {"job": 1, "reason": "", "pilot": "7_0", "node": "n1", "limit_s": 600, "uid": 1001}


@pytest.mark.parametrize(
    "change",
    [
        {"pilot": "7"}, {"pilot": "7_0 JobId=8"}, {"pilot": "7_0,8_0"}, {"pilot": "-1_0"}, {"pilot": 7},
        {"pilot": "7_0+0"}, {"pilot": "7_0+"}, {"pilot": "7_0+1+2"}, {"pilot": "7+1"},
        {"node": "n1 TimeLimit=9999"}, {"node": ""}, {"node": "n[1-9]"}, {"node": None},
        {"limit_s": 7200}, {"limit_s": -60}, {"limit_s": float("nan")}, {"limit_s": True}, {"limit_s": "600"},
        {"reason": None}, {"reason": "x" * 501},
        {"uid": -1}, {"uid": 0.5}, {"uid": None}, {"job": "1"}, {"partition": "batch"},
    ],
)  # fmt: skip
def test_a_field_that_is_not_as_it_must_be_is_refused(change: dict[str, object]) -> None:
    line = json.dumps({"verb": "start", "actions": [{**START, **change}]}).encode()
    with pytest.raises(InvalidInput):
        read_request(line, MOST_S)


@pytest.mark.parametrize(
    "body",
    [
        {"verb": "update", "actions": [START]}, {"verb": "start", "actions": []}, {"verb": "start"}, [], None, 3,
        {"verb": "start", "actions": [START], "as": "root"}, {"verb": "cut", "actions": [START, START]},
        {"verb": "start", "actions": [START] * 5001},
        {"verb": "cancel", "actions": [{"job": 1, "reason": "", "pilots": ["x"]}]},
        {"verb": ["start"], "actions": [START]},
    ],
)  # fmt: skip
def test_what_is_no_order_is_refused(body: object) -> None:
    with pytest.raises(InvalidInput):
        read_request(json.dumps(body).encode(), MOST_S)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=10,
)


@given(st.one_of(st.binary(max_size=200), json_values.map(lambda value: json.dumps(value).encode())))
def test_whatever_comes_is_an_order_or_is_refused(line: bytes) -> None:
    for read in (lambda: read_request(line, MOST_S), lambda: read_answer(line)):
        try:
            read()
        except InvalidInput:
            continue
        assert b"{" in line
