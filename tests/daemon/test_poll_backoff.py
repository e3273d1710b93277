"""How often the light look may be taken."""

from __future__ import annotations

import pytest

from malletrain.daemon.poll_backoff import AWAY_REST_S, OUTLIER_REST_S, REST, SOON_S, PollBackoff


class Slurm:
    def __init__(self) -> None:
        self.time = 100.0

    def look(self, seconds: float) -> str:
        self.time += seconds
        return "seen"


def test_the_first_look_waits_for_nothing_and_each_rests_as_long_as_it_took() -> None:
    slurm = Slurm()
    pace = PollBackoff(lambda: slurm.time)
    assert pace.may_look()
    assert pace.timed(lambda: slurm.look(0.5)) == "seen"
    assert not pace.may_look()
    assert pace.rest_s == pytest.approx(0.5 * REST)
    slurm.time += 0.5 * REST
    assert pace.may_look()


def test_after_a_find_the_next_look_is_soon_but_not_before_its_rest() -> None:
    slurm = Slurm()
    pace = PollBackoff(lambda: slurm.time)
    pace.timed(lambda: slurm.look(0.001))
    assert pace.soon_s == SOON_S
    pace.timed(lambda: slurm.look(1.0))
    assert pace.soon_s == pytest.approx(REST)


def test_after_a_look_without_an_answer_the_next_comes_soon() -> None:
    """Slurm's client waits ten seconds for a slurmctld that is away: that says nothing of its load."""
    slurm = Slurm()
    pace = PollBackoff(lambda: slurm.time)

    def fail() -> None:
        slurm.look(3.0)
        raise TimeoutError

    with pytest.raises(TimeoutError):
        pace.timed(fail)
    assert not pace.may_look()
    assert pace.rest_s == AWAY_REST_S
    pace.timed(lambda: slurm.look(11.0) and None)
    assert pace.rest_s == AWAY_REST_S
    pace.timed(lambda: slurm.look(11.0))
    assert pace.rest_s == AWAY_REST_S, "the first answer was waited for"
    for _ in range(6):
        pace.timed(lambda: slurm.look(11.0))
    assert pace.rest_s == pytest.approx(11.0 * REST), "now it is slow"


def test_one_slow_look_is_no_slow_slurm() -> None:
    slurm = Slurm()
    pace = PollBackoff(lambda: slurm.time)
    pace.timed(lambda: slurm.look(0.01))
    pace.timed(lambda: slurm.look(8.0))
    assert pace.rest_s == OUTLIER_REST_S
    pace.timed(lambda: slurm.look(0.01))
    assert pace.rest_s == pytest.approx(0.01 * REST)
    for rest_s in (OUTLIER_REST_S, 2 * OUTLIER_REST_S, 4 * OUTLIER_REST_S, 8.0 * REST, 8.0 * REST):
        pace.timed(lambda: slurm.look(8.0))
        assert pace.rest_s == pytest.approx(rest_s)


def test_a_rest_has_a_bound() -> None:
    slurm = Slurm()
    pace = PollBackoff(lambda: slurm.time, longest_s=120.0)
    for _ in range(6):
        pace.timed(lambda: slurm.look(30.0))
    assert pace.rest_s == 120.0
