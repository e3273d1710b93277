"""Slurm's plan of a job vanishes from squeue when its start has passed, until backfill comes to the job again."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from malletrain.decide.rules import Rules
from malletrain.domain.snapshot import BackfillPlan, Snapshot
from malletrain.loop.trackers.hole_history import PlannedStarts
from tests.world import RULES, START, World, job, main_job, node

INTERVAL_S = 30.0


def look(at: float, *plans: tuple[int, float | None], reason: str = "Resources") -> Snapshot:
    """Waiting jobs by number, planned on a node of their own at a time, or not at all (None)."""
    jobs = [main_job(n, start=start, planned=[] if start is None else [f"n{n}"], reason=reason) for n, start in plans]
    return Snapshot(at, (node("n1"), node("n2")), tuple(jobs), plan=BackfillPlan(interval_s=INTERVAL_S))


def shown(snapshot: Snapshot) -> dict[str, tuple[float | None, tuple[str, ...]]]:
    return {job.id: (job.start_time, job.planned_nodes) for job in snapshot.pending}


def test_a_plan_that_vanishes_is_kept_for_two_intervals() -> None:
    memory = PlannedStarts()
    memory.over(look(0.0, (1, 5.0), (2, None)), 0.0, RULES)
    for now in (10.0, 60.0):
        seen = memory.over(look(now, (1, None), (2, None)), now, RULES)
        assert shown(seen) == {"1": (5.0, ("n1",)), "2": (None, ())}
    assert shown(memory.over(look(61.0, (1, None)), 61.0, RULES)) == {"1": (None, ())}


def test_a_new_plan_counts_at_once_and_what_no_longer_waits_has_none() -> None:
    memory = PlannedStarts()
    memory.over(look(0.0, (1, 5.0)), 0.0, RULES)
    assert shown(memory.over(look(1.0, (1, 900.0)), 1.0, RULES)) == {"1": (900.0, ("n1",))}
    held = look(2.0, (1, None), reason="JobHeldUser")
    assert memory.over(held, 2.0, RULES) is held
    again = look(3.0, (1, None))
    assert memory.over(again, 3.0, RULES) is again, "what was held in between is planned anew"


@given(
    st.lists(
        st.tuples(st.floats(0.0, 100.0), st.dictionaries(st.integers(1, 3), st.none() | st.floats(0.0, 500.0))),
        max_size=12,
    )
)
def test_what_slurm_says_is_never_changed_and_nothing_is_kept_for_longer(
    looks: list[tuple[float, dict[int, float | None]]],
) -> None:
    memory, now = PlannedStarts(), 0.0
    said: dict[str, tuple[float, float]] = {}  # start, when it was said
    for seconds, plans in looks:
        now += seconds
        given_ = look(now, *sorted(plans.items()))
        seen = memory.over(given_, now, RULES)
        assert [j.id for j in seen.jobs] == [j.id for j in given_.jobs]
        said = {name: at for name, at in said.items() if name in shown(given_)}
        for name, (start, _) in shown(given_).items():
            kept = shown(seen)[name][0]
            if start is not None:
                assert kept == start
                said[name] = (start, now)
            elif kept is not None:
                assert said[name][0] == kept
                assert now - said[name][1] <= 2 * INTERVAL_S
            else:
                assert name not in said or now - said[name][1] > 2 * INTERVAL_S
                said.pop(name, None)


def test_no_pilot_starts_on_a_node_whose_main_job_is_about_to_start() -> None:
    rules: Rules = replace(RULES, min_hole_s=70.0)
    world = World(nodes=2, rules=rules)
    world.submit(job(1, most=2))
    wanted = main_job(9, count=3, start=START + 15.0, planned=["n0"])
    world.cluster.set_main([wanted])
    world.tick()
    world.cluster.set_main([replace(wanted, start_time=None, planned_nodes=())])  # it has passed, squeue says N/A
    for _ in range(3):
        world.tick()
        assert set(world.running()) == {"n1"}
    for _ in range(6):
        world.tick()
    assert set(world.running()) == {"n0", "n1"}, "backfill has long been there again: nothing is planned"
    assert "pilot_started" in {event.kind for event in world.journal.events}
