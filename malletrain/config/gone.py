"""Keys that earlier releases had: an old file still starts, and each is named with the reason why it does nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

#: Why keys, or whole sections, are gone: by their paths, which may lead through tables of which there are several.
_GONE = {
    "there is one daemon, which systemd or the site's cluster manager starts again": "failover",
    "the program of notify.hook gets each message as JSON, and sends it as the site likes":
        "notify.command notify.webhook notify.webhook_token_file notify.webhook_ca notify.mail_domain "
        "notify.domains",
    "it follows from breaker.preemptions_per_hour: a half, a tenth and a sixth of it":
        "breaker.slow_exits_per_hour breaker.ailing_nodes_per_hour breaker.faults_of_job",
    "it is actuator.jsonl in the unit's LogsDirectory": "actuator.audit_log",
    "the actuator starts 300 tasks in a minute at most": "actuator.starts_per_minute",
    "the actuator cancels 2,000 tasks in an hour at most": "actuator.cancels_per_hour",
    "clients check the certificate by its authority: client.toml has `ca`": "api.certificate",
    "the daemon stands back for 30 minutes": "breaker.pause_minutes",
    "30 looks at slow cycles are too many on any machine": "breaker.slow_cycles_per_hour",
    "horizons of 120 to 600 s were alike where they were measured: it is 300 s": "loop.horizon_s",
    "the queue is looked at five times a tick": "loop.watch_interval_s",
    "choosing nodes by how long their holes may last gained nothing where it was measured": "loop.forecast",
    "the log is text on a terminal and JSON elsewhere": "log.format",
    "a pilot on which no worker joins leaves after 15 minutes": "pilot.join_minutes",
    "a live job that trains nothing leaves its nodes after 30 minutes": "pilot.idle_minutes",
    "it is two backfill cycles, which Slurm itself names": "pilot.start_patience_s",
    "pool.include names the few nodes to begin with": "pool.stage pool.few_pilots",
    "`malletrain doctor` says which pool.keep_idle does no harm to the site's hetjobs": "pool.spare_hetjobs",
    "one promise on delays is kept: main_delay_p95": "promise.main_delay_mean",
    "pool.keep_idle is what `srun -I` finds": "promise.immediate_refusals",
    "a promise is kept with a chance of 90 %": "promise.chance",
    "with controller_cycle 60 pilots start in a minute at most": "promise.starts_per_minute",
    "sizing.account_weights are the shares with objective fair": "sizing.account_shares",
    "jobs mix classes of nodes where that trains more": "sizing.classes",
    "a change of size is weighed by what it costs": "sizing.max_resizes",
    "a job without nodes gets its fewest after 30 minutes": "sizing.max_wait_minutes",
    "every node draws per_node; a group that draws otherwise has a limit of its own":
        "sizing.limits.by_user sizing.limits.by_account",
    "users give their jobs a weight of at most 1; operators may give more": "sizing.max_weight",
    "live jobs are measured, others looked at; `mtbatch --profile` says otherwise for a job": "sizing.profile",
    "a turn has ten minutes": "sizing.turn_minutes",
    "charging.users gives a user an account, which sizing.account_weights weighs": "sizing.user_weights",
    "Slurm's commands have 20 s, twice its own MessageTimeout": "slurm.command_timeout_s",
    "the page is opened by the link of `malletrain web`": "web.proxy_header web.proxy_address web.proxy_secret_file",
    "a browser stays signed in for eight hours": "web.session_hours",
    "a program has 10 s": "notify.timeout_s",
    "a user gets 60 messages an hour at most": "notify.per_hour",
    "the metrics have the times of ticks, looks and Slurm's commands": "traces",
}  # fmt: skip

GONE: Mapping[tuple[str, ...], str] = {
    tuple(path.split(".")): why for why, paths in _GONE.items() for path in paths.split()
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
