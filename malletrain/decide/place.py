"""Which nodes: a job keeps what it holds; growth takes the longest holes, shrinking gives up the shortest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from malletrain.domain.decision import Hole
from malletrain.domain.job import JobView, Pilot


@dataclass(frozen=True, slots=True)
class Placement:
    """`keep`: job -> pilots that stay; `drop`: job -> pilots that leave; `take`: job -> holes to start on;
    `short`: job -> how many nodes its size still lacks, because nodes that others leave are not free yet."""

    keep: Mapping[int, tuple[Pilot, ...]] = field(default_factory=dict)
    drop: Mapping[int, tuple[Pilot, ...]] = field(default_factory=dict)
    take: Mapping[int, tuple[Hole, ...]] = field(default_factory=dict)
    short: Mapping[int, int] = field(default_factory=dict)


def place(
    sizes: Mapping[int, int],
    jobs: Mapping[int, JobView],
    stays: Mapping[int, Sequence[Pilot]],
    free: Sequence[Hole],
    weights: Mapping[str, int],
) -> Placement:
    """Turn counts into nodes.

    `stays` are the pilots that may stay, `free` the holes that may be started on, `weights` Slurm's node Weight:
    the main queue prefers low ones, so of equally long holes the heaviest is taken first. Jobs whose nodes cost
    most to start choose first, then the lower id. Deterministic.
    """
    until = {hole.node: hole.until for hole in free}
    holes = sorted(free, key=lambda h: (-h.until, -weights.get(h.node, 1), h.node))
    keep: dict[int, tuple[Pilot, ...]] = {}
    drop: dict[int, tuple[Pilot, ...]] = {}
    take: dict[int, tuple[Hole, ...]] = {}
    short: dict[int, int] = {}
    for job_id in sorted(sizes, key=lambda j: (-jobs[j].costs.activate_s, j)):
        size = sizes[job_id]
        # A pilot that trains is worth more than one that Slurm has not started; the sooner it ends, the less.
        ranked = sorted(
            stays.get(job_id, ()),
            key=lambda p: (p.started_at is None, -(p.ends_at or until.get(p.node, 0.0)), p.id),
        )
        keep[job_id] = tuple(ranked[:size])
        drop[job_id] = tuple(ranked[size:])
        wanted = size - len(keep[job_id])
        take[job_id] = tuple(holes[:wanted])
        del holes[:wanted]
        if wanted > len(take[job_id]):
            short[job_id] = wanted - len(take[job_id])
    return Placement(keep, drop, take, short)
