"""Which windows of training are believed, and which are left out and why. Pure."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from statistics import median
from typing import NamedTuple

from malletrain.domain.job import Curve, ThroughputSample
from malletrain.learn.curve_families import Scaling
from malletrain.sizing.problem import MAX_NODES

#: Windows that are kept of each size.
MAX_WINDOWS_PER_SIZE = 32
#: Windows that are kept of a job: they last seconds, so this is hours of training.
MAX_WINDOWS = 512
#: Samples/s beyond which a number is taken for nonsense.
MAX_SAMPLES_PER_S = 1e15
#: A gradient noise scale beyond which a number is taken for nonsense (samples).
MAX_NOISE_SCALE = 1e15
#: A window this far from its size's median (as a ratio) is a fault, where three or more windows tell.
MAX_RATIO_TO_MEDIAN = 2.0
#: Of two windows that differ by more than this ratio the faster one is believed: what disturbs a window slows it.
MAX_RATIO_OF_TWO = 1.25
#: More throughput a node than on fewer nodes by this factor is a fault of one of the two.
SUPERLINEAR_RATIO = 3.0
#: Throughput has changed where so many windows of a size in a row all lie on one side of the median of as many
#: before, by so much.
DRIFT_WINDOWS = 5
MIN_DRIFT_LOG_RATIO = 0.1
#: Windows whose steps differ by more in samples are of another batch.
MAX_BATCH_RATIO = 1.1


class _Kept(NamedTuple):
    number: int
    batch: float  #: samples a step, or of the whole window where its steps are not known
    log_rate: float
    sample: ThroughputSample


class KeptWindows:
    """The windows of training of one job that are kept, in order: of each size and batch the newest, so that hours at
    one size do not displace the others, and all of the phase that the job is in."""

    def __init__(self) -> None:
        self._by_kind: dict[tuple[int, str, int], deque[_Kept]] = {}  # nodes, class of nodes, and about which batch
        self._taken = 0  # so many windows were ever kept
        self._unchanged: list[_Kept] = []  # the last that were looked at together, with no change among them

    def __iter__(self) -> Iterator[ThroughputSample]:
        return (kept.sample for kept in sorted(chain.from_iterable(self._by_kind.values())))

    def keep(self, sample: ThroughputSample) -> None:
        """Take in the next window, and drop the oldest beyond `MAX_WINDOWS_PER_SIZE` or `MAX_WINDOWS`."""
        self._taken += 1
        batch = sample.samples / max(sample.steps, 1)
        kind = sample.nodes, sample.node_class, round(batch) if sample.steps > 0 else 0
        same = self._by_kind.setdefault(kind, deque(maxlen=MAX_WINDOWS_PER_SIZE))
        same.append(_Kept(self._taken, batch, _log_rate(sample), sample))
        if sum(map(len, self._by_kind.values())) > MAX_WINDOWS:
            self._drop_before(1 + min(same[0].number for same in self._by_kind.values()))

    def forget_earlier_phase(self, latest: ThroughputSample) -> float | None:
        """Drop the windows from before throughput changed at the size, batch and class of nodes of the `latest` one.

        Returns when the phase that the job is in now began (Unix seconds), None where nothing has changed. In another
        phase a job may scale otherwise, at every size. To be called after each window.
        """
        batch = latest.samples / max(latest.steps, 1)
        least, most = batch / MAX_BATCH_RATIO, batch * MAX_BATCH_RATIO  # a last one may be short
        alike: list[_Kept] = []
        for (*place, about), same in self._by_kind.items():
            if place == [latest.nodes, latest.node_class]:
                surely = least <= about - 0.5 and about + 0.5 <= most
                alike += same if surely else [kept for kept in same if least <= kept.batch <= most]
        alike.sort()
        before, self._unchanged = self._unchanged, alike
        if alike[:-1] == before[1 - len(alike) :]:  # then only the newest can tell of a change
            alike = alike[-2 * DRIFT_WINDOWS :]
        first = _change([kept.log_rate for kept in alike])
        if first is None:
            return None
        self._drop_before(alike[first].number)
        self._unchanged = []
        return alike[first].sample.at

    def _drop_before(self, number: int) -> None:
        for kind, same in list(self._by_kind.items()):
            while same and same[0].number < number:
                same.popleft()
            if not same:
                del self._by_kind[kind]


def valid_samples(samples: Iterable[ThroughputSample]) -> tuple[list[ThroughputSample], dict[str, int]]:
    """The samples that can be right by themselves, and how many were left out, by reason."""
    looked_at = [(sample, invalid_reason(sample)) for sample in samples]
    ignored = Counter(wrong for _, wrong in looked_at if wrong)
    return [sample for sample, wrong in looked_at if not wrong], dict(ignored)


def consistent_rates(samples: Iterable[ThroughputSample]) -> tuple[dict[int, list[float]], dict[str, int]]:
    """Of sound samples the rates by size, without those that the others contradict."""
    ignored: Counter[str] = Counter()
    windows: dict[int, list[float]] = {}
    for sample in samples:
        windows.setdefault(sample.nodes, []).append(sample.rate)
    for nodes, rates in windows.items():
        if len(rates) >= 3:
            middle = median(rates)
            near = [rate for rate in rates if middle / MAX_RATIO_TO_MEDIAN <= rate <= middle * MAX_RATIO_TO_MEDIAN]
            ignored["far from the other samples at its size"] += len(rates) - len(near)
            windows[nodes] = near
        elif len(rates) == 2 and max(rates) > MAX_RATIO_OF_TWO * min(rates):
            ignored["far slower than the other sample at its size"] += 1
            windows[nodes] = [max(rates)]
    windows = {nodes: rates for nodes, rates in windows.items() if rates}
    while (liar := _superlinear(windows)) is not None:
        ignored["more throughput a node than other sizes by far"] += len(windows.pop(liar))
    return windows, {reason: count for reason, count in sorted(ignored.items()) if count}


def by_class(
    samples: Sequence[ThroughputSample],
) -> tuple[list[ThroughputSample], list[list[ThroughputSample]]]:
    """The samples on nodes of the class that the job trains on now, the latest sample's, and those of each other."""
    found: dict[str, list[ThroughputSample]] = {}
    for sample in samples:
        found.setdefault(sample.node_class, []).append(sample)
    present = found.pop(samples[-1].node_class) if samples else []
    return present, [found[name] for name in sorted(found)]


def since_drift(samples: Sequence[ThroughputSample]) -> tuple[list[ThroughputSample], list[ThroughputSample]]:
    """Sound samples from before throughput last changed at a size that was seen before and after, and those since.

    A single slow window is no change, nor is one of another size: sizes differ.
    """
    by_size: dict[int, list[int]] = {}  # samples come in the order of the journal; clocks may jump
    for index, sample in enumerate(samples):
        by_size.setdefault(sample.nodes, []).append(index)
    changes = ((indices, _change([_log_rate(samples[i]) for i in indices])) for indices in by_size.values())
    first = max((indices[change] for indices, change in changes if change is not None), default=0)
    return list(samples[:first]), list(samples[first:])


def _log_rate(sample: ThroughputSample) -> float:
    return math.log(sample.samples) - math.log(sample.seconds)


def _change(rates: Sequence[float]) -> int | None:
    """With which of the windows of one size, by the logarithms of their rates, the latest change begins."""
    found = None
    for first in range(len(rates) - DRIFT_WINDOWS, DRIFT_WINDOWS - 1, -1):
        usual = median(rates[first - DRIFT_WINDOWS : first])
        since = rates[first : first + DRIFT_WINDOWS]
        if min(since) - usual > MIN_DRIFT_LOG_RATIO or max(since) - usual < -MIN_DRIFT_LOG_RATIO:
            found = first  # several in a row tell of the same change: it begins with the first of them
        elif found is not None:
            break
    return found


def scaling_of(samples: Sequence[ThroughputSample]) -> Scaling | None:
    """Whether all windows have about one total batch, or one batch a node; None where they do not say."""
    batches = [(sample.nodes, sample.samples / sample.steps) for sample in samples if sample.steps > 0]
    if len(batches) < len(samples) or not batches:
        return None
    total, each = [batch for _, batch in batches], [batch / nodes for nodes, batch in batches]
    same_total, same_each = (max(of) <= MAX_BATCH_RATIO * min(of) for of in (total, each))
    if same_total == same_each:
        return None
    return Scaling.STRONG if same_total else Scaling.WEAK


def invalid_reason(sample: ThroughputSample) -> str:
    """Why a single sample cannot be right; empty when it can."""
    if isinstance(sample.nodes, bool) or not isinstance(sample.nodes, int) or not 1 <= sample.nodes <= MAX_NODES:
        return "the node count is not a number that can be"
    if not (math.isfinite(sample.seconds) and sample.seconds > 0):
        return "the time is not above zero"
    if not (math.isfinite(sample.samples) and sample.samples > 0):
        return "the rate is not above zero"
    if abs(_log_rate(sample)) > math.log(MAX_SAMPLES_PER_S):
        return "the rate is absurd"
    return ""


def _superlinear(windows: Mapping[int, Sequence[float]]) -> int | None:
    """The size that contradicts most others by far more throughput a node on more nodes.

    Of equals the one with the fewest windows, then the largest size.
    """
    a_node = {nodes: median(rates) / nodes for nodes, rates in windows.items()}
    clashes: Counter[int] = Counter()
    for small in a_node:
        for large in a_node:
            if small < large and a_node[large] > SUPERLINEAR_RATIO * a_node[small]:
                clashes[small] += 1
                clashes[large] += 1
    return max(clashes, key=lambda n: (clashes[n], -len(windows[n]), n), default=None)


#: Throughput a node on more nodes, over that on the fewest given: caches may help a little.
MAX_SUPERLINEAR_RATIO = 1.1
#: Windows of one size that tell, and by which factor their median is off when they contradict.
MIN_WINDOWS = 3
MAX_RATIO_TO_CLAIM = 1.25


def plausible(claim: Curve) -> Curve:
    """`claim`, with no more throughput than nodes can bring; the same object where it claims none."""
    fewest, rate = claim.points[0]
    most_a_node = MAX_SUPERLINEAR_RATIO * rate / fewest
    if all(each <= most_a_node * n for n, each in claim.points):
        return claim
    return Curve(tuple((n, min(each, most_a_node * n)) for n, each in claim.points))


def refutation(claim: Curve, samples: Iterable[ThroughputSample], latest: ThroughputSample) -> str:
    """How the windows at the size and on the class of nodes of the `latest` contradict `claim`; '' where they do not.

    A curve that is wrong at one size is not believed at any: its owner's other sizes were not measured here either.
    """
    alike = [each.rate for each in samples if (each.nodes, each.node_class) == (latest.nodes, latest.node_class)]
    if len(alike) < MIN_WINDOWS:
        return ""
    claimed, measured = claim.throughput(latest.nodes), median(alike)
    if claimed <= MAX_RATIO_TO_CLAIM * measured and measured <= MAX_RATIO_TO_CLAIM * claimed:
        return ""
    nodes = "1 node" if latest.nodes == 1 else f"{latest.nodes} nodes"
    return f"{nodes} train {measured:.4g} samples/s, not the {claimed:.4g} of the curve that was given"
