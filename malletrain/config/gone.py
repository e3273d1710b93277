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


def without_gone(values: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[tuple[str, ...], ...]]:
    """The values that still mean something, and the paths of those that are gone, whatever was set there."""
    kept = {key: dict(value) if isinstance(value, dict) else value for key, value in values.items()}
    found = []
    for path in GONE:
        table: object = kept
        for key in path[:-1]:
            table = table.get(key) if isinstance(table, dict) else None
        if isinstance(table, dict) and path[-1] in table:
            del table[path[-1]]
            found.append(path)
    return kept, tuple(found)
