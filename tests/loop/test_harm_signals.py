"""Signs of harm: folded from the journal, and read from what Slurm shows."""

from __future__ import annotations

from dataclasses import replace

from malletrain.decide.rules import MainPromise, Rules
from malletrain.domain.event import Event, JsonValue
from malletrain.domain.snapshot import BackfillPlan, NodeState, Snapshot
from malletrain.loop.ledger import Ledger
from malletrain.loop.trackers.harm_signals import HarmSignalTracker
from scripts.bench.journal_year import fold_s
from tests.world import START, World, event_of, job, node


def started(at: float, pilot: str = "7_0", where: str = "n0") -> Event:
    return event_of(at, "pilot_started", 1, pilot, where)


def asked(at: float, pilot: str = "7_0") -> Event:
    return event_of(at, "intent", 1, pilot, "n0", data={"type": "leave"})


def seen(state: NodeState, reason: str = "") -> Snapshot:
    return Snapshot(START, (node("n0", state, reason=reason),))


def test_a_pilot_that_takes_long_to_leave_is_slow() -> None:
    signs = HarmSignalTracker()
    for pilot, took_s in (("7_0", 12.0), ("7_1", 61.0)):
        for event in (started(0, pilot), asked(10, pilot), event_of(10 + took_s, "pilot_held", 1, pilot)):
            signs.apply(event)
    assert signs.seen().slow_exits == (71.0,)


def test_preemptions_are_counted_those_of_one_wide_main_job_once() -> None:
    signs = HarmSignalTracker()
    for number, (at, preempted) in enumerate([(5, True), (6, False), (7, True), (40, True), (66, True), (200, True)]):
        signs.apply(event_of(at, "pilot_ended", 1, f"7_{number}", data={"preempted": preempted}))
    assert signs.seen().preempted == (5, 66, 200)


def test_where_the_site_promises_a_delay_only_main_jobs_that_were_later_are_signs_of_harm() -> None:
    ledger = Ledger()
    for number, wait_s in enumerate((1.0, 40.0)):
        at, pilot = START + 500.0 * number, f"7_{number}"
        met: dict[str, JsonValue] = {
            "main_job": str(number), "submitted_at": at, "started_at": at + wait_s, "left_at": at + wait_s,
            "preempted": True,
        }  # fmt: skip
        ended = event_of(at + wait_s, "pilot_ended", 1, pilot, data={"preempted": True})
        ledger.apply([ended, event_of(at + wait_s + 1, "main_met", 1, pilot, "n0", data=met)])
    without = ledger.signs_of_harm(Rules())
    assert (without.preempted, without.late_main_jobs) == ((START + 1.0, START + 540.0), ())
    assert ledger.signs_of_harm(Rules(promise=MainPromise(cycle_ratio=1.5))) == without, "it says nothing of a delay"
    promised = ledger.signs_of_harm(Rules(promise=MainPromise(p95_s=5.0)), unsound="PreemptMode=OFF")
    assert (promised.preempted, promised.late_main_jobs) == ((), (START + 540.0,))
    assert promised.unsound == "PreemptMode=OFF"


def test_a_node_that_slurm_takes_out_of_service_after_a_pilot_ails_once() -> None:
    signs = HarmSignalTracker()
    signs.apply(started(START))
    signs.apply(event_of(START + 60, "pilot_held", 1, "7_0", "n0"))
    sick = seen(NodeState.DRAINED, "Kill task failed [root@2026-11-20T20:00:00]")
    (event,) = signs.look(sick, 0, START + 90)
    assert (event.kind, event.node, event.pilot) == ("node_ails", "n0", "7_0")
    assert "drained (Kill task failed" in event.reason
    signs.apply(event)
    assert signs.look(sick, 0, START + 100) == []
    assert signs.seen().ailing_nodes == (START + 90,)
    assert signs.look(seen(NodeState.IDLE), 0, START + 200) == []
    assert len(signs.look(sick, 0, START + 300)) == 1, "repaired, and out of service once more"


def test_what_staff_drains_or_fails_long_after_is_not_the_pilots() -> None:
    signs = HarmSignalTracker()
    signs.apply(started(START))
    signs.apply(event_of(START + 60, "pilot_held", 1, "7_0", "n0"))
    assert signs.look(seen(NodeState.DRAINED, "new disk [root@2026-11-20T20:00:00]"), 0, START + 90) == []
    assert signs.look(seen(NodeState.DRAINED, "Kill task failed"), 0, START + 961) == []


def test_cycles_that_pilots_make_longer() -> None:
    signs = HarmSignalTracker()

    def looks(cycle_s: float, pilots: int, count: int) -> None:
        for number in range(count):
            signs.look(replace(seen(NodeState.IDLE), plan=BackfillPlan(main_cycle_s=cycle_s)), pilots, number)

    looks(0.3, 0, 10)
    looks(0.55, 50, 20)
    assert signs.seen().slow_cycles == (), "above half a second, but not twice as long"
    looks(0.7, 50, 20)
    assert signs.seen().slow_cycles


def test_a_loop_keeps_them_and_a_ledger_folded_anew_agrees() -> None:
    world = World(nodes=2)
    world.submit(job(1))
    for _ in range(3):
        world.tick()
    world.cluster.nodes["n0"] = node("n0", NodeState.DRAINED, reason="Epilog error")
    world.tick()
    assert [e.node for e in world.journal.events if e.kind == "node_ails"] == ["n0"]
    again = Ledger()
    again.apply(world.journal.read())
    assert again.harm_signals.seen() == world.loop.ledger.harm_signals.seen()


def test_a_crowded_queue_gets_no_top_up() -> None:
    world = World(nodes=8)
    world.submit(job(1), tasks=8)
    world.loop.crowded = "Slurm has 9500 of at most 10000 jobs (MaxJobCount)"
    for _ in range(3):
        world.tick()
    assert world.workers.topped_up == {}
    assert world.loop.last_decision is not None
    assert any(r.subject == "top-up" for r in world.loop.last_decision.refusals)
    world.loop.crowded = ""
    world.tick()
    assert world.workers.topped_up != {}


def test_a_job_of_one_node_is_topped_up_while_a_task_is_left() -> None:
    """With none left, it fails as soon as the one that runs is preempted."""
    world = World(nodes=1)
    world.submit(job(1, most=1), tasks=2)
    for _ in range(3):
        world.tick()
    assert world.loop.views[1].held_count == 1
    assert world.workers.topped_up == {1: 3}


def test_the_end_of_a_pilot_costs_the_same_on_any_machine() -> None:
    small, large = (min(fold_s(nodes) for _ in range(3)) for nodes in (500, 10_000))
    assert large < 3 * small, "a walk over all nodes takes nine times as long"
