"""How many jobs count against MaxJobCount, from the ids that squeue prints."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.daemon.site_watch import COUNT_S, SiteWatch
from malletrain.domain.errors import ClusterUnavailable
from malletrain.slurm.command import Commands
from malletrain.slurm.site import site_facts
from malletrain.slurm.site.held_task_limits import count_jobs, why_full
from tests.messages import naming, says


@st.composite
def rows(draw: st.DrawFn) -> tuple[str, int]:
    """One row of `squeue -o %i`, and how many jobs it stands for."""
    job = draw(st.integers(1, 10**9))
    kind = draw(st.sampled_from(("job", "task", "component", "rest")))
    if kind == "job":
        return str(job), 1
    if kind in ("task", "component"):
        return f"{job}{'_' if kind == 'task' else '+'}{draw(st.integers(0, 9999))}", 1
    low, count = draw(st.integers(0, 500)), draw(st.integers(1, 500))
    at_once = draw(st.sampled_from(("", "%1", "%20")))
    alone = f",{low + count + 5}"
    return f"{job}_[{low}-{low + count - 1}{alone}{at_once}]", count + 1


@given(st.lists(rows()))
def test_every_task_counts(found: list[tuple[str, int]]) -> None:
    assert count_jobs("".join(f"{row}\n" for row, _ in found)) == sum(count for _, count in found)


@given(st.text(max_size=60))
def test_no_answer_is_taken_for_what_it_is_not(text: str) -> None:
    try:
        counted = count_jobs(text)
    except ClusterUnavailable as error:
        assert says(error, "squeue", "job id")
    else:
        assert counted >= len(text.split())


@pytest.mark.parametrize("row", ["7_[0-9", "7x", "7_[a]", "slurm_load_jobs", "7 _3"])
def test_half_a_row_is_no_row(row: str) -> None:
    with pytest.raises(ClusterUnavailable, match=naming("squeue", "job id")):
        count_jobs(row)


class Silent(Commands):
    """Slurm's answers, one after the other; None: none."""

    def __init__(self, *answers: str | None) -> None:
        super().__init__({})
        self.answers = list(answers)

    def ask(self, argv: Sequence[str], timeout_s: float | None = None) -> str:
        answer = self.answers.pop(0)
        if answer is None:
            raise ClusterUnavailable("squeue: no answer")
        return answer


def test_ended_jobs_count_too_and_slurm_is_asked_seldom() -> None:
    now = 100.0
    facts = site_facts.parse("SLURM_VERSION = 22.05.8\nClusterName = c\nMaxJobCount = 12\n", "")
    site = SiteWatch(Silent("7\n8_[0-9]\n", None), site_facts.Harvest("harvest"), facts, lambda: now)
    for seen, counted in ((3, 11), (20, 20)):
        assert f"Slurm has {counted} of at most 12" in site.why_no_more_tasks(seen)
    now += COUNT_S
    assert not site.why_no_more_tasks(3), "without an answer, those that are seen"


@pytest.mark.parametrize(("known", "most", "full"), [(8999, 10000, False), (9000, 10000, True), (5, 0, False)])
def test_a_nearly_full_queue_gets_no_more_held_tasks(known: int, most: int, full: bool) -> None:
    assert bool(why_full(known, most)) is full
