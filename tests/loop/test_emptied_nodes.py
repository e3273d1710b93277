"""Nodes emptied for a main job stay empty until Slurm has had a cycle to use them, or the job is gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from malletrain.domain.snapshot import BackfillPlan, SlurmJob, Snapshot
from tests.world import RULES, START, World, job, main_job


class Site(World):
    """A machine harvested whole, whose backfill runs every 30 s, first `cycle_at` seconds after START."""

    def __init__(self, cycle_at: float, nodes: int = 4, leaves: str = "", tells: bool = True) -> None:
        super().__init__(nodes=nodes, rules=replace(RULES, claim_patience_s=100.0))
        self.cycle_at, self.tells = cycle_at, tells
        self.leaves = {f"n{at}": leaf for at, leaf in enumerate(leaves)}
        self.loop._cluster.snapshot = self._seen  # type: ignore[method-assign]
        self.submit(job(1, most=nodes))
        self.tick()
        self.tick()
        assert len(self.running()) == nodes
        self.begun = self.clock.now()

    def _seen(self) -> Snapshot:
        now = self.clock.now() - self.begun if hasattr(self, "begun") else -1.0
        cycles = int((now - self.cycle_at) // 30.0)
        last = self.begun + self.cycle_at + 30.0 * cycles if now >= self.cycle_at else None
        plan = BackfillPlan(last_cycle_at=last if self.tells else None, backfill_cycle_s=0.1)
        return replace(type(self.cluster).snapshot(self.cluster), plan=plan, leaves=self.leaves)

    def play(self, main: Callable[[float], Sequence[SlurmJob]], seconds: int) -> dict[float, frozenset[str]]:
        """Ticks every 10 s and light looks every 2 s, with the main queue as it is then: when -> nodes of pilots."""
        shown = {}
        for second in range(2, seconds + 1, 2):
            self.clock.advance(2.0)
            self.cluster.set_main(main(float(second)))
            self.loop.watch() if second % 10 else self.loop.tick()
            self.loop.react()
            shown[float(second)] = frozenset(self.running())
        return shown


def waiting(**more: object) -> SlurmJob:
    return main_job(9, **({"count": 3, "limit_s": 900.0} | more))  # type: ignore[arg-type]


def top(**more: object) -> SlurmJob:
    """A better job that waits for more nodes than there are."""
    return main_job(8, count=5, priority=200, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("cycle_at", [13.0, 25.0, 33.0])
@pytest.mark.parametrize("tells", [True, False], ids=["sdiag", "no sdiag"])
@pytest.mark.parametrize("change", ["plan", "reason", "array", "hetjob", "lapsed", "better"])
def test_emptied_nodes_stay_empty_until_a_cycle_could_use_them(cycle_at: float, tells: bool, change: str) -> None:
    planned = [f"n{at}" for at in range(4)]

    def queue(at: float) -> Sequence[SlurmJob]:
        before = at < 11.0
        match change:
            case "plan":  # Slurm plans a better job on these nodes, before the job would end
                return [waiting(), top() if before else top(start=START + 700.0, planned=planned)]
            case "reason":
                return [waiting() if before else waiting(reason="Reservation")]
            case "array":
                return [
                    replace(waiting(count=1, task_count=3, reason="Resources" if before else "Licenses"), array_id=9)
                ]
            case "hetjob":  # Slurm tries a part, takes it back, and puts the whole off
                first = main_job(9, count=1, het_id=9, limit_s=900.0)
                second = main_job(10, count=2, het_id=9, limit_s=900.0)
                return [first if before else replace(first, reason="BeginTime", start_time=START + 400.0), second]
            case "lapsed":  # it could have started before, on nodes that others took
                return [waiting()]
            case _:  # a better job comes, which needs all nodes but one, and is gone again at once
                return [waiting(), *([] if before or at > 13.0 else [main_job(7, count=4, priority=300)])]

    site = Site(cycle_at, tells=tells)
    if change == "lapsed":
        site.loop._yielded = replace(site.loop._yielded, startable={"9": site.begun - RULES.claim_patience_s + 14.0})
    shown = site.play(queue, 40)
    emptied = [at for at, on in shown.items() if len(on) <= 1]
    first = emptied[0]
    free_at = -(-first // 10) * 10.0  # the tick that shows them free
    cycle = next(cycle_at + 30.0 * n for n in range(9) if cycle_at + 30.0 * n > first)
    until = min(cycle, 40.0) if tells else 40.0
    late = {at: on for at, on in shown.items() if first <= at < until and len(on) > 1}
    assert not late, (first, free_at, cycle)


def test_they_are_pilots_again_after_a_cycle_that_did_not_use_them() -> None:
    planned = [f"n{at}" for at in range(4)]
    site = Site(25.0)
    shown = site.play(
        lambda at: [waiting(), top() if at < 11.0 else top(start=START + 700.0, planned=planned)], 120
    )  # fmt: skip
    assert len(shown[40.0]) == 1 or len(shown[50.0]) == 4
    assert len(shown[60.0]) == 4


def test_they_are_pilots_again_at_once_when_the_job_is_gone() -> None:
    site = Site(33.0)
    shown = site.play(lambda at: [waiting()] if at < 15.0 else [], 40)
    assert len(shown[14.0]) == 1
    assert len(shown[20.0]) == 4


def test_what_a_job_no_longer_needs_is_kept_for_none() -> None:
    """It has begun on other nodes."""
    site = Site(33.0)
    shown = site.play(
        lambda at: [waiting(count=1)] if at < 15.0 else [main_job(9, nodes=["n3"])], 40
    )  # fmt: skip
    assert len(shown[20.0]) == 3


def test_nobody_counts_on_nodes_that_are_being_emptied() -> None:
    """Nodes that pilots are still leaving for a job are no nodes to come for training."""
    planned = [f"n{at}" for at in range(4)]
    site = Site(33.0)
    site.play(lambda at: [waiting(), top() if at < 9.0 else top(start=START + 700.0, planned=planned)], 10)
    decision = site.loop.last_decision
    assert decision is not None
    kept = {each.subject: each.reason for each in decision.refusals}
    assert sum("main job 9" in why for why in kept.values()) == 3, kept
    assert decision.nodes == 1
