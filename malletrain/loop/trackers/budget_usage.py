"""What was spent: node-seconds of pilots by account and UTC day, and by job. Budgets are held against it."""

from __future__ import annotations

from dataclasses import dataclass, field

DAY_S = 86_400.0  #: Unix time has no leap seconds: every UTC day is so long
#: The longest period of a budget is a month.
KEPT_DAYS = 32


@dataclass
class BudgetUsage:
    """Folded from the stays of pilots that are over. Times are Unix seconds."""

    by_account: dict[str, dict[int, float]] = field(default_factory=dict)
    by_job: dict[int, float] = field(default_factory=dict)

    def add(self, account: str, job: int, begin: float, end: float) -> None:
        """A pilot of the job has held its node from `begin` to `end`."""
        if end <= begin:
            return
        self.by_job[job] = self.by_job.get(job, 0.0) + end - begin
        days = self.by_account.setdefault(account, {})
        last = int(end // DAY_S)
        for day in range(max(int(begin // DAY_S), last - KEPT_DAYS), last + 1):
            days[day] = days.get(day, 0.0) + min(end, (day + 1) * DAY_S) - max(begin, day * DAY_S)
        for day in [day for day in days if day < last - KEPT_DAYS]:
            del days[day]

    def of_account(self, account: str, since: float) -> float:
        """Node-seconds of the account since `since`, the beginning of a UTC day."""
        first = int(since // DAY_S)
        return sum(used for day, used in self.by_account.get(account, {}).items() if day >= first)

    def forget(self, job: int) -> None:
        """The job is not asked for again."""
        self.by_job.pop(job, None)
