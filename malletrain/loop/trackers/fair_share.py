"""What each account has used lately: node-seconds of its pilots, fading by half every week, as Slurm's own fair share
counts (slurm.conf(5), PriorityDecayHalfLife, default 7 days)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

HALF_LIFE_S = 7 * 86400.0


@dataclass
class FairShareUsage:
    """Folded from the ends of pilots; those that still run count from what they hold. Times are Unix seconds."""

    at: float = 0.0
    by_account: dict[str, float] = field(default_factory=dict)

    def add(self, account: str, at: float, seconds: float) -> None:
        """A pilot of the account has given up its node at `at`, after so many seconds."""
        if at > self.at:
            keep = 0.5 ** ((at - self.at) / HALF_LIFE_S) if self.at else 1.0
            self.by_account = {name: keep * used for name, used in self.by_account.items()}
            self.at = at
        if seconds > 0:
            self.by_account[account] = self.by_account.get(account, 0.0) + seconds

    def lately(self, running: Mapping[str, float]) -> Mapping[str, float]:
        """With what runs now: node-seconds by account so far."""
        found = dict(self.by_account)
        for account, seconds in running.items():
            found[account] = found.get(account, 0.0) + seconds
        return found
