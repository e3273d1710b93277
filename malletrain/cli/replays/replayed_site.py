"""Which daemon `malletrain replay` replays: a site's own, or the one that is shipped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from malletrain import config as configuration
from malletrain.config import Config
from malletrain.decide.rules import Rules
from malletrain.site_rules import rules_from
from malletrain.slurm.site import site_facts


@dataclass(frozen=True, slots=True)
class ReplayedSite:
    """The configuration of a daemon, and what people call it."""

    config: Config
    name: str


def shipped() -> ReplayedSite:
    """What every site begins with."""
    return ReplayedSite(configuration.parse("", "defaults"), "the daemon as shipped")


def of_file(path: Path) -> ReplayedSite | None:
    """A site's own; None for a file that says nothing of a daemon.

    Raises:
        ConfigError: it cannot be read, or holds faults.
    """
    config = configuration.load(path)
    return ReplayedSite(config, f"the daemon of {path.name}") if config.model_fields_set or config.gone else None


def replayed_rules(config: Config, slurm: str = "", epilog_s: float | None = None) -> Rules:
    """The rules of a daemon with that configuration. `slurm`: the output of `scontrol show config`, where it is
    known (else what is not said is Slurm's default); `epilog_s`: how long epilogs take, where measured."""
    facts = site_facts.parse(f"{slurm}\nSLURM_VERSION = unknown\nClusterName = unknown\n", "")
    return replace(rules_from(config, facts).with_exits(epilog_s), exit_s=None)
