"""Starts, and the delay of main jobs as modelled."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.errors import InvalidInput
from malletrain.replay import parse_policy, replay
from malletrain.replay.scoring.figures import busiest_minute
from malletrain.replay.scoring.main_delay import Reaction, modelled, parse_reaction
from malletrain.replay.traces.trace import BUSY, IDLE
from tests.replay.small import job, trace

CONFIG = """Configuration data as of 2026-11-20T10:00:00
Epilog                  = (null)
SchedulerParameters     = bf_interval=60,bf_window=1440
SLURM_VERSION           = 22.05.8
"""
SDIAG = """sdiag output at Fri Nov 20 10:00:00 2026 (1795168800)
Backfilling stats
	Last cycle when: Fri Nov 20 09:59:30 2026 (1795168770)
	Last cycle: 4000000
"""


@given(st.lists(st.floats(0.0, 1e4), max_size=60))
def test_the_busiest_minute_is_that_with_most_starts(started: list[float]) -> None:
    assert busiest_minute(np.array(started)) == max(Counter(int(t // 60) for t in started).values(), default=0)


def test_main_starts_that_meet_pilots_are_delayed_by_the_reaction() -> None:
    machine = trace([(0.0, 0, IDLE), (0.0, 1, IDLE), (50.0, 0, BUSY), (70.0, 1, BUSY)], 2, 100.0)
    reaction = Reaction(look_s=1.0, exit_s=2.0, epilog_s=3.0, cycle_s=60.0)
    answer = replay(machine, [job(most=1)], [parse_policy("auto", None)], processes=1, reaction=reaction)
    delay = answer.scores["auto"].main_delay
    assert delay is not None
    assert (delay.starts, delay.starts_on_pilots) == (2, 2)  # the job moves to the node that is left
    assert (delay.mean_s, delay.worst_s) == (6.0, 66.0)
    assert delay.cycle_share == pytest.approx(0.1)
    assert modelled(10, 0, reaction).worst_s == 0.0


def test_the_reaction_comes_from_the_sites_own_words() -> None:
    both = parse_reaction(CONFIG + SDIAG + "epilog_s=10\n", "site.txt")
    assert (both.cycle_s, both.epilog_s) == (64.0, 10.0)
    assert both.source == "scontrol show config, sdiag"
    assert "unknown length" in parse_reaction(CONFIG.replace("(null)", "/etc/epilog"), "site.txt").source
    for rubbish in ("", "hello", CONFIG + "epilog_s=long\n"):
        with pytest.raises(InvalidInput, match=r"site\.txt"):
            parse_reaction(rubbish, "site.txt")


def test_what_the_figures_are_of_is_finite() -> None:
    machine = trace([(0.0, 0, IDLE)], 1, 100.0)
    answer = replay(machine, [job(at=500.0)], [parse_policy("auto", None)], processes=1)
    assert answer.scores["auto"].mean_wait_s is None
