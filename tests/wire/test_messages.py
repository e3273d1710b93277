"""What workers and the daemon say: nothing but what is meant gets through, and that unchanged."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.wire import messages
from malletrain.wire.codec import one_line, steers_nothing
from malletrain.wire.messages import MessageError, message_of, parse, to_json

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
text = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=40).map(steers_nothing)
number = st.integers(0, 2**40)
finite = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12)
said = st.one_of(
    st.builds(messages.Warm, text, st.dictionaries(text, finite, max_size=4)),
    st.builds(messages.CheckedIn, number, number, number, st.booleans(), finite),
    st.builds(messages.Fault, number, number, text, text),
    st.builds(messages.Switched, number, number, number, finite, st.booleans()),
    st.builds(messages.Leaving, text),
    st.builds(messages.Left, number, number, st.none() | text),
    st.builds(messages.Samples, number, number, number, finite, number, number, st.booleans(), st.just({})),
    st.builds(messages.Metric, text, finite, number),
    st.builds(messages.Finished, st.dictionaries(text, finite | text | st.none(), max_size=4)),
    st.builds(messages.Failed, number, text),
    st.builds(messages.Exited, st.integers(-64, 255)),
    st.builds(messages.ToppedUp, number, number),
)


@given(said)
def test_what_is_said_arrives(message: messages.Message) -> None:
    assert message_of(json.loads(json.dumps(to_json(message)))) == message


@given(anything)
def test_nonsense_is_refused_and_nothing_else_happens(raw: object) -> None:
    for kind in (messages.Hello, messages.Welcome, messages.Directive, messages.Plan):
        try:
            parse(kind, raw)
        except MessageError as error:
            assert str(error)
    try:
        message_of(raw)
    except MessageError as error:
        assert str(error)


@given(st.sampled_from(sorted(messages._TYPES)), st.dictionaries(st.text(max_size=12), anything, max_size=5))
def test_a_right_type_with_wrong_fields_is_refused_by_name(kind: str, fields: dict[str, object]) -> None:
    try:
        message_of({**fields, "type": kind})
    except MessageError as error:
        assert str(error)


def test_a_directive_arrives() -> None:
    plan = messages.Plan(7, (messages.Seat("1_0.0", "h:1"), messages.Seat("1_1.0", "h:2")), "h:1", "joining", True)
    directive = messages.Directive(3, plan, 4, "yield", None, 8)
    assert parse(messages.Directive, json.loads(json.dumps(to_json(directive)))) == directive


def test_a_newer_daemon_may_tell_more() -> None:
    """Workers train on while it is upgraded."""
    plan = messages.Plan(7, (messages.Seat("1_0.0", "h:1"),), "h:1", "joining")
    raw = to_json(messages.Directive(3, plan))
    raw["plan"]["new"] = raw["plan"]["members"][0]["new"] = raw["new"] = [1]
    assert parse(messages.Directive, json.loads(json.dumps(raw))) == messages.Directive(3, plan)


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.booleans())
def test_a_plan_voids_what_is_older_than_it_says(generation: int, before: int, other: int, urgent: bool) -> None:
    plan = messages.Plan(generation, urgent=urgent, void_before=before)
    assert plan.voids(other) == (other < before or (urgent and other < generation))


@pytest.mark.parametrize(("raw", "said"), [
    ({"type": "metric", "name": "a", "value": 1}, "samples: missing"),
    ({"type": "metric", "name": "a", "value": float("nan"), "samples": 1}, "value: "),
    ({"type": "metric", "name": "a" * 5000, "value": 1, "samples": 1}, "at most 4000"),
    ({"type": "metric", "name": "a", "value": 1, "samples": True}, "samples: "),
    ({"type": "nothing"}, "checkdone, checkedin"),
    ([], "an object"),
    ({"type": "finished", "result": {"a": [[[[1]]]]}}, "three levels"),
])  # fmt: skip
def test_faults_are_named(raw: object, said: str) -> None:
    with pytest.raises(MessageError) as caught:
        message_of(raw)
    assert said in str(caught.value)


def test_fields_of_a_newer_worker_are_passed_over_and_new_ones_are_sent_when_they_say_something() -> None:
    """A refused message takes the whole report with it, so that a job's end would never be heard."""
    assert message_of({"type": "left", "generation": 1, "step": 1, "other": [1]}) == messages.Left(1, 1)
    wanted = messages.Directive(1)
    assert "fixed" not in messages.to_json(wanted)
    assert messages.to_json(dataclasses.replace(wanted, fixed=True))["fixed"] is True


def test_one_line_has_blanks_for_what_does_not_print() -> None:
    assert one_line("a\r\nSubject: b\x1b[31m", 100) == "a  Subject: b [31m"
    assert one_line("abc\n", 3) == "abc"
