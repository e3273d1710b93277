"""What `malletrain doctor` finds of the reserve: whether it holds a part of the site's heterogeneous jobs alone."""

from __future__ import annotations

import time

from malletrain.cli.replays.replayed_site import replayed_promise
from malletrain.config import Config
from malletrain.decide.rules import Rules
from malletrain.loop.trackers.hetjobs_seen import REMEMBERED_DAYS, HetjobsSeen
from malletrain.slurm.command import Commands
from malletrain.slurm.past_arrivals import past_arrivals
from malletrain.slurm.site.site_facts import Finding, Level


def reserve_findings(commands: Commands, config: Config) -> tuple[Finding, ...]:
    """How many nodes stay idle, and until when, where heterogeneous jobs of late make it fewer than the file says; or
    that they may be put off, where the site lets them. By accounting: without it the daemon alone knows."""
    pool = config.pool
    rules = Rules(
        keep_idle=pool.keep_idle, spare_hetjobs=True, keep_leaves=pool.keep_leaves, promise=replayed_promise(config)
    )
    if not HetjobsSeen.matter(rules):
        return ()
    seen = HetjobsSeen()
    seen.learn(past_arrivals(commands, config.slurm.partition, REMEMBERED_DAYS), time.time())
    if not (notice := seen.notice(rules)):
        return ()
    if pool.spare_hetjobs:
        return (Finding(Level.OK, notice),)
    remedy = (
        "set pool.spare_hetjobs = true, keep as many nodes idle as such a job has, or shorten cred_expire (AuthInfo)"
    )
    return (Finding(Level.WARNING, seen.rules(rules).keep_why, remedy),)
