"""What PrivateData (slurm.conf(5)) hides from the daemon's user. root, SlurmUser and Slurm's operators see all."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator

from malletrain.domain.errors import ClusterUnavailable
from malletrain.slurm.command import Commands
from malletrain.slurm.site.site_config import Finding, Level, SiteFacts

#: What is hidden, and what comes of that.
_HARM = {
    "jobs": ("the main queue", "pilots cannot leave before Slurm preempts them"),
    "nodes": ("the nodes", "nothing can be harvested"),
    "partitions": ("the partitions", "nothing can be harvested"),
    "reservations": ("reservations", "pilots are started into them, and stay in their way"),
}

#: slurmdbd may be away; slurmctld answers all else without it (seconds).
_PATIENCE_S = 3.0


def hidden(facts: SiteFacts) -> list[str]:
    """Which of the records that the daemon needs PrivateData hides from ordinary users."""
    return [word for word in _HARM if facts.private_data & {word, "all"}]


def sees_all(commands: Commands, facts: SiteFacts, user: str) -> bool | None:
    """Whether nothing is hidden from `user`; None where slurmdbd does not say."""
    if user in (facts.slurm_user, "root"):
        return True
    if not facts.accounting:
        return False
    try:
        return standing(commands, user, _PATIENCE_S)[0] in ("Administrator", "Operator")
    except ClusterUnavailable:
        return None


def check_sight(facts: SiteFacts, user: str = "") -> Iterator[Finding]:
    """What PrivateData hides from the daemon's user, whose name is `user` where it is known."""
    if facts.sees_all:
        return
    who = (user or "the daemon's user") + ("" if facts.sees_all is False else ", unless that is an operator")
    for word in hidden(facts):
        what, harm = _HARM[word]
        yield Finding(
            Level.WARNING if facts.sees_all is None else Level.ERROR,
            f"PrivateData={word} hides {what} from {who}: {harm}",
            f"take {word} out of PrivateData, or `sacctmgr modify user {user or 'NAME'} set AdminLevel=Operator`",
        )


class RecordsHidden(ClusterUnavailable):
    """Slurm shows this user no nodes or partitions: `findings` say which, each with its remedy."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        super().__init__("; ".join(f"{finding.what}; {finding.remedy}" for finding in findings))
        self.findings = findings


def user_name() -> str:
    """The user that this process runs as."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def standing(commands: Commands, user: str, timeout_s: float | None = None) -> tuple[str, list[str]]:
    """The user's AdminLevel, and the accounts that it coordinates.

    Raises:
        ClusterUnavailable: sacctmgr does not answer.
    """
    answer = commands.ask(
        ["sacctmgr", "-n", "-P", "show", "user", user, "withcoord", "format=user,adminlevel,coordinators"], timeout_s
    )
    fields = answer.strip().split("|")
    return (fields[1].strip(), fields[2].split(",")) if len(fields) > 2 else ("", [])
