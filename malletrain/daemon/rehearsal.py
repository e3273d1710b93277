"""What an action would come to in Slurm: the live adapter's own code, with every command that changes something noted
instead of run. So `--dry-run` prints what would be run, and cannot differ from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from malletrain.domain.decision import Action, CancelTasks, CutLimit, LeavePilot, Outcome, RecyclePilot, StartPilot
from malletrain.domain.job import task_of
from malletrain.slurm.cluster import SlurmCluster
from malletrain.slurm.command import CommandResult, Commands
from malletrain.slurm.site.site_facts import Harvest


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """The commands, in order, and what would be said of the action if they all succeed."""

    commands: tuple[tuple[str, ...], ...]
    outcome: Outcome


class Rehearsal(Commands):
    """Runs what only looks; notes what would change something, and pretends that it went well."""

    pretends = True

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__(environment)
        self.noted: list[tuple[str, ...]] = []

    def run(self, argv: Sequence[str], timeout_s: float | None = None) -> CommandResult:
        """Run `argv` if it is one of the commands that are known to look only."""
        if argv[0] in ("squeue", "sinfo", "sdiag", "sacct") or (argv[0] == "scontrol" and "show" in argv[1:4]):
            return super().run(argv, timeout_s)
        self.noted.append(tuple(argv))
        return CommandResult("")


def rehearse(
    action: Action,
    decided: Sequence[Action],
    commands: Rehearsal,
    harvest: Harvest,
    owner_of: Callable[[int], int | None],
    now: Callable[[], float],
) -> Rehearsed:
    """What `action` would come to now; with those of `decided` that start pilots of the same task.

    Raises:
        ClusterUnavailable: Slurm does not answer.
    """
    cluster = SlurmCluster(commands, harvest, owner_of, now)
    match action:
        case StartPilot():
            starts = [each for each in decided if isinstance(each, StartPilot) and each != action]
            task = task_of(action.pilot)
            outcome = cluster.start([action, *(each for each in starts if task_of(each.pilot) == task)])[0]
        case CutLimit():
            outcome = cluster.cut(action)
        case RecyclePilot():
            outcome = cluster.recycle([action])[0]
        case CancelTasks():
            outcome = cluster.cancel(action)
        case LeavePilot():
            outcome = Outcome(True, "its worker is asked over HTTP; when it has left, its task is recycled")
    return Rehearsed(tuple(commands.noted), outcome)
