"""A worker that makes no step says where its script is, once for each place."""

from __future__ import annotations

from malletrain.wire.messages import Stuck
from tests.loop.stage import A, B, Stage
from tests.messages import says

PLACE = "train.py:57 in load: `sock.recv(9)`"


def test_each_place_is_said_once_and_that_it_goes_on(three: Stage) -> None:
    for place in (PLACE, PLACE, "", ""):
        three.members.report(B, Stuck(place))
    three.members.report(A, Stuck(""))
    said = [event.reason for event in three.seen("worker_stuck")]
    assert len(said) == 2 and says(said[0], B, PLACE) and said[1] == "goes on"


def test_so_does_a_newcomer_whose_script_has_no_session_yet(three: Stage) -> None:
    three.members.report(three.hello(3), Stuck(PLACE))
    assert len(three.seen("worker_stuck")) == 1


def test_a_script_that_is_at_ever_new_places_does_not_fill_the_journal(three: Stage) -> None:
    for number in range(1000):
        three.members.report(B, Stuck(f"train.py:{number} in load"))
    assert len(three.seen("worker_stuck")) == 100


def test_that_the_last_of_them_goes_on_is_said_all_the_same(three: Stage) -> None:
    for number in range(1000):
        three.members.report(B, Stuck(f"train.py:{number} in load"))
    three.members.report(B, Stuck(""))
    three.members.report(B, Stuck(""))
    assert [event.reason for event in three.seen("worker_stuck")][100:] == ["goes on"]
