"""Pilots whose leaving can wait do not leave just ahead of a backfill cycle while a main job waits for it.

Slurm takes a node whose job has ended for idle when it chooses nodes for a waiting job, and where its epilog still
runs, puts the job off (`cg_node_bitmap` in src/plugins/sched/backfill/backfill.c). So a job whose nodes were idle
begins a cycle later when another node, which suits it better, completes at that moment; behind a heterogeneous job,
which backfill alone starts, the whole queue does.
"""

from __future__ import annotations

from typing import TypeGuard

from malletrain.decide.rules import Rules
from malletrain.domain.decision import Action, LeaveCause, LeavePilot
from malletrain.domain.snapshot import BackfillPlan

#: Leaves for these can wait: nobody wants the node at once.
CAN_WAIT = frozenset({LeaveCause.RESERVE, LeaveCause.SHRINK, LeaveCause.STRAGGLER})

#: Seconds that a worker takes to leave, and sdiag's whole seconds.
LEAVE_S = 3.0

#: So many seconds of each cycle remain in which pilots may leave: a look every `loop.tick_s` must meet them.
LEAST_OPEN_S = 11.0


def may_complete_in_cycle(plan: BackfillPlan, now: float, rules: Rules) -> bool:
    """Whether a node that a pilot leaves now may still complete as the next backfill cycle comes: also where it is
    not known when that comes, since sdiag shows none while the queue is empty, or how long epilogs take.

    False where neither is known, and where epilogs take nearly the whole time between two cycles, or more: then no
    moment is better than another.
    """
    cycle_s, shut_s = plan.interval_s, (rules.free_s or 0.0) + LEAVE_S
    if cycle_s - shut_s < LEAST_OPEN_S:
        return False
    last_at = None if plan.is_stale(now) else plan.last_cycle_at
    if rules.free_s is None:
        return last_at is not None and bool(rules.exit_s)
    if last_at is None:
        return True
    passed_s = (now - last_at) % cycle_s
    return not 1.0 <= passed_s < cycle_s - shut_s


def can_wait(action: Action) -> TypeGuard[LeavePilot]:
    """Whether the action asks a pilot to leave for something that has time."""
    return isinstance(action, LeavePilot) and action.cause in CAN_WAIT
