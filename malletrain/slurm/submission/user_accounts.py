"""Whose account a malleable job's node-hours count for: the researcher's own, though pilots run in one account."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from malletrain.domain.errors import ClusterUnavailable
from malletrain.slurm.command import Commands

#: For so long (seconds) an answer of slurmdbd's counts; default accounts change seldom.
KEPT_S = 3600.0

#: What a job may be charged to (charging.account), as sacctmgr calls it; else the account that all pilots run in.
_FIELDS = {"default_account": "defaultaccount", "default_wckey": "defaultwckey"}


class UserAccounts:
    """Finds the account of a user, from any thread. Jobs are charged to the account of `named` by user, else to what
    `charge` says (default_account, default_wckey), else to the account `pilots` that all run in."""

    def __init__(
        self,
        commands: Commands,
        charge: str,
        named: Mapping[str, str],
        pilots: str,
        elapsed: Callable[[], float],
        accounting: bool = True,
    ) -> None:
        self._commands, self._charge, self._named, self._pilots = commands, charge, named, pilots
        self._elapsed = elapsed
        self._accounting = accounting
        self._known: dict[str, tuple[float, str]] = {}
        self._lock = threading.Lock()

    def of(self, user: str) -> str:
        """The account that this user's jobs are charged to; where slurmdbd does not answer, the last one known."""
        if user in self._named:
            return self._named[user]
        field = _FIELDS.get(self._charge)
        if field is None or not self._accounting:
            return self._pilots
        with self._lock:
            at, account = self._known.get(user, (float("-inf"), ""))
        if self._elapsed() - at >= KEPT_S:
            with suppress(ClusterUnavailable):
                ask = ["sacctmgr", "-n", "-P", "show", "user", f"name={user}", f"format={field}"]
                account = (self._commands.ask(ask).splitlines() or [""])[0].strip().lstrip("*")
                with self._lock:
                    if len(self._known) >= 10_000:  # as many users are remembered at most
                        self._known.clear()
                    self._known[user] = (self._elapsed(), account)
        return account or self._pilots
