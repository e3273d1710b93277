"""Keys that earlier releases had: an old file still starts, and each is named with the reason why it does nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Why a key, or a whole section, is gone; by its path.
GONE: Mapping[tuple[str, ...], str] = {
    ("failover",): "there is one daemon, which systemd or the site's cluster manager starts again",
    **dict.fromkeys(
        [
            ("notify", key)
            for key in ("command", "webhook", "webhook_token_file", "webhook_ca", "mail_domain", "domains")
        ],
        "the program of notify.hook gets each message as JSON, and sends it as the site likes",
    ),
    ("breaker", "slow_cycles_per_hour"): "30 looks at slow cycles are too many on any machine",
    ("loop", "forecast"): "choosing nodes by how long their holes may last gained nothing where it was measured",
    ("log", "format"): "the log is text on a terminal and JSON elsewhere",
    ("pilot", "start_patience_s"): "it is two backfill cycles, which Slurm itself names",
    ("pool", "few_pilots"): "stage few has four pilots",
    ("promise", "main_delay_mean"): "one promise on delays is kept: main_delay_p95",
    ("promise", "immediate_refusals"): "pool.keep_idle is what `srun -I` finds",
    ("promise", "chance"): "a promise is kept with a chance of 90 %",
    ("promise", "starts_per_minute"): "with controller_cycle 60 pilots start in a minute at most",
    ("sizing", "turn_minutes"): "a turn has ten minutes",
    ("web", "session_hours"): "a browser stays signed in for eight hours",
    ("notify", "timeout_s"): "a program has 10 s",
    ("notify", "per_hour"): "a user gets 60 messages an hour at most",
    ("traces",): "the metrics have the times of ticks, looks and Slurm's commands",
}

#: Why a value of a key that is still there is gone: the key then has its default.
GONE_VALUES: Mapping[tuple[str, ...], tuple[str, str]] = {
    ("loop", "horizon_s"): ("auto", "a horizon by forecast gained nothing over 300 s where it was measured"),
}


def without_gone(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[tuple[str, ...], str]]:
    """The values that still mean something, and for each path that is gone, why; whatever was set there."""
    kept = {key: dict(value) if isinstance(value, dict) else value for key, value in values.items()}
    found = {}
    for path, why in GONE.items():
        if (table := _table(kept, path)) is not None:
            del table[path[-1]]
            found[path] = why
    for path, (value, why) in GONE_VALUES.items():
        if (table := _table(kept, path)) is not None and table[path[-1]] == value:
            del table[path[-1]]
            found[path] = why
    return kept, found


def _table(values: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any] | None:
    """The table that has the last key of `path`, if there is one."""
    table: object = values
    for key in path[:-1]:
        table = table.get(key) if isinstance(table, dict) else None
    return table if isinstance(table, dict) and path[-1] in table else None
