"""Why a released pilot does not start: Slurm's reason (squeue(1), JOB REASON CODES) in words, and whose it is."""

from __future__ import annotations

from typing import NamedTuple


class Diagnosis(NamedTuple):
    """`words`: what Slurm says and what it means; `of_job`: a limit of the job's owner, whatever the node; `unfit`:
    the node lacks what the job asks for, and Slurm will never start it there."""

    words: str
    of_job: bool = False
    unfit: bool = False


#: By the beginning of the reason; the first that fits counts.
_MEANINGS: tuple[tuple[tuple[str, ...], str, bool], ...] = (
    (("QOS", "Assoc", "MaxJobs", "MaxMem", "MaxCpu", "MaxNode"), "a limit of the QOS or association", True),
    (("InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed"), "the account or QOS may not run", True),
    (("PartitionTimeLimit", "PartitionNodeLimit", "PartitionConfig"), "a limit of the harvest partition", True),
    (("PartitionDown", "PartitionInactive"), "the harvest partition does not start jobs", True),
    (("BeginTime",), "Slurm lets a requeued task wait", False),
    (("Dependency", "JobHeld", "Licenses", "BurstBuffer"), "the task waits for something else", True),
    (("ReqNodeNotAvail", "Reservation", "NodeDown"), "Slurm does not give the node away now", False),
    (
        ("Resources", "Nodes required", "Nodes_required"),
        "Slurm keeps the node for jobs of a higher tier",
        False,
    ),
    (("Priority", "None"), "Slurm has not come to it: backfill may not reach the harvest partition", False),
)


#: Slurm holds such a task at once, and does not come to it again. For a cycle it gives the other tasks of the array
#: the same reason (measured, 22.05), but these it does not hold.
_UNFIT = "BadConstraints"


def diagnose(reason: str, held: bool = False) -> Diagnosis:
    """What Slurm's `reason` for a waiting pilot means. `held`: Slurm has set its priority to 0."""
    if held and reason.startswith(_UNFIT):
        return Diagnosis(f"the node lacks what the job asks for (Slurm says: {reason})", unfit=True)
    for heads, meaning, of_job in _MEANINGS:
        if (reason or "None").startswith(heads):
            return Diagnosis(f"{meaning} (Slurm says: {reason or 'nothing'})", of_job)
    return Diagnosis(f"Slurm says: {reason}")
