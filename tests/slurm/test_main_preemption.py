"""Which main partitions preempt each other, in the facts of a site."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.slurm.site import partition_checks
from malletrain.slurm.site.doctor import check_main_partitions, preemptible_partitions
from malletrain.slurm.site.site_facts import Finding, Harvest, Level, PartitionFacts, SiteFacts
from tests.messages import says
from tests.slurm.test_site import BASE


def partition(name: str, tier: int, mode: str, nodes: str = "n0 n1") -> PartitionFacts:
    return PartitionFacts(name, tier, mode, 0.0, None, frozenset(nodes.split()), "UP")


def having(*partitions: PartitionFacts, preempt_type: str = "preempt/partition_prio", mode: str = "") -> SiteFacts:
    every = (*partitions, partition("harvest", 0, "REQUEUE", "n0 n1 n2 n3"))
    return replace(
        BASE, preempt_type=preempt_type, preempt_mode=mode or "REQUEUE", partitions={p.name: p for p in every}
    )


def pairs(facts: SiteFacts) -> set[tuple[str, str]]:
    found = preemptible_partitions(facts, "harvest")
    return {(preemptor.name, victim.name) for victim, others in found for preemptor in others}


def findings(facts: SiteFacts, *deliberate: str) -> list[Finding]:
    return list(check_main_partitions(facts, "harvest", deliberate))


@pytest.mark.parametrize("mode", ["REQUEUE", "CANCEL", "SUSPEND", "GANG,SUSPEND", "GANG,REQUEUE", "REQUEUE,PRIORITY"])
def test_every_mode_that_preempts_is_seen(mode: str) -> None:
    facts = having(partition("high", 20, "OFF"), partition("low", 10, mode))
    assert pairs(facts) == {("high", "low")}
    assert [f.level for f in findings(facts)] == [Level.ERROR]


@pytest.mark.parametrize("mode", ["OFF", "GANG", ""])
def test_no_other_mode_preempts(mode: str) -> None:
    facts = having(partition("high", 20, "REQUEUE"), partition("low", 10, mode))
    assert pairs(facts) == set()
    assert [(f.level, says(f.what, "no main")) for f in findings(facts)] == [(Level.OK, True)]


def test_equal_tiers_and_other_nodes_do_not_preempt() -> None:
    facts = having(
        partition("a", 10, "REQUEUE"), partition("b", 10, "REQUEUE"), partition("c", 20, "REQUEUE", "n2 n3")
    )
    assert pairs(facts) == set()


@pytest.mark.parametrize(("kind", "mode"), [("preempt/none", "OFF"), ("", "OFF"), ("preempt/qos", "REQUEUE")])
def test_partitions_do_not_count_where_preemption_is_off_or_by_qos(kind: str, mode: str) -> None:
    facts = having(partition("high", 20, "OFF"), partition("low", 10, "REQUEUE"), preempt_type=kind, mode=mode)
    assert findings(facts) == []


def test_every_pair_is_named_with_what_happens() -> None:
    facts = having(
        partition("debug", 30, "CANCEL"), partition("high", 20, "REQUEUE"), partition("low", 10, "REQUEUE")
    )
    assert pairs(facts) == {("debug", "high"), ("debug", "low"), ("high", "low")}
    high, low = findings(facts)
    assert says(high.what, "high (tier 20, PreemptMode=REQUEUE)", "requeued", "debug (tier 30)")
    assert says(low.what, "debug (tier 30), high (tier 20)")
    assert says(low.remedy, "PreemptMode=OFF", "partition low")


def test_what_a_site_means_is_no_fault() -> None:
    facts = having(partition("high", 20, "OFF"), partition("low", 10, "CANCEL"))
    (finding,) = findings(facts, "low")
    assert (finding.level, finding.remedy) == (Level.OK, "")
    assert says(finding.what, "low", "killed", "high (tier 20)")
    unknown = findings(facts, "low", "lwo", "harvest")[-1]
    assert (unknown.level, "names harvest, lwo" in unknown.what) == (Level.WARNING, True)


@pytest.mark.parametrize(
    ("mode", "own", "said"),
    [
        ("OFF", "OFF", ("PreemptMode=REQUEUE, PreemptMode=OFF", "debug", "long")),
        ("GANG", "GANG", ("PreemptMode=REQUEUE,GANG, PreemptMode=GANG", "debug", "long")),
    ],
)
def test_who_turns_preemption_on_is_told_the_partitions_to_leave_out(
    mode: str, own: str, said: tuple[str, ...]
) -> None:
    facts = having(partition("long", 10, own), partition("debug", 20, own), preempt_type="", mode=mode)
    (finding,) = partition_checks.check_harvest_partition(facts, Harvest("harvest"))
    assert finding.level is Level.ERROR
    assert says(finding.remedy, *said, "`scontrol reconfigure`")
