"""What a site's configuration says: recorded ones of three releases, one of a real site, broken ones, and noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.errors import InvalidInput
from malletrain.slurm.formats import sdiag, squeue, text
from malletrain.slurm.site import held_task_limits, partition_checks, site_facts
from malletrain.slurm.site.site_facts import Harvest, Level, SiteFacts
from tests.conftest import DATA

FIXTURES = Path(__file__).parent / "fixtures"
VERSIONS = sorted(path.name for path in FIXTURES.iterdir())


def facts(version: str) -> SiteFacts:
    folder = FIXTURES / version
    return site_facts.parse((folder / "config.txt").read_text(), (folder / "partitions.txt").read_text())


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_configurations(version: str) -> None:
    found = facts(version)
    assert found.version == version
    assert found.release >= (22, 5)
    assert (found.kill_wait_s, found.bf_interval_s) == (5, 1)
    assert found.preempt_type.endswith("partition_prio")
    assert found.over_time_limit_s == 0
    assert not found.accounting
    assert held_task_limits.limits_of(found.words).max_array_size > 1
    harvest = found.partitions["harvest"]
    assert (harvest.preempt_mode, harvest.max_time_s, len(harvest.nodes)) == ("REQUEUE", 3600.0, 8)
    assert partition_checks.check_harvest_partition(found, Harvest("harvest")) == ()


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_diagnoses(version: str) -> None:
    found = sdiag.parse((FIXTURES / version / "sdiag.txt").read_text(), 1.0)
    assert found.at is not None
    assert found.plan.main_cycle_s is not None
    assert found.plan.queue_length is not None


@pytest.mark.data
@pytest.mark.parametrize("name", ["gsi/sdiag.txt", "osc-2020/sdiag.txt"])
def test_diagnoses_of_real_sites(name: str) -> None:
    path = DATA / "slurm-outputs" / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    found = sdiag.parse(path.read_text())
    assert found.plan.depth is not None
    assert found.main_cycle_max_s is not None


@pytest.mark.data
def test_partitions_of_a_real_site() -> None:
    path = DATA / "slurm-outputs" / "meta-gcm" / "sample-scontrol-output.txt"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    found = text.partitions(path.read_text())
    assert found["partition1"]["PriorityTier"] == "10"
    assert len(found) >= 3


BASE = facts(VERSIONS[0])


def having(**changes: object) -> SiteFacts:
    """The recorded site with fields of its harvest partition changed."""
    partition = replace(BASE.partitions["harvest"], **changes)  # type: ignore[arg-type]
    return replace(BASE, partitions={**BASE.partitions, "harvest": partition})


@pytest.mark.parametrize(
    ("found", "level", "said"),
    [
        (replace(BASE, partitions={}), Level.ERROR, "are: none)"),
        (having(nodes=frozenset()), Level.ERROR, "no nodes"),
        (having(state="DOWN"), Level.ERROR, "is DOWN"),
        (having(preempt_mode="OFF"), Level.ERROR, "not preempted"),
        (having(preempt_mode="SUSPEND"), Level.ERROR, "not preempted"),
        (having(tier=100), Level.ERROR, "go before"),
        (having(max_time_s=60.0), Level.ERROR, "no pilot"),
        (having(grace_s=300.0), Level.WARNING, "GraceTime"),
        (having(nodes=frozenset({"other"})), Level.WARNING, "to harvest"),
        (replace(BASE, preempt_type=""), Level.ERROR, "preempts nothing"),
        (replace(BASE, preempt_type="preempt/none"), Level.ERROR, "preempts nothing"),
        (replace(BASE, preempt_mode="OFF"), Level.ERROR, "preempts nothing"),
        (replace(BASE, preempt_type="preempt/qos"), Level.WARNING, "by QOS"),
    ],
)
def test_findings_of_a_harvest_partition(found: SiteFacts, level: Level, said: str) -> None:
    findings = partition_checks.check_harvest_partition(found, Harvest("harvest"))
    assert any(finding.level is level and said in finding.what for finding in findings), findings
    assert all(finding.remedy for finding in findings)


def test_a_configuration_without_a_version_is_refused() -> None:
    with pytest.raises(InvalidInput, match="SLURM_VERSION"):
        site_facts.parse("slurm_load_ctl_conf error: Unable to contact slurm controller\n", "")


@given(st.text(max_size=200), st.text(max_size=200))
def test_noise_is_refused_in_words(config: str, partitions: str) -> None:
    for parse in (
        lambda: site_facts.parse(f"SLURM_VERSION = 22.05.8\nClusterName = c\n{config}", partitions),
        lambda: squeue.parse_tasks(config, "\x1emark\x1e"),
        lambda: squeue.parse_queue(config, "\x1emark\x1e"),
    ):
        try:
            assert parse() is not None
        except InvalidInput as error:
            assert str(error)


@given(st.lists(st.text(max_size=8), min_size=len(squeue.TASK_FIELDS) + 1, max_size=len(squeue.TASK_FIELDS) + 1))
def test_tasks_of_any_fields_are_read_or_refused(fields: list[str]) -> None:
    mark = "\x1emark\x1e"
    try:
        (row,) = squeue.parse_tasks(mark.join(fields) + f"{mark}\x1d{mark}\n", mark)
    except InvalidInput as error:
        assert str(error)
    else:
        assert row.account == fields[-1].strip() or not row.account
