"""What the configuration says of sizing reaches the rules of decisions."""

from __future__ import annotations

import re

import pytest

from malletrain import config
from malletrain.decide.rules import AccountBudget, MainPromise, Period, Rules, SiteLimit
from malletrain.domain.job import Elastic, JobPhase, JobView, Profile
from malletrain.learn.profiling import profile_of
from malletrain.site_rules import rules_from, unknown_names
from malletrain.sizing.objective import Objective
from malletrain.slurm.site.site_facts import PartitionFacts, SiteFacts
from tests.messages import says
from tests.world import job


def facts_of(nodes: frozenset[str]) -> SiteFacts:
    harvest = PartitionFacts("harvest", 1, "REQUEUE", 0.0, None, nodes, "UP")
    batch = PartitionFacts("batch", 1, "OFF", 0.0, None, nodes | {"login1"}, "UP")
    return SiteFacts(
        "22.05.8", "c", 30.0, 0.0, 30.0, 500, 300.0, "partition_prio", "REQUEUE",
        True, False, False, frozenset(), partitions={"harvest": harvest, "batch": batch},
    )  # fmt: skip


def rules(text: str) -> Rules:
    return rules_from(config.parse(text, "malletrain.toml"), facts_of(frozenset({"n1"})))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ()),
        ('operators = ["root"]', ()),
        ('operators = ["nobody-of-this-name"]', ("operators:", "'nobody-of-this-name'")),
        ('[slurm]\npartition = "harvst"', ("slurm.partition:", "harvst", "batch, harvest")),
        ('[slurm]\npreemptible_partitions = ["scav"]', ("slurm.preemptible_partitions:", "scav")),
        ('[pool]\ninclude = ["n[1-6]"]', ("pool.include: n5, n6:", "harvest")),
        ('[pool]\nexclude = ["n1", "login1"]', ()),
        ('[pool]\nexclude = ["m[1-9]"]', ("pool.exclude: m1, m2, m3, m4, m5 and 4 more:",)),
        ("[pool]\nkeep_idle = 3", ()),
        ("[pool]\nkeep_idle = 4", ("pool.keep_idle: 4", "4 nodes")),
        ('[pool]\nkeep_idle = 2\nexclude = ["n[1-2]"]', ("pool.keep_idle: 2", "2 nodes")),
    ],
)
def test_names_that_neither_slurm_nor_the_machine_knows(text: str, said: tuple[str, ...]) -> None:
    facts = facts_of(frozenset({"n1", "n2", "n3", "n4"}))
    found = unknown_names(config.parse(text, "malletrain.toml"), facts)
    assert len(found) == bool(said) and all(says(fault, *said) for fault in found)


def test_without_slurm_the_machines_users_are_checked() -> None:
    text = 'operators = ["nobody-of-this-name"]\n[pool]\ninclude = ["x1"]'
    assert len(unknown_names(config.parse(text, "malletrain.toml"), None)) == 1


def test_objective_weights_wait_and_limits() -> None:
    found = rules(
        """
        [sizing]
        objective = "fair"
        account_weights = { vision = 3.0 }
        user_share = 0.5
        [[sizing.limits]]
        name = "power"
        available = 9000.0
        per_node = 450.0
        [[sizing.limits]]
        name = "ann's"
        users = ["ann"]
        most_nodes = 4
        [[sizing.budgets]]
        name = "biology"
        accounts = ["bio", "genomics"]
        node_hours = 2
        period = "week"
        """
    )
    assert found.objective is Objective.FAIR
    assert (dict(found.account_shares), dict(found.account_weights)) == ({"vision": 3.0}, {})
    assert dict(rules("[sizing]\naccount_weights = { vision = 3.0 }").account_weights) == {"vision": 3.0}
    assert found.limits == (
        SiteLimit("power", available=9000.0, per_node=450.0),
        SiteLimit("ann's", users=frozenset({"ann"}), most_nodes=4),
    )
    assert found.budgets == (AccountBudget("biology", frozenset({"bio", "genomics"}), 7200.0, Period.WEEK),)


def test_by_default_only_the_share_of_one_user_is_limited() -> None:
    found = rules("")
    assert (found.limits, found.user_share) == ((), 0.5)
    assert found.max_wait_s == 1800.0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("most_node = 3", "most_nodes?"),
        ("most_nodes = -1", "sizing.limits.0.most_nodes"),
        ("users = ['a b']", "letters, digits"),
    ],
)
def test_a_wrong_limit_is_named(line: str, said: str) -> None:
    with pytest.raises(config.ConfigError, match=re.escape(said)):
        config.parse(f"[[sizing.limits]]\nname = 'x'\n{line}\n", "malletrain.toml")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("name = 'x'\naccounts = ['a']\nnode_hour = 3", "node_hours?"),
        ("name = 'x'\naccounts = []\nnode_hours = 3", "at least 1"),
        ("name = 'x'\naccounts = ['a']\nnode_hours = 3\nperiod = 'year'", "'day', 'week' or 'month'"),
        ("name = 'x'\naccounts = ['a']\nnode_hours = 3\n[[sizing.budgets]]\nname = 'x'\naccounts = ['b']\n"
         "node_hours = 1", "same name"),
    ],
)  # fmt: skip
def test_a_wrong_budget_is_named(lines: str, said: str) -> None:
    with pytest.raises(config.ConfigError, match=re.escape(said)):
        config.parse(f"[[sizing.budgets]]\n{lines}\n", "malletrain.toml")


def test_by_default_live_jobs_are_measured_and_restarted_ones_only_looked_at() -> None:
    found = rules("").probing
    live, restarted = (JobView(job(1, elastic=how), JobPhase.QUEUED) for how in (Elastic.LIVE, Elastic.RESTART))
    assert (profile_of(live, found), profile_of(restarted, found)) == (Profile.ACTIVE, Profile.PASSIVE)
    asks = JobView(job(1, elastic=Elastic.RESTART, profile=Profile.ACTIVE), JobPhase.QUEUED)
    assert profile_of(asks, found) is Profile.ACTIVE, "who asks for it is measured"


def test_what_the_main_queue_is_promised_reaches_decisions_and_nothing_does_without() -> None:
    assert (rules("").promise, rules("").max_starts) == (None, 50)
    found = rules('[promise]\nmain_delay_p95 = "2s"\n')
    assert found.promise == MainPromise(p95_s=2.0)
    assert found.max_starts == 50
    of_controller = rules('[promise]\ncontroller_cycle = "auto"\n')
    assert of_controller.promise == MainPromise(cycle_ratio=1.5, harmless_cycles=True)
    assert rules("[promise]\ncontroller_cycle = 1.5\n").promise == MainPromise(cycle_ratio=1.5)
    assert of_controller.max_starts == 10, "sixty a minute are ten at each look every ten seconds"
