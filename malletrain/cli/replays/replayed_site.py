"""Which daemon `malletrain replay` replays: a site's own, or the one that is shipped.

The rules are those that the daemon makes of the same file and of Slurm's settings (`malletrain.daemon.site_rules`); a
test compares the two.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from malletrain import config as configuration
from malletrain.config import Config
from malletrain.decide.promise.promised_reserve import MainPromise
from malletrain.decide.rules import Rules
from malletrain.sizing.objective import Objective
from malletrain.slurm.formats import scalars, text
from malletrain.slurm.formats.hostlist import node_names

#: What the daemon takes an epilog of unknown length for.
UNKNOWN_EPILOG_S = 60.0


def shipped() -> tuple[Config, str]:
    """The configuration that every site begins with, and what it is called."""
    return configuration.parse("", "defaults"), "the daemon as shipped"


def of_file(path: Path) -> tuple[Config, str] | None:
    """A site's own configuration; None for a file that says nothing of a daemon.

    Raises:
        ConfigError: it cannot be read, or holds faults.
    """
    config = configuration.load(path)
    return (config, f"the daemon of {path.name}") if config.model_fields_set or config.gone else None


def replayed_rules(config: Config, slurm: str = "", epilog_s: float | None = None) -> Rules:
    """The rules of a daemon with that configuration. `slurm`: the output of `scontrol show config`, where it is
    known (else KillWait 30 s, OverTimeLimit 0, bf_interval 30 s, no epilog); `epilog_s`: how long epilogs take, where
    measured."""
    said = text.config(slurm)
    parameters = dict(part.partition("=")[::2] for part in said.get("SchedulerParameters", "").split(",") if part)
    margin = config.pilot.margin_s
    interval_s = scalars.number(parameters.get("bf_interval", ""), 30)
    killed_s = scalars.number(said.get("KillWait", ""), 30) + 60.0 * scalars.number(said.get("OverTimeLimit", ""), 0)
    has_epilog = any(said.get(key, "(null)") not in ("(null)", "") for key in ("Epilog", "Epilog[0]"))
    margin_s = killed_s + 5.0 if margin == "auto" else margin
    lead_s = config.loop.tick_s + 5.0
    pool = config.pool
    rules = Rules(
        harvest_partition=config.slurm.partition,
        horizon_s=config.loop.horizon_s,
        objective=Objective(config.sizing.objective),
        alpha=config.sizing.alpha,
        max_resizes=config.sizing.max_resizes or None,
        max_wait_s=60.0 * config.sizing.max_wait_minutes,
        keep_idle=pool.keep_idle,
        spare_hetjobs=pool.spare_hetjobs,
        max_pilots=pool.pilots,
        max_starts=config.starts_at_a_look,
        max_nodes=1 if pool.stage == "few" else config.pilot.max_nodes,
        max_pilot_s=config.pilot.max_minutes * 60.0,
        margin_s=margin_s,
        exit_s=None if margin != "auto" else UNKNOWN_EPILOG_S if has_epilog else 0.0,
        min_hole_s=60.0 + margin_s + lead_s,
        leave_lead_s=lead_s,
        leave_patience_s=config.pilot.leave_patience_s,
        start_patience_s=max(20.0, 2 * interval_s + 10.0),
        include_nodes=node_names(pool.include, "pool.include"),
        exclude_nodes=node_names(pool.exclude, "pool.exclude"),
    )
    return replace(rules.with_exits(epilog_s), exit_s=None)


def replayed_promise(config: Config) -> MainPromise:
    """What the main queue is promised on the delay of its jobs; its chance alone where nothing is."""
    return MainPromise(config.promise.main_delay_p95)
