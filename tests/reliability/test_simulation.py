"""Laws of the whole under faults: the daemon's own loop and membership, in simulated time (`scripts.simulation`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from malletrain.domain.job import Elastic
from malletrain.loop.membership.machine import JobMachine
from scripts.simulation import world
from scripts.simulation.__main__ import Found, crash_points, random_histories
from scripts.simulation.faults import (
    ALL_FAULTS,
    FAULTS_OF_ONE,
    NO_FAULTS,
    WITH_DISKS,
    WITH_LATE_MESSAGES,
    FaultRates,
)
from scripts.simulation.workers import Departures
from scripts.simulation.world import ONE_BY_ONE, SHORT, WIDE, Setting, play
from tests.messages import says

#: Histories that broke a law before it was mended, with the factor of `FAULTS_OF_ONE` that they had:
#: worlds that began beside one that the daemon did not hear (after a restart, after all were silent, in a plan that
#: was never reported as taken, after a loss that only the daemon before knew of); pilots that were not looked at
#: while a clock that had been set back caught up.
ONCE_BROKEN = [(49, 2), (189, 2), (91, 4), (485, 2), (694, 3), (1449, 2), (10339, 4), (21066, 3), (40653, 2)]


def test_without_faults_every_job_trains_to_its_end() -> None:
    history = play(3, NO_FAULTS)
    assert history.violations == []
    assert history.kills == []


def test_a_seed_gives_the_same_history_again() -> None:
    assert play(11, ALL_FAULTS) == play(11, ALL_FAULTS)
    assert play(11, WITH_LATE_MESSAGES, WIDE) == play(11, WITH_LATE_MESSAGES, WIDE)


#: Histories in which slurmctld lost an array before the daemon had looked at it: without `JobView.array_gone` its job
#: is announced for ever in each.
LOST_ARRAYS = (6, 35, 55)


@pytest.mark.parametrize("seed", LOST_ARRAYS)
def test_a_job_ends_whose_array_slurm_has_lost(seed: int) -> None:
    history = play(seed, WITH_DISKS.scaled(1 + seed % 4), Setting() if seed % 5 else ONE_BY_ONE)
    assert history.violations == []
    assert history.faults["slurmctld's state lost"] > 0


def test_tasks_whose_cancellation_slurm_has_lost_are_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen on a real Slurm, killed three seconds after scancel: the held tasks of a job that was over stayed."""
    monkeypatch.setattr(world, "UNSAVED_S", 1e9)
    found = random_histories(30_000_000, 30_000_010)
    assert found.broken == {}
    assert found.faults["slurmctld's state lost"] > 0


def test_an_array_that_is_taken_back_ends_no_job() -> None:
    """A check that was too strict: refused arrays counted among those of the job."""
    assert play(1_001_700, ALL_FAULTS, ONE_BY_ONE).violations == []


def test_a_job_completes_again_whose_completion_was_lost_with_a_busy_journal() -> None:
    """Its held tasks were cancelled before its end was on the disk; the next daemon ended it as failed."""
    assert play(2_000_130, WITH_DISKS.scaled(3), ONE_BY_ONE).violations == []


def test_numbers_of_worlds_published_with_a_busy_journal_are_not_given_again() -> None:
    """The daemon died with the journal that could not be written; the next one numbered its worlds from 1 again."""
    assert play(2_000_441, WITH_DISKS.scaled(2)).violations == []


@pytest.mark.parametrize(("seed", "factor"), ONCE_BROKEN)
def test_a_history_that_once_broke_a_law(seed: int, factor: int) -> None:
    assert play(seed, FAULTS_OF_ONE.scaled(factor)).violations == []


def test_the_laws_see_two_worlds_of_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself: without what keeps worlds apart, it finds them."""

    def unknown(views: object, job: int) -> Mapping[str, bool]:
        return {}

    monkeypatch.setattr("scripts.simulation.daemon.holding", unknown)
    broken = [why for seed, factor in ONCE_BROKEN for why in play(seed, FAULTS_OF_ONE.scaled(factor)).violations]
    assert any("two worlds" in why for why in broken)


def _shown(found: Found) -> str:
    return "\n".join(f"python -m scripts.simulation {again}: {why}" for again, why in found.broken.items())


def test_histories_with_everything_that_goes_wrong() -> None:
    found = random_histories(5000, 5040)
    assert not found.broken, _shown(found)
    assert found.kills > 20
    kinds = {"worker cut off", "worker frozen", "node failed", "slurmctld silent", "nodes parted", "journal busy"}
    assert kinds <= found.faults.keys()


def test_arrays_get_numbers_of_earlier_ones() -> None:
    found = [play(seed, replace(NO_FAULTS, reused_id=0.5), ONE_BY_ONE) for seed in range(8)]
    assert [each.violations for each in found] == [[]] * 8
    assert sum(each.faults["array id used again"] for each in found) > 8


#: Most of the members of a world reach neither the daemon nor the others: together they are a majority.
EXILE = FaultRates(exile=0.01), Setting(seconds=200.0, steps=900, jobs=1)
#: Histories in which they trained beside the daemon's world, before it waited for them.
EXILES = (20, 23, 31, 40)


def test_a_majority_that_the_daemon_does_not_hear_trains_in_no_world_beside_its_own() -> None:
    assert [play(seed, *EXILE).violations for seed in EXILES] == [[]] * len(EXILES)


def test_the_laws_see_a_majority_that_trains_beside_the_daemons_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself."""
    monkeypatch.setattr(JobMachine, "_waits_for_a_majority", lambda *_: False)
    assert any(play(seed, *EXILE).violations for seed in range(60))


#: Short histories in which main jobs alone go wrong, of jobs that are relaunched at each size.
RELAUNCHED = Setting(elastic=(Elastic.RESTART,))
#: Of these, some in which a script began while one of the world before still saved.
WHILE_SAVED = (7, 18, 41)
#: A newcomer's world began beside that of the member that had not heard of it.
BESIDE = 18, replace(NO_FAULTS, cut=0.02, worker_freeze=0.02, late_answer=0.02), RELAUNCHED


def test_relaunched_scripts_begin_once_those_before_have_saved() -> None:
    assert [play(seed, NO_FAULTS, RELAUNCHED).violations for seed in WHILE_SAVED] == [[]] * len(WHILE_SAVED)
    assert play(*BESIDE).violations == []


def test_the_laws_see_scripts_that_begin_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself."""
    monkeypatch.setattr(JobMachine, "holds_scripts", lambda *_: False)
    monkeypatch.setattr(JobMachine, "_waits_for_scripts_apart", lambda *_: False)
    broken = [why for seed in WHILE_SAVED for why in play(seed, NO_FAULTS, RELAUNCHED).violations]
    assert any("saves step" in why for why in broken)
    assert any("two worlds" in why for why in play(*BESIDE).violations)


#: Histories of `python -m scripts.simulation --seed N` that broke a law: a launcher that was given up had its script
#: save beside the next world; one node of a task of several trained on unheard beside the next world; one that left
#: and a silent one made a world beside the daemon's; a script that was frozen as it saved did so over a newer state;
#: a worker entered the world of an earlier daemon that it had not told the present one of; a job began anew, or a
#: second world, while one that had been given up for its silence, alone, still held the state; one that had left in
#: order was taken for a script that never trained; a start that did not begin, of a job of wide pilots, was its last.
BROKEN_WITH_ALL_KINDS = (
    4_000_196, 4_000_929, 4_000_884, 4_002_164, 4_002_224, 7_011_732, 7_028_924, 7_022_008, 7_025_609, 7_026_728,
    8_020_654, 10_015_333, 11_007_152, 11_009_132, 11_013_332, 11_015_704, 11_020_027,
    12_000_420, 12_000_900, 13_008_353, 14_001_544, 14_013_164, 14_013_724, 15_027_788, 16_016_184, 18_032_581,
    21_000_094, 21_000_099, 22_000_813, 22_004_800,
    22_022_862,
)  # fmt: skip


def test_histories_of_all_kinds_of_jobs_that_once_broke_a_law() -> None:
    broken = [random_histories(seed, seed + 1).broken for seed in BROKEN_WITH_ALL_KINDS]
    assert broken == [{}] * len(BROKEN_WITH_ALL_KINDS)


def test_tasks_of_several_nodes_end_as_a_whole() -> None:
    found = [play(seed, WITH_LATE_MESSAGES.scaled(2), WIDE) for seed in range(6)]
    assert [each.violations for each in found] == [[]] * 6
    assert sum(each.faults["tasks of several nodes"] for each in found) > 3


def test_members_that_cannot_reach_each_other_train_on_once_they_can() -> None:
    found = [play(seed, FaultRates(partition=0.05), Setting(steps=400)) for seed in range(4)]
    assert [each.violations for each in found] == [[]] * 4
    assert sum(each.faults["nodes parted"] for each in found) > 8


def test_the_daemon_dies_at_every_boundary_of_a_history() -> None:
    boundaries = play(0, NO_FAULTS, SHORT).crash_points
    found = crash_points(0, boundaries)
    assert not found.broken, _shown(found)
    assert found.kills >= boundaries


def test_no_step_is_lost_when_all_nodes_of_a_job_are_taken() -> None:
    """With seed 4 the job once rested for ever, since fewer nodes had begun than it asks for."""
    found = random_histories(0, 12, "taken")
    assert not found.broken, _shown(found)
    assert found.faults["all nodes taken"] > 30


def test_the_laws_see_workers_that_leave_before_the_state_is_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself: each leaves by itself after its grace, though all of them do."""
    monkeypatch.setattr(Departures, "committed", lambda *_: False)
    broken = random_histories(4, 5, "taken").broken | random_histories(14, 15, "taken").broken
    assert len(broken) == 2
    assert all(says(why, "with step") for whys in broken.values() for why in whys)


@pytest.mark.nightly
def test_thousands_of_histories_in_which_all_nodes_are_taken() -> None:
    found = random_histories(100_000, 102_000, "taken")
    assert not found.broken, _shown(found)


@pytest.mark.nightly
def test_thousands_of_histories() -> None:
    found = random_histories(100_000, 104_000)
    assert not found.broken, _shown(found)


@pytest.mark.nightly
def test_thousands_of_crash_points() -> None:
    found = crash_points(0, 4000)
    assert not found.broken, _shown(found)
