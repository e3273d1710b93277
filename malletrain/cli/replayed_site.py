"""Which daemon `malletrain replay` replays, a site's own or the one shipped; and the table [replay] of --config."""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from malletrain import config as configuration
from malletrain.config import REPLAY_TABLE, ConfigError, faults_of, place_in
from malletrain.config.sections import Config, Section
from malletrain.decide.rules import Rules
from malletrain.domain.errors import InvalidInput
from malletrain.site_rules import rules_from
from malletrain.slurm.site import site_facts


@dataclass(frozen=True, slots=True)
class ReplayedSite:
    """The configuration of a daemon, what people call it, and whether a site's own file says anything of it."""

    config: Config
    name: str
    is_own: bool


def site_of(path: Path | None) -> ReplayedSite:
    """The daemon of a site's file; as every site begins with it where there is none, or it says nothing of a daemon.
    Raises ConfigError: it cannot be read, or holds faults."""
    config = configuration.parse("", "defaults") if path is None else configuration.load(path)
    if path is not None and (config.model_fields_set or config.gone):
        return ReplayedSite(config, f"the daemon of {path.name}", True)
    return ReplayedSite(config, "the daemon as shipped", False)


def replayed_rules(config: Config, slurm: str = "", epilog_s: float | None = None) -> Rules:
    """The rules of a daemon with that configuration. `slurm`: the output of `scontrol show config`, where it is
    known (else what is not said is Slurm's default); `epilog_s`: how long epilogs take, where measured."""
    facts = site_facts.parse(f"{slurm}\nSLURM_VERSION = unknown\nClusterName = unknown\n", "")
    return replace(rules_from(config, facts).with_exits(epilog_s), exit_s=None)


class ReplaySettings(Section):
    """Each key with its bounds, its default and what it does."""

    procs_per_node: int | None = Field(default=None, ge=1, le=100_000, description="For logs that count processors.")
    costs_from: str = Field(default="", description="The journal of a daemon: activation and stalls as it measured.")
    ideal: bool = Field(default=False, description="No tick, no limits on pilots, no reserve.")
    engine: Literal["fast", "loop"] = Field(
        default="fast", description="loop: the daemon's own, some 20 times slower."
    )
    budget: list[str] = Field(default=[], description="Node-hours, as 500/week or vision=20/day.")
    node_class: list[str] = Field(
        default=[], description="NAME=A:B[@F]: nodes A to B are F times as fast; a100=0:64@3."
    )
    likely_outages: Literal["leave-out", "count"] = Field(
        default="leave-out", description="Idle time that was probably an outage."
    )
    ignore_partition: list[str] = Field(default=[], description="Its jobs count as idle time: a harvest partition.")
    timezone: str = Field(default="UTC", description="For times that name none.")
    seed: int = Field(default=0, ge=0, le=2**63 - 1, description="For all random choices.")
    processes: int | None = Field(default=None, ge=1, le=1024, description="Replays at once.")


def settings_of(path: Path | None) -> dict[str, Any]:
    """The settings in that file by key; the defaults where there is none, or it cannot be read, which whoever reads
    the rest of it says.
    Raises InvalidInput: a key is not known, with those that are; ConfigError: values are not what they may be, all at
    once."""
    table, text = {}, ""
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
            table = tomllib.loads(text).get(REPLAY_TABLE, {})
        except (OSError, ValueError, RecursionError):
            return ReplaySettings().model_dump()
    known = ReplaySettings.model_fields
    for key in table.keys() - known.keys() if isinstance(table, dict) else ():
        raise InvalidInput(str(path), f"{REPLAY_TABLE}.{key} is not known; known are {', '.join(sorted(known))}")
    try:
        return ReplaySettings.model_validate(table).model_dump()
    except ValidationError as error:
        place = place_in(text, str(path))
        raise ConfigError(faults_of(error, lambda keys: f"{place([REPLAY_TABLE, *keys])}{REPLAY_TABLE}.")) from error
