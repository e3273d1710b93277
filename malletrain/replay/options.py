"""How to replay."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from enum import StrEnum

from malletrain.decide.rules import AccountBudget, Rules
from malletrain.replay.inputs.node_classes import NodeClass


class NodeOrder(StrEnum):
    """Which free nodes a growing job takes, and which a shrinking one gives up.

    GROUP and LIFE also rearrange: jobs that stand still at this moment anyway take their nodes anew from those that
    they hold together and the free ones, the job that trains most first. Where a node must be activated this would
    cost what it saves, so such jobs keep what they hold.
    """

    NAME = "name"  #: by name; gives up those that started first: what the daemon does
    AGE = "age"  #: the longest idle first, gives up the newest: idle nodes live the longer the older they are
    GROUP = "group"  #: by name, and rearranges: neighbours are taken together, and then stall one job, not several
    LIFE = "life"  #: the one that stays idle longest first, and rearranges: clairvoyant, a bound on placement


class EngineKind(StrEnum):
    """What replays the trace."""

    FAST = "fast"  #: sizes the jobs at every event and integrates in between (`malletrain.replay.engine`)
    LOOP = (
        "loop"  #: the daemon's own loop over simulated workers (`malletrain.replay.loop_engine`), two orders slower
    )


@dataclass(frozen=True, slots=True)
class Options:
    """How to replay. Seconds.

    tick_s: 0: every event is decided at once, else at the next multiple, as a daemon that polls.
    most_jobs: training jobs that are there at once; others wait in order.
    pilot_limit_s: longest time limit of a pilot, at whose end it leaves and its node is free again.
    engine: the loop serves policies by their names and nodes by name alone; `replay` refuses anything else.
    pending_stalls: sizing takes into account how long each job stands still anyway, so that a second change costs
        only what it adds.
    budgets: node-seconds of accounts for each day, week or month; fast engine only.
    classes: of nodes, where jobs are to be sized by class; fast engine only.
    margin_s, min_hole_s: where the queue's plan is known, a pilot ends so long before its node is wanted, and a node
        that is wanted sooner than this is left alone (`malletrain.decide.rules.Rules`).
    rules: those of the daemon that is replayed (`Options.of_daemon`), which people call `daemon`; None: the ideal
        machine, which nothing limits.
    max_pilots, max_starts, max_nodes, leave_lead_s, max_wait_s, turn_s: as in `Rules`. max_starts 0: any number.
    """

    tick_s: float = 0.0
    keep_idle: int = 0
    most_jobs: int = sys.maxsize
    pilot_limit_s: float = math.inf
    engine: EngineKind = EngineKind.FAST
    order: NodeOrder = NodeOrder.NAME
    pending_stalls: bool = False
    margin_s: float = 30.0
    min_hole_s: float = 90.0
    budgets: tuple[AccountBudget, ...] = ()
    classes: tuple[NodeClass, ...] = ()
    rules: Rules | None = None
    daemon: str = ""
    max_pilots: int = sys.maxsize
    max_starts: int = 0
    max_nodes: int = 1
    leave_lead_s: float = 0.0
    max_wait_s: float = 0.0
    turn_s: float = 600.0

    @staticmethod
    def of_daemon(rules: Rules, tick_s: float) -> Options:
        """As a daemon with these rules that looks every `tick_s`."""
        return Options(
            tick_s=tick_s, keep_idle=rules.keep_idle, pilot_limit_s=rules.max_pilot_s, rules=rules,
            margin_s=rules.margin_s,
            min_hole_s=rules.min_hole_s, max_pilots=rules.max_pilots, max_starts=rules.max_starts,
            max_nodes=rules.max_nodes, leave_lead_s=rules.leave_lead_s, max_wait_s=rules.max_wait_s,
            turn_s=rules.turn_s,
        )  # fmt: skip

    @property
    def ideal_machine(self) -> Options:
        """The same without the daemon's limits: every event is decided at once, any number of pilots, no reserve."""
        return Options(most_jobs=self.most_jobs, order=self.order, budgets=self.budgets, classes=self.classes)
