"""What accounts have used and what they submit: for fair shares, and for budgets that must last for a period.

Of fair shares old use fades by half every week, as Slurm's own counts (slurm.conf(5), PriorityDecayHalfLife, default
7 days). Times are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from malletrain.domain.job import Curve, MalleableJob
from malletrain.sizing.problem import ArrivingWork

USAGE_HALF_LIFE_S = 7 * 86400.0

DAY_S = 86_400.0  #: Unix time has no leap seconds: every UTC day is so long
#: The longest period of a budget is a month.
KEPT_DAYS = 32


@dataclass
class AccountUsage:
    """Folded from the stays of pilots that are over: node-seconds by account, old ones fading; by account and UTC
    day; and by job."""

    faded_at: float = 0.0
    fading: dict[str, float] = field(default_factory=dict)
    by_day: dict[str, dict[int, float]] = field(default_factory=dict)
    by_job: dict[int, float] = field(default_factory=dict)

    def add(self, account: str, job: int, begin: float, end: float) -> None:
        """A pilot of the job has held its node from `begin` to `end`."""
        if end > self.faded_at:
            keep = 0.5 ** ((end - self.faded_at) / USAGE_HALF_LIFE_S) if self.faded_at else 1.0
            self.fading = {name: keep * used for name, used in self.fading.items()}
            self.faded_at = end
        seconds = end - begin
        if seconds <= 0:
            return
        faded = 0.5 ** ((self.faded_at - end) / USAGE_HALF_LIFE_S)  # 1, but for what is told late
        self.fading[account] = self.fading.get(account, 0.0) + faded * seconds
        self.by_job[job] = self.by_job.get(job, 0.0) + seconds
        days = self.by_day.setdefault(account, {})
        last = int(end // DAY_S)
        for day in range(max(int(begin // DAY_S), last - KEPT_DAYS), last + 1):
            days[day] = days.get(day, 0.0) + min(end, (day + 1) * DAY_S) - max(begin, day * DAY_S)
        for day in [day for day in days if day < last - KEPT_DAYS]:
            del days[day]

    def of_account(self, account: str, since: float) -> float:
        """Node-seconds of the account since `since`, the beginning of a UTC day."""
        first = int(since // DAY_S)
        return sum(used for day, used in self.by_day.get(account, {}).items() if day >= first)


#: How far back submissions count, and how many jobs of an account at most.
KEPT_S = 28 * 86400.0
MAX_JOBS_PER_ACCOUNT = 100
#: An account that has been seen for less than this is taken to submit as much in each such time to come.
MIN_SEEN_S = 86400.0


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """When a job came, of which account, and its whole work in seconds on one node."""

    at: float
    account: str
    work_s: float
    curve: Curve
    weight: float


def arriving(accounts: Collection[str], jobs: Iterable[SubmittedJob | None], now: float) -> tuple[ArrivingWork, ...]:
    """Jobs such as these accounts submit, each at the rate at which it came: once in the time that was seen. `jobs`:
    of any account, over or not; None: nothing is known of one's work."""
    found = [job for job in jobs if job is not None and job.account in accounts]
    recent = sorted((job for job in found if now - KEPT_S < job.at <= now), key=lambda job: job.at)
    recent = recent[-MAX_JOBS_PER_ACCOUNT:]
    if not recent:
        return ()
    per_s = 1.0 / max(MIN_SEEN_S, now - recent[0].at)
    return tuple(ArrivingWork(job.curve, job.work_s, per_s, job.weight) for job in recent)


def submitted_work(job: MalleableJob, curve: Curve | None, done: float, left_s: float) -> SubmittedJob | None:
    """A job with `done` samples, and `left_s` seconds on one node to go; None where its speed is not known."""
    one = curve.throughput(1) if curve is not None else 0.0
    work_s = left_s + (done / one if one > 0 else 0.0)
    if curve is None or one <= 0 or work_s <= 0:
        return None
    sizes, size = {*job.sizes, job.max_nodes}, max(1, job.min_nodes)
    while size < job.max_nodes:
        sizes.add(size)
        size = max(size + 1, size * 9 // 8)
    speedups = Curve(tuple((n, curve.throughput(n) / one) for n in sorted(sizes) if job.permits(n)))
    return SubmittedJob(job.submitted_at, job.account, work_s, speedups, job.weight)
