"""What Slurm's reasons for a waiting job mean (squeue(1) %r)."""

from __future__ import annotations

from typing import NamedTuple

from malletrain.domain.requirements import Requirements
from malletrain.domain.snapshot import Node, SlurmJob, SlurmState

#: Reasons (squeue(1) %r) of a job that waits for nodes only. Any other reason holds it up whatever is idle.
WAITS_FOR_NODES = ("None", "Resources", "Priority", "ReqNodeNotAvail", "Nodes required", "Nodes_required")


def waits_for_nodes(job: SlurmJob, harvest_partition: str) -> bool:
    """Whether it is a main job that waits for nodes, and for nothing else."""
    return (
        job.state is SlurmState.PENDING
        and job.partition != harvest_partition
        and (job.reason == "" or job.reason.startswith(WAITS_FOR_NODES))
        # Slurm names no reason for a new array until it has looked at it; what it depends on is there at once.
        and "unfulfilled" not in job.dependency
    )


class Diagnosis(NamedTuple):
    """`words`: what Slurm says and what it means; `of_job`: whatever the node, so that the job rests; `unfit`: Slurm
    will never start it on this node."""

    words: str
    of_job: bool = False
    unfit: bool = False


#: Reasons by how they begin, whether they are of the job whatever the node, and what they mean. Each other one is of
#: the job or its owner, and says itself what is to be changed.
_REASONS: tuple[tuple[tuple[str, ...], bool, str], ...] = (
    (("ReqNodeNotAvail", "Reservation", "NodeDown", "FrontEndDown"), False, "Slurm does not give the node away now"),
    (("Resources", "Nodes required", "Nodes_required"), False, "Slurm keeps the node for jobs of a higher tier"),
    (("Priority", "None"), False, "Slurm has not come to it: backfill may not reach the harvest partition"),
    (("MaxMemPerLimit",), True, "a limit on memory of the partition or the cluster (MaxMemPerNode, MaxMemPerCPU)"),
    (("JobArrayTaskLimit",), True, "the array's owner lets no more of its tasks run (ArrayTaskThrottle)"),
)

#: Slurm holds such a task at once, and does not come to it again. For a cycle it gives the other tasks of the array
#: the same reason (measured, 22.05), but these it does not hold.
_UNFIT = "BadConstraints"


def is_unfit(row: SlurmJob) -> bool:
    """Whether Slurm itself holds this task, since no node that it may have will ever do."""
    return row.is_held and row.reason.startswith(_UNFIT)


def diagnose(row: SlurmJob | None, node: Node | None = None) -> Diagnosis:
    """What keeps a waiting pilot, by its row in the queue (None: it has none) and the node that it is to start on."""
    reason = row.reason if row is not None else ""
    if row is not None and is_unfit(row):
        needs = Requirements(row.gres, row.features, row.memory_mib)
        meaning = (
            "a limit of the partition or the cluster, such as MaxMemPerCPU, MaxMemPerNode or MaxCPUsPerNode, is "
            "below what the job asks for, or the node is"
        )
        if needs and node is not None and not needs.satisfied_by(node):
            meaning = f"the node lacks {needs}, which the job asks for"
        return Diagnosis(f"{meaning} (Slurm says: {reason})", unfit=True)
    for heads, of_job, meaning in _REASONS:
        if (reason or "None").startswith(heads):
            return Diagnosis(f"{meaning} (Slurm says: {reason or 'nothing'})", of_job)
    return Diagnosis(f"Slurm says: {reason}", of_job=True)
