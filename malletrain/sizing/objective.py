"""What the plan is best for: as the weight of each job's value (`malletrain.sizing.values`).

    w_j = weight of the job x weight of its user x weight of its account x urgency_j

`throughput`   urgency 1: most speed-up in all.
`jct`          urgency T0 / max(x_j, X0), with x_j the seconds that the job's remaining work takes on one node:
               Smith's rule (Naval Research Logistics Quarterly 3, 1956), the least sum of completion times where work
               is done one after the other. Where the rest is not known, the work that was done stands for it: lengths
               of training jobs have heavy tails, so the longer one has run the longer it still takes (least attained
               service, after Tiresias: Gu et al., NSDI 2019).
`srpt`         urgency |{i: x_i >= x_j}| / n over the n jobs: where the shortest ends first, a second by which j ends
               sooner is one for each job behind it. With linear speed-ups this is shortest remaining processing time
               first; where more nodes bring less and less, the least sum of completion times gives longer jobs nodes
               too, by their ranks and not by their lengths (Berg, Vesilo and Harchol-Balter, heSRPT, Performance
               2020). Beside it the objective is alpha-fair, with alpha .5 where the site gives none.
`fair`         urgency 2^(-u_a / s_a), with u_a the part that account a has of all node time used lately and s_a its
               share: the fair-share factor of Slurm's multifactor priority (its classic form). Beside it the
               objective is alpha-fair over speed-ups, with alpha .5 where the site gives none.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from enum import StrEnum

#: T0, seconds on one node: the rest of a job whose urgency is 1.
UNIT_URGENCY_S = 3600.0
#: X0: below this a job is as urgent as can be; it keeps weights within a factor that solvers like.
MIN_REMAINING_S = 60.0


class Objective(StrEnum):
    """What sizing is best for."""

    THROUGHPUT = "throughput"
    JCT = "jct"
    SRPT = "srpt"
    FAIR = "fair"


#: Alpha where the site gives none. `fair`: on seven ImageNet models Jain's index .94 for 3.8 % of the speed-up.
#: `srpt`: in Pollux's simulator the mean completion is shorter than with 0 or 1 (docs/explanation/policies.md).
USUAL_ALPHA = {Objective.SRPT: 0.5, Objective.FAIR: 0.5}


def urgency_by_rest(remaining_s: float | None, attained_s: float) -> float:
    """Urgency of `jct`. Seconds of one node's work: what is left (None: not known) and what was done."""
    rest = attained_s if remaining_s is None else remaining_s
    return UNIT_URGENCY_S / max(rest, MIN_REMAINING_S)


def rest_or_attained(remaining_s: float | None, attained_s: float) -> float:
    """The rest of a job for `srpt`, in seconds of one node's work; where that is not known (None), those that were
    done, in whole powers of two. Jobs that have done nearly the same would take turns at each look, and each turn is
    a resize; Tiresias has queues for that."""
    if remaining_s is not None:
        return remaining_s
    return float(2.0 ** math.floor(math.log2(max(attained_s, MIN_REMAINING_S))))


def urgencies_by_rank(rests: Sequence[float]) -> list[float]:
    """Urgency of `srpt` of each job, in (0, 1], by the seconds of one node's work that are left."""
    ascending = sorted(rests)
    return [(len(rests) - bisect_left(ascending, rest)) / len(rests) for rest in rests]


def urgency_by_use(used: Mapping[str, float], shares: Mapping[str, float], account: str) -> float:
    """Urgency of `fair`. `used`: node time by account, in any unit; `shares`: their shares, 1 where not named.

    Shares are relative: those of all accounts that are named or have used anything add up to the whole.
    """
    total = sum(used.values())
    if total <= 0:
        return 1.0
    accounts = {*used, *shares, account}
    share, whole = shares.get(account, 1.0), sum(shares.get(name, 1.0) for name in accounts)
    if share <= 0 or share / whole <= 0:
        return 0.0
    return float(2.0 ** (-(used.get(account, 0.0) / total) / (share / whole)))


def alpha_of(objective: Objective, alpha: float) -> float:
    """Alpha as the site gives it, or the objective's own."""
    return alpha or USUAL_ALPHA.get(objective, 0.0)
