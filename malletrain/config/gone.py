"""Keys that earlier releases had: an old file still starts, and each is named with the reason why it does nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

#: Why a key, or a whole section, is gone; by its path, which may lead through tables of which there are several.
GONE: Mapping[tuple[str, ...], str] = {
    ("failover",): "there is one daemon, which systemd or the site's cluster manager starts again",
    **dict.fromkeys(
        [
            ("notify", key)
            for key in ("command", "webhook", "webhook_token_file", "webhook_ca", "mail_domain", "domains")
        ],
        "the program of notify.hook gets each message as JSON, and sends it as the site likes",
    ),
    **dict.fromkeys(
        [("breaker", key) for key in ("slow_exits_per_hour", "ailing_nodes_per_hour", "faults_of_job")],
        "it follows from breaker.preemptions_per_hour: a half, a tenth and a sixth of it",
    ),
    ("actuator", "audit_log"): "it is actuator.jsonl in the unit's LogsDirectory",
    ("actuator", "starts_per_minute"): "the actuator starts 300 tasks in a minute at most",
    ("actuator", "cancels_per_hour"): "the actuator cancels 2,000 tasks in an hour at most",
    ("api", "certificate"): "clients check the certificate by its authority: client.toml has `ca`",
    ("breaker", "pause_minutes"): "the daemon stands back for 30 minutes",
    ("breaker", "slow_cycles_per_hour"): "30 looks at slow cycles are too many on any machine",
    ("loop", "horizon_s"): "horizons of 120 to 600 s were alike where they were measured: it is 300 s",
    ("loop", "watch_interval_s"): "the queue is looked at five times a tick",
    ("loop", "forecast"): "choosing nodes by how long their holes may last gained nothing where it was measured",
    ("log", "format"): "the log is text on a terminal and JSON elsewhere",
    ("pilot", "join_minutes"): "a pilot on which no worker joins leaves after 15 minutes",
    ("pilot", "idle_minutes"): "a live job that trains nothing leaves its nodes after 30 minutes",
    ("pilot", "start_patience_s"): "it is two backfill cycles, which Slurm itself names",
    **dict.fromkeys([("pool", "stage"), ("pool", "few_pilots")], "pool.include names the few nodes to begin with"),
    ("pool", "spare_hetjobs"): "`malletrain doctor` says which pool.keep_idle does no harm to the site's hetjobs",
    ("promise", "main_delay_mean"): "one promise on delays is kept: main_delay_p95",
    ("promise", "immediate_refusals"): "pool.keep_idle is what `srun -I` finds",
    ("promise", "chance"): "a promise is kept with a chance of 90 %",
    ("promise", "starts_per_minute"): "with controller_cycle 60 pilots start in a minute at most",
    ("sizing", "account_shares"): "sizing.account_weights are the shares with objective fair",
    ("sizing", "classes"): "jobs mix classes of nodes where that trains more",
    ("sizing", "max_resizes"): "a change of size is weighed by what it costs",
    ("sizing", "max_wait_minutes"): "a job without nodes gets its fewest after 30 minutes",
    **dict.fromkeys(
        [("sizing", "limits", key) for key in ("by_user", "by_account")],
        "every node draws per_node; a group that draws otherwise has a limit of its own",
    ),
    ("sizing", "max_weight"): "users give their jobs a weight of at most 1; operators may give more",
    ("sizing", "profile"): "live jobs are measured, others looked at; `mtbatch --profile` says otherwise for a job",
    ("sizing", "turn_minutes"): "a turn has ten minutes",
    ("sizing", "user_weights"): "charging.users gives a user an account, which sizing.account_weights weighs",
    ("slurm", "command_timeout_s"): "Slurm's commands have 20 s, twice its own MessageTimeout",
    **dict.fromkeys(
        [("web", key) for key in ("proxy_header", "proxy_address", "proxy_secret_file")],
        "the page is opened by the link of `malletrain web`",
    ),
    ("web", "session_hours"): "a browser stays signed in for eight hours",
    ("notify", "timeout_s"): "a program has 10 s",
    ("notify", "per_hour"): "a user gets 60 messages an hour at most",
    ("traces",): "the metrics have the times of ticks, looks and Slurm's commands",
}


def without_gone(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[tuple[str, ...], str]]:
    """The values that still mean something, and for each path that is gone, why; whatever was set there."""
    kept, found = deepcopy(dict(values)), {}
    for path, why in GONE.items():
        for table in _tables(kept, path[:-1]):
            if table.pop(path[-1], None) is not None:
                found[path] = why
    return kept, found


def _tables(value: object, path: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The tables at a path, of which there may be any number."""
    if isinstance(value, list):
        for each in value:
            yield from _tables(each, path)
    elif isinstance(value, dict) and not path:
        yield value
    elif isinstance(value, dict) and path[0] in value:
        yield from _tables(value[path[0]], path[1:])
