"""What a site allows groups of malleable jobs to hold, as constraints of one sizing problem."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from malletrain.domain.job import JobView
from malletrain.sizing.constraints import cap, guaranteed_share, resource_cap
from malletrain.sizing.problem import Constraint, JobDemand


@dataclass(frozen=True, slots=True)
class SiteLimit:
    """A limit on jobs of some users and accounts together; on all jobs of the harvest partition where none is named.

    Attributes:
        name: what reasons call it.
        users, accounts: a job counts if its user or its account is named.
        most_nodes, least_nodes: a cap, and a guaranteed share, which is given as far as the group wants it.
        available: of something that each node draws (watts, licences, ...), so much is there.
        per_node: what a node of a job draws.
    """

    name: str
    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    most_nodes: int | None = None
    least_nodes: int | None = None
    available: float | None = None
    per_node: float = 1.0

    def covers(self, view: JobView) -> bool:
        """Whether the job counts."""
        everyone = not self.users and not self.accounts
        return everyone or view.job.user in self.users or view.job.account in self.accounts


def constraints_for(
    limits: Sequence[SiteLimit],
    user_share: float,
    views: Mapping[int, JobView],
    demands: Sequence[JobDemand],
    nodes: int,
    *,
    take_turns: bool = False,
) -> tuple[Constraint, ...]:
    """The constraints of one problem; those that no sizes could break are left out.

    `user_share`: most of the nodes that one user's jobs hold while others want some, as a part of them; more where
    nodes would stand idle else, and the minimum of the user's least job: in any case, or where jobs `take_turns` (the
    starvation guard is on) during the turn of such a job only. Else a job that says that it needs every node would
    have them as long as the others are patient.
    """
    found: list[Constraint] = []
    by_id = {int(demand.id): demand for demand in demands}
    for limit in limits:
        mine = [demand for job, demand in by_id.items() if limit.covers(views[job])]
        if not mine:
            continue
        if limit.most_nodes is not None and _most(mine, nodes) > limit.most_nodes:
            found.append(cap(f"{limit.name} (most_nodes)", [demand.id for demand in mine], limit.most_nodes))
        if limit.least_nodes:
            found.append(guaranteed_share(f"{limit.name} (least_nodes)", mine, limit.least_nodes, nodes))
        if limit.available is not None:
            drawn = dict.fromkeys([demand.id for demand in mine], limit.per_node)
            found.append(resource_cap(f"{limit.name} (available)", drawn, limit.available))
    if user_share < 1.0:
        users: dict[str, list[JobDemand]] = {}
        for job, demand in by_id.items():
            users.setdefault(views[job].job.user, []).append(demand)
        part = math.floor(user_share * nodes)
        share = max(part, _fair_level([_most(mine, nodes) for mine in users.values()], nodes))
        least = {user: min(max(demand.min, 1) for demand in mine) for user, mine in users.items()}
        on_turn = {user for user, mine in users.items() if not take_turns or any(d.must_run for d in mine)}
        # Who cannot run on his share waits for his turn; what he would have had the others may hold.
        waiting = {user for user in users if least[user] > share and user not in on_turn}
        others = max(part, _fair_level([_most(m, nodes) for user, m in users.items() if user not in waiting], nodes))
        for user, mine in sorted(users.items()) if len(users) > 1 else ():
            if user in waiting:
                most = share
            elif take_turns:
                most = max(others, min([max(d.min, 1) for d in mine if d.must_run], default=1))
            else:
                most = max(others, least[user])
            if _most(mine, nodes) > most:
                found.append(cap(f"user {user} (sizing.user_share)", [demand.id for demand in mine], most))
    return tuple(found)


def caps_of_unfit(
    unfit: Mapping[int, Collection[str]], demands: Sequence[JobDemand], nodes: int
) -> tuple[Constraint, ...]:
    """Jobs that cannot have some of the `nodes` nodes hold no more than the rest, together: for each set of such
    nodes, the jobs that cannot have any of it. `unfit`: by job, the nodes that it cannot have."""
    of = {int(demand.id): frozenset(unfit[int(demand.id)]) for demand in demands if int(demand.id) in unfit}
    found: list[Constraint] = []
    for barred in dict.fromkeys(of.values()):
        mine = [demand for demand in demands if of.get(int(demand.id), frozenset()) >= barred]
        most = nodes - len(barred)
        if barred and _most(mine, nodes) > most:
            names = ", ".join(f"job {demand.id}" for demand in mine[:3]) + (", ..." if len(mine) > 3 else "")
            found.append(cap(f"nodes that {names} can have", [demand.id for demand in mine], most))
    return tuple(found)


def _fair_level(wants: Sequence[int], nodes: int) -> int:
    """The least number of nodes that each user may hold so that, together, they can hold all that they want, or all
    there are (max-min fairness: progressive filling)."""
    level, left = 0, nodes
    for at, want in enumerate(sorted(wants)):
        share = -(-left // (len(wants) - at))
        if want >= share:
            return share
        level, left = want, left - want
    return level


def _most(demands: Sequence[JobDemand], nodes: int) -> int:
    return min(nodes, sum(demand.max for demand in demands))
