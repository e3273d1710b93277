"""The rules that `malletrain replay` replays are those that the daemon makes of the same configuration."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from malletrain import config as configuration
from malletrain.cli.replays.replayed_site import replayed_rules, shipped
from malletrain.daemon.site_rules import rules_from
from malletrain.decide.rules import Rules
from malletrain.slurm.site.site_facts import parse

SITES = Path(__file__).resolve().parents[2] / "site-configs"
CONFIG = """Configuration data as of 2026-11-20T12:00:00
ClusterName             = lab
{more}SLURM_VERSION           = 24.11.5
"""
PARTITION = "PartitionName=harvest PriorityTier=0 PreemptMode=REQUEUE MaxTime=UNLIMITED Nodes=n[1-9] State=UP"

#: What no replay has: promises to the main queue, users, accounts, profiling, faults of live jobs, batches of held
#: tasks, classes of nodes.
NOT_REPLAYED = {
    "user_weights", "account_weights", "account_shares", "max_weight", "limits", "user_share", "budgets", "probing",
    "classes", "class_features", "join_s", "idle_s", "max_faults", "set_aside_s", "claim_patience_s", "max_top_up",
    "keep_leaves", "exit_s", "free_s", "promise", "keep_why", "cap_why",
}  # fmt: skip


@pytest.mark.parametrize("more", ["", "KillWait                = 45 sec\nOverTimeLimit           = 1 min\n"])
@pytest.mark.parametrize("file", ["small.toml", "large.toml", "own"])
def test_the_replayed_daemon_has_the_daemons_rules(file: str, more: str) -> None:
    own = '[pool]\nstage = "few"\nspare_hetjobs = true\nexclude = ["n[1-3]"]\n'
    own += "[pilot]\nmargin_s = 12\nmax_minutes = 20\n"
    config = configuration.parse(own, "own") if file == "own" else configuration.load(SITES / file)
    said = CONFIG.format(more=more)
    live = rules_from(config, parse(said, PARTITION))
    live = replace(live.with_exits(None), exit_s=None)
    replayed = replayed_rules(config, said)
    for name in (field.name for field in fields(Rules) if field.name not in NOT_REPLAYED):
        assert getattr(replayed, name) == getattr(live, name), name


def test_what_is_shipped_are_the_defaults() -> None:
    assert shipped()[0] == configuration.load(SITES / "small.toml").model_copy(
        update={"operators": [], "slurm": shipped()[0].slurm}
    )
