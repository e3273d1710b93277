"""The rules that `malletrain replay` replays are those that the daemon makes of the same configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from malletrain import config as configuration
from malletrain.cli.replayed_site import replayed_rules, site_of
from malletrain.site_rules import rules_from
from malletrain.slurm.site.site_facts import parse

SITES = Path(__file__).resolve().parents[2] / "site-configs"
CONFIG = """Configuration data as of 2026-11-20T12:00:00
ClusterName             = lab
{more}SLURM_VERSION           = 24.11.5
"""
PARTITION = "PartitionName=harvest PriorityTier=0 PreemptMode=REQUEUE MaxTime=UNLIMITED Nodes=n[1-9] State=UP"


@pytest.mark.parametrize("more", ["", "KillWait                = 45 sec\nOverTimeLimit           = 1 min\n"])
@pytest.mark.parametrize("file", ["small.toml", "large.toml", "own"])
def test_the_replayed_daemon_has_the_daemons_rules(file: str, more: str) -> None:
    own = '[pool]\nexclude = ["n[1-3]"]\n'
    own += "[pilot]\nmargin_s = 12\nmax_minutes = 20\n"
    config = configuration.parse(own, "own") if file == "own" else configuration.load(SITES / file)
    said = CONFIG.format(more=more)
    live = rules_from(config, parse(said, PARTITION))
    assert replayed_rules(config, said) == replace(live.with_exits(None), exit_s=None)


def test_what_is_shipped_are_the_defaults() -> None:
    assert site_of(None).config == configuration.load(SITES / "small.toml").model_copy(
        update={"operators": [], "slurm": site_of(None).config.slurm}
    )
