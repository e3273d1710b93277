"""Mallory, with an account and a job of his own, reaches for Alice's workers: over HTTP, by what a hello may say."""

from __future__ import annotations

from typing import Any

import pytest

from malletrain.loop.membership.standing import MAX_GENERATIONS_AHEAD, QUORUM_GENERATION_GAP
from tests.security.two_users import (
    ALICE,
    ARRAYS,
    HERS,
    HIS,
    MALLORY,
    RUNNING,
    WAITING,
    Site,
    name_of,
    seat,
    standing_of,
)


def hers(site: Site) -> list[tuple[Any, ...]]:
    """What is known of Alice's workers; an attack leaves it as it was."""
    known = [site.worker(HERS, task) for task in RUNNING]
    return [(w.job, w.uid, w.pilot, w.node, w.address, w.phase, w.end, w.lost_at) for w in known if w is not None]


def mixed(generation: int = 5, *theirs: dict[str, str]) -> dict[str, Any]:
    """Mallory's standing, with seats that are not his."""
    said = standing_of(HIS, generation, [0])
    return said | {"members": [*said["members"], *theirs]}


def refused(answer: Any, status: int, words: str) -> None:
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]


def test_a_living_worker_of_anothers_job_is_not_seated(site: Site) -> None:
    site.begin(ALICE, HERS)
    before, world = hers(site), site.world(HERS)
    refused(site.hello(MALLORY, HIS, 0, mixed(5, seat(HERS, 1))), 403, "job 2's")
    assert hers(site) == before
    assert site.world(HERS) == world
    assert site.world(HIS) is None
    assert site.worker(HIS, 0) is None, "a refused hello leaves nothing behind"
    assert [job for job, _ in site.refusals] == [HIS]


def test_a_worker_to_come_of_anothers_job_is_not_taken(site: Site) -> None:
    """The restarted daemon has heard Mallory first."""
    refused(site.hello(MALLORY, HIS, 0, mixed(5, seat(HERS, 1, "evil:1"))), 403, "job 2's")
    site.begin(ALICE, HERS)
    worker = site.worker(HERS, 1)
    assert worker is not None
    assert (worker.job, worker.uid, worker.address) == (HERS, ALICE, f"n{HERS}1:1")


def test_a_pilot_that_nobody_knows_yet_is_not_taken(site: Site) -> None:
    """Her next array, of which the journal does not tell yet; its number is easily guessed."""
    to_come = {"worker": "9_0.0", "address": "evil:1"}
    assert site.hello(MALLORY, HIS, 0, mixed(5, to_come)).status_code == 200
    world = site.world(HIS)
    assert world is not None
    assert world.workers == (name_of(HIS, 0),)
    assert site.members.worker("9_0.0") is None
    assert any("9_0.0" in why for _, why in site.refusals)

    site.journal.add_array(HERS, {"array_id": 9, "tasks": [0]})
    site.journal.start_pilot(HERS, "9_0", "n19")
    assert site.hello(ALICE, HERS, 0, array_id=9, node="n19").status_code == 200
    worker = site.members.worker("9_0.0")
    assert worker is not None
    assert (worker.job, worker.uid, worker.address) == (HERS, ALICE, "")


def test_a_pilot_that_waits_in_her_array_is_not_taken(site: Site) -> None:
    refused(site.hello(MALLORY, HIS, 0, mixed(5, seat(HERS, WAITING))), 403, "job 2's")
    site.journal.start(HERS, WAITING)
    assert site.hello(ALICE, HERS, WAITING).status_code == 200
    worker = site.worker(HERS, WAITING)
    assert worker is not None
    assert worker.job == HERS


def test_no_hello_in_anothers_name(site: Site) -> None:
    site.begin(ALICE, HERS)
    before = hers(site)
    refused(site.hello(MALLORY, HERS, 0), 403, "not yours")
    refused(site.hello(MALLORY, HIS, 0, array_id=ARRAYS[HERS]), 403, "job 2's")
    refused(site.hello(MALLORY, HIS, 0, array_id=ARRAYS[HERS], node=f"n{HERS}0"), 403, "job 2's")
    assert hers(site) == before


def test_own_workers_are_not_readdressed_by_each_other(site: Site) -> None:
    """Whoever runs as Mallory on one node says nothing of his other nodes."""
    site.begin(MALLORY, HIS)
    elsewhere = standing_of(HIS, 5, RUNNING)
    elsewhere["members"][1]["address"] = "evil:1"
    assert site.hello(MALLORY, HIS, 0, elsewhere).status_code == 200, "it is told nothing new"
    mended = standing_of(HIS, 5 + QUORUM_GENERATION_GAP, RUNNING)
    mended["members"][1]["address"] = "evil:1"
    assert site.hello(MALLORY, HIS, 0, mended).status_code == 200
    worker, world = site.worker(HIS, 1), site.world(HIS)
    assert worker is not None
    assert world is not None
    assert worker.address == f"n{HIS}1:1"
    assert worker.seat in world.members


def test_a_newcomer_is_not_made_a_member_by_anothers_word(site: Site) -> None:
    for task in RUNNING[:2]:
        assert site.hello(MALLORY, HIS, task, standing_of(HIS, 5, RUNNING[:2])).status_code == 200
    assert site.hello(MALLORY, HIS, 2).status_code == 200, "warms up"
    assert site.hello(MALLORY, HIS, 0, standing_of(HIS, 5 + QUORUM_GENERATION_GAP, RUNNING)).status_code == 200
    worker = site.worker(HIS, 2)
    assert worker is not None
    assert worker.phase == "joining"


@pytest.mark.parametrize(
    ("key", "generation"),
    [
        ("generation", 0),
        *((key, n) for key in ("generation", "seen") for n in (MAX_GENERATIONS_AHEAD * 2, 2**62, -1)),
    ],
)
def test_numbers_beyond_the_journal_are_refused(site: Site, generation: int, key: str) -> None:
    said = standing_of(HIS, 5, [0]) | {key: generation}
    refused(site.hello(MALLORY, HIS, 0, said), 409, "generation")
    assert site.world(HIS) is None
    assert site.worker(HIS, 0) is None


def test_once_adopted_the_world_is_the_daemons(site: Site) -> None:
    site.begin(MALLORY, HIS)
    world = site.world(HIS)
    refused(site.hello(MALLORY, HIS, 1, standing_of(HIS, 7, [1])), 409, "generation 7")
    refused(site.hello(MALLORY, HIS, 1, mixed(5, seat(HERS, 0))), 403, "its own")
    assert site.hello(MALLORY, HIS, 1, standing_of(HIS, 5, [1])).status_code == 200
    assert site.hello(MALLORY, HIS, 1, standing_of(HIS, 4, [1])).status_code == 200
    assert site.world(HIS) == world, "its list is not looked at any more"


def test_a_standing_names_its_own_worker_and_each_once(site: Site) -> None:
    refused(site.hello(MALLORY, HIS, 0, standing_of(HIS, 5, [1, 2])), 403, "its own")
    refused(site.hello(MALLORY, HIS, 0, standing_of(HIS, 5, [0, 1, 1])), 403, "twice")
    other = {"worker": f"{ARRAYS[HIS]}_1.00", "address": "x:1"}
    assert site.hello(MALLORY, HIS, 0, mixed(5, other)).status_code == 200
    assert site.members.worker(other["worker"]) is None


def test_a_hello_from_another_node_is_refused(site: Site) -> None:
    refused(site.hello(MALLORY, HIS, 0, node="n11"), 403, "node")
    assert site.hello(MALLORY, HIS, 0).status_code == 200


@pytest.mark.parametrize("restart", [0, 2, 4000])
def test_a_hello_with_another_restart_count_than_slurms_is_refused(site: Site, restart: int) -> None:
    site.journal.start(HIS, 0, restarts=1)
    refused(site.hello(MALLORY, HIS, 0, restart=restart), 403, "restart")
    assert site.hello(MALLORY, HIS, 0, restart=1).status_code == 200


def test_an_older_run_does_not_end_the_present_one(site: Site) -> None:
    """Where Slurm's count is not known: a pilot that somebody else has started."""
    site.journal.start(HIS, 0, restarts=None)
    assert site.hello(MALLORY, HIS, 0, restart=1).status_code == 200
    refused(site.hello(MALLORY, HIS, 0, restart=0), 403, "later run")
    worker = site.worker(HIS, 0, restart=1)
    assert worker is not None
    assert worker.phase == "joining"
