"""What `malletrain doctor` finds of the reserve: whether it holds a part of the site's heterogeneous jobs alone.

Of a hetjob, Slurm starts the part that finds idle nodes, gives it up again where another part must preempt, and
puts the whole off by cred_expire and a second (`_het_job_kill_now` in src/plugins/sched/backfill/backfill.c). Where
no part finds nodes, it puts nothing off. So a reserve that holds a part of a hetjob alone is worse than none.
"""

from __future__ import annotations

from collections.abc import Iterable

from malletrain.config import Config
from malletrain.slurm.command import Commands
from malletrain.slurm.queries import past_arrivals
from malletrain.slurm.site.site_facts import Finding, Level

#: A site that has had none for so many days is taken for one that has none.
LOOKED_BACK_DAYS = 7


def reserve_findings(commands: Commands, config: Config) -> tuple[Finding, ...]:
    """Whether pool.keep_idle would put off heterogeneous jobs of the last week, by accounting. A reserve by leaves,
    or one that a promise on delays makes as large as it must be, is not looked at."""
    pool = config.pool
    if not pool.keep_idle or pool.keep_leaves or config.promise.main_delay_p95 is not None:
        return ()
    seen = hetjobs_in(past_arrivals(commands, config.slurm.partition, LOOKED_BACK_DAYS))
    harmless, width = harmless_reserve(pool.keep_idle, seen)
    if not width:
        return ()
    what = (
        f"pool.keep_idle = {pool.keep_idle} lets Slurm start a part of heterogeneous jobs of {width} nodes, "
        "and put the whole off by minutes"
    )
    remedy = f"set pool.keep_idle to {harmless}, or to {width} or more, or shorten cred_expire (AuthInfo)"
    return (Finding(Level.WARNING, what, remedy),)


def hetjobs_in(arrivals: Iterable[tuple[str, float, int]]) -> list[tuple[int, int]]:
    """The nodes of all components and of the smallest, of each heterogeneous job among main jobs: id (`12+0` of a
    component), submission, nodes."""
    parts: dict[str, list[int]] = {}
    for identity, _, nodes in arrivals:
        number, plus, _ = identity.partition("+")
        if plus:
            parts.setdefault(number, []).append(nodes)
    return [(sum(nodes), min(nodes)) for nodes in parts.values()]


def harmless_reserve(keep_idle: int, hetjobs: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """The largest reserve of at most `keep_idle` nodes that holds a part of none of `hetjobs` without the whole, and
    the nodes of the widest that a larger one would put off (0: none)."""
    nodes, widest = keep_idle, 0
    for width, least in sorted(set(hetjobs), reverse=True):
        if least <= nodes < width:
            nodes, widest = max(0, least - 1), max(widest, width)
    return nodes, widest
