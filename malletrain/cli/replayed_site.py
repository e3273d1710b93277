"""Which daemon `malletrain replay` replays, a site's own or the one shipped; and the table [replay] of --config."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from malletrain import config as configuration
from malletrain.config import REPLAY_TABLE, Config, ConfigError, Section, faults_of, place_in
from malletrain.decide.rules import Rules
from malletrain.domain.errors import InvalidInput
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


class ReplaySettings(Section):
    """Each key with its bounds, its default and what it does."""

    procs_per_node: Annotated[int | None, Field(ge=1, le=100_000, description="For logs that count processors.")] = (
        None
    )
    costs_from: Annotated[
        str, Field(description="The journal of a daemon: activation and stalls as it measured.")
    ] = ""
    ideal: Annotated[bool, Field(description="No tick, no limits on pilots, no reserve.")] = False
    engine: Annotated[
        Literal["fast", "loop"], Field(description="loop: the daemon's own, a hundred times slower.")
    ] = "fast"
    budget: list[str] = Field(default_factory=list, description="Node-hours, as 500/week or vision=20/day.")
    node_class: list[str] = Field(
        default_factory=list, description="NAME=A:B[@F]: nodes A to B are F times as fast; a100=0:64@3."
    )
    likely_outages: Annotated[
        Literal["leave-out", "count"], Field(description="Idle time that was probably an outage.")
    ] = "leave-out"
    ignore_partition: list[str] = Field(
        default_factory=list, description="Its jobs count as idle time: a harvest partition."
    )
    timezone: Annotated[str, Field(description="For times that name none.")] = "UTC"
    seed: Annotated[int, Field(ge=0, le=2**63 - 1, description="For all random choices.")] = 0
    processes: Annotated[int | None, Field(ge=1, le=1024, description="Replays at once.")] = None


def settings_of(path: Path | None) -> dict[str, Any]:
    """The settings in that file by key; the defaults where there is none, or it cannot be read, which whoever reads
    the rest of it says.

    Raises:
        InvalidInput: a key is not known, with those that are.
        ConfigError: values are not what they may be, all at once.
    """
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
