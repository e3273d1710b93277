"""One node is harvested to learn how long pilots take to leave, where the promise bears it.

Until a pilot has left, 70 s are reckoned with. On a busy machine no reserve but the whole keeps a tight promise
then, so that nothing is harvested, and nothing learnt: not even that nodes are free within a second. A promise lets
some jobs be late, though: that of 95 % one of 66, with a chance of 90 %.
"""

from __future__ import annotations

from dataclasses import replace

from malletrain.decide.promise.kept_promise import PromiseKept
from malletrain.decide.promise.promised_reserve import (
    P95,
    MainPromise,
    PromisedReserve,
    YieldTimes,
    lower_share,
)

#: From so many main jobs that pilots gave way to it is known how long they take to leave: one may have been slow.
ENOUGH_YIELDS = 20


def with_trial_pilot(
    held: PromisedReserve, promise: MainPromise, times: YieldTimes, at_hand: int, seen: PromiseKept
) -> PromisedReserve:
    """`held`, less one node where that is all `at_hand` nodes, few pilots have been seen to give way, and the promise
    is kept even if one more of the main jobs `seen` is late."""
    if len(times.took_s) >= ENOUGH_YIELDS or not 0 < at_hand <= held.nodes:
        return held
    longest_s = max(times.took_s, default=times.expected_s) + times.cycle_s
    if not shows_kept(promise, replace(seen, delays_s=(*seen.delays_s, longest_s))):
        return held
    why = "but for one node, by which it is learnt how long pilots take to leave"
    return PromisedReserve(at_hand - 1, f"{held.reason}; {why}", held.expected)


def shows_kept(promise: MainPromise, seen: PromiseKept) -> bool:
    """Whether these jobs show the promise to be kept, with its chance."""
    if promise.p95_s is None:
        return True
    return lower_share(seen.jobs - seen.late(promise.p95_s), seen.jobs, promise.chance) >= P95
