"""How to replay."""

from __future__ import annotations

import math
from dataclasses import dataclass

from malletrain.decide.rules import AccountBudget, Rules
from malletrain.replay.policy_inputs import NodeClass

#: Rules that limit neither pilots nor waits, and keep nothing idle.
UNLIMITED = Rules(max_pilots=10**9, max_pilot_s=math.inf, max_top_up=0, max_failures=10**9, max_wait_s=0.0)


@dataclass(frozen=True, slots=True)
class Options:
    """How to replay. Seconds.

    tick_s: 0: every event is decided at once, else at the next multiple, as a daemon that polls.
    by_loop: by the daemon's own loop over simulated workers (`malletrain.replay.loop_engine`), some 20 times
        slower; it serves policies by their names alone.
    budgets: node-seconds of accounts for each day, week or month; fast engine only.
    classes: of nodes, where jobs are to be sized by class; fast engine only.
    rules: the daemon's, of which those on pilots, the reserve, and turns of jobs bind.
    daemon: what people call the daemon that is replayed; empty: the ideal machine, which looks at no clock.
    """

    tick_s: float = 0.0
    by_loop: bool = False
    budgets: tuple[AccountBudget, ...] = ()
    classes: tuple[NodeClass, ...] = ()
    rules: Rules = UNLIMITED
    daemon: str = ""

    @staticmethod
    def of_daemon(rules: Rules, tick_s: float, name: str = "the daemon") -> Options:
        """As a daemon with these rules that looks every `tick_s`."""
        return Options(tick_s=tick_s, rules=rules, daemon=name)
