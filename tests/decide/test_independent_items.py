"""Jobs of independent items: perfect scaling, no stalls, and holes in which no training would begin."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.decide.rules import Rules
from malletrain.decide.sizes import demand_of
from malletrain.domain.event import Event, JobAnnounced
from malletrain.domain.job import Curve, Elastic, JobPhase, JobView, Pilot, PilotPhase, Profile, ResizeCosts
from malletrain.learn.advisor import JobKnowledge
from malletrain.learn.profiling import expected_curve, profile_of, scale_up_jobs
from malletrain.loop.ledger import Ledger
from malletrain.sizing.problem import Problem
from malletrain.sizing.registry import policy
from tests.world import START, job

TRAINING = ResizeCosts(activate_s=40.0, grow_s=1.0)
KNOWN = JobKnowledge()


def view(number: int, elastic: Elastic, costs: ResizeCosts, curve: Curve | None = None) -> JobView:
    held = {f"{number}_{task}": Pilot(f"{number}_{task}", number, PilotPhase.HELD, START) for task in range(8)}
    return JobView(job(number, elastic=elastic), JobPhase.QUEUED, held, curve=curve, costs=costs)


@pytest.mark.parametrize("of_site", list(Profile))
def test_items_are_taken_to_scale_whatever_the_site_profiles(of_site: Profile) -> None:
    rules = Rules()
    rules = replace(rules, probing=replace(rules.probing, profile=of_site, restart_profile=of_site))
    items = view(1, Elastic.TASKS, ResizeCosts(), Curve(((1, 5.0), (8, 9.0))))
    assert profile_of(items, rules.probing) is Profile.NONE
    assert expected_curve(items, KNOWN, rules.probing) == Curve.linear(8)
    assert not scale_up_jobs({1: items}, {1: KNOWN}, rules.probing)


@pytest.mark.parametrize("name", ["auto", "exact", "milp"])
def test_holes_that_end_before_a_training_has_begun_go_to_items(name: str) -> None:
    """A horizon below the activation of the training: only the items gain by nodes."""
    costs = ledger_costs(Elastic.TASKS)
    views = [view(1, Elastic.LIVE, TRAINING), view(2, Elastic.TASKS, costs)]
    demands = tuple(demand_of(each, (), KNOWN, Rules()) for each in views)
    sizes = policy(name).size(Problem(horizon_s=30.0, nodes=8, jobs=demands)).sizes
    assert sizes.get(1, 0) == 0
    assert sizes[2] == 8
    alone = policy(name).size(Problem(horizon_s=30.0, nodes=8, jobs=demands[:1])).sizes
    assert alone.get(1, 0) == 0, "such a hole stays empty without them"


def ledger_costs(elastic: Elastic) -> ResizeCosts:
    """What is assumed of a job that has shown nothing."""
    ledger = Ledger()
    ledger.apply([Event(START, JobAnnounced(job(2, elastic=elastic)), 2)])
    return ledger.views()[2].costs


def test_no_change_of_size_costs_items_a_pause() -> None:
    costs = ledger_costs(Elastic.TASKS)
    assert (costs.grow_s, costs.shrink_s, costs.loss_s) == (0.0, 0.0, 0.0)
    assert ledger_costs(Elastic.RESTART).grow_s > 0
