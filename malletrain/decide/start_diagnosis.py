"""Why a released pilot does not start: Slurm's reason (squeue(1), JOB REASON CODES) in words, and whose it is.

And how many nodes a job gets whose last starts did not begin.
"""

from __future__ import annotations

from typing import NamedTuple

from malletrain.decide.draft import Draft, Inputs
from malletrain.domain.decision import RecyclePilot
from malletrain.domain.job import JobView, PilotPhase
from malletrain.domain.requirements import Requirements
from malletrain.domain.snapshot import Node, SlurmJob


class Diagnosis(NamedTuple):
    """`words`: what Slurm says and what it means; `of_job`: whatever the node, so that the job rests; `unfit`: Slurm
    will never start it on this node."""

    words: str
    of_job: bool = False
    unfit: bool = False


#: By the beginning of the reason; the first that fits counts. Of the node, as it stands now:
_OF_NODE: tuple[tuple[tuple[str, ...], str], ...] = (
    (("ReqNodeNotAvail", "Reservation", "NodeDown", "FrontEndDown"), "Slurm does not give the node away now"),
    (("Resources", "Nodes required", "Nodes_required"), "Slurm keeps the node for jobs of a higher tier"),
    (("Priority", "None"), "Slurm has not come to it: backfill may not reach the harvest partition"),
)

#: Of the job or its owner, whatever the node; so is each reason that is named nowhere here.
_OF_JOB: tuple[tuple[tuple[str, ...], str], ...] = (
    (("MaxMemPerLimit",), "a limit on memory of the partition or the cluster (MaxMemPerNode, MaxMemPerCPU)"),
    (("QOS", "Assoc", "MaxJobs", "MaxMem", "MaxCpu", "MaxNode"), "a limit of the QOS or association"),
    (("InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed"), "the account or QOS may not run"),
    (("PartitionTimeLimit", "PartitionNodeLimit", "PartitionConfig"), "a limit of the harvest partition"),
    (("PartitionDown", "PartitionInactive"), "the harvest partition does not start jobs"),
    (("JobArrayTaskLimit",), "the array's owner lets no more of its tasks run (ArrayTaskThrottle)"),
    (("BeginTime", "Dependency", "JobHeld", "Licenses", "BurstBuffer"), "the task waits for something else"),
)


#: Slurm holds such a task at once, and does not come to it again. For a cycle it gives the other tasks of the array
#: the same reason (measured, 22.05), but these it does not hold.
_UNFIT = "BadConstraints"


def is_unfit(row: SlurmJob) -> bool:
    """Whether Slurm itself holds this task, since no node that it may have will ever do."""
    return row.is_held and row.reason.startswith(_UNFIT)


def diagnose(reason: str, held: bool = False, lacks: str = "") -> Diagnosis:
    """What Slurm's `reason` for a waiting pilot means. `held`: Slurm has set its priority to 0; `lacks`: what the job
    asks for and its node does not have."""
    if held and reason.startswith(_UNFIT):
        of_node = f"the node lacks {lacks}, which the job asks for"
        limit = "a limit of the partition or the cluster, such as MaxMemPerCPU, MaxMemPerNode or MaxCPUsPerNode, is"
        meaning = of_node if lacks else f"{limit} below what the job asks for, or the node is"
        return Diagnosis(f"{meaning} (Slurm says: {reason})", unfit=True)
    for heads, meaning in _OF_NODE:
        if (reason or "None").startswith(heads):
            return Diagnosis(f"{meaning} (Slurm says: {reason or 'nothing'})")
    for heads, meaning in _OF_JOB:
        if reason.startswith(heads):
            return Diagnosis(f"{meaning} (Slurm says: {reason})", of_job=True)
    return Diagnosis(f"Slurm says: {reason}", of_job=True)


def diagnose_waiting(row: SlurmJob | None, node: Node | None) -> Diagnosis:
    """The same of a pilot's row in the queue (None: it has none) and of the node that it was released on."""
    if row is None:
        return diagnose("")
    needs = Requirements(row.gres, row.features, row.memory_mib)
    lacks = str(needs) if needs and node is not None and not needs.met_by(node) else ""
    return diagnose(row.reason, row.is_held, lacks)


def caps_of_doubtful(draft: Draft, inputs: Inputs) -> dict[int, int]:
    """The most nodes of jobs whose last starts did not begin: what they have, and of the free ones no more than ran
    before, or, once their rest is over, one step more at a time. Other jobs lose none to them."""
    left = {hole.node for hole in draft.free}
    fails_now = {
        action.job_id
        for action in draft.actions
        if isinstance(action, RecyclePilot) and action.unstarted not in ("", action.node)
    }
    doubtful = {job: doubt for job, doubt in inputs.situation.doubtful.items() if job in inputs.live}
    caps = {job: len(draft.staying[job]) for job in sorted(doubtful.keys() | fails_now)}
    for job, has in caps.items():
        view = inputs.live[job]
        if job in fails_now or any(pilot.phase is PilotPhase.RELEASED for pilot in view.staying):
            continue
        doubt = doubtful[job]
        usable = left - draft.unfit[job].nodes if job in draft.unfit else left
        again = max((size for size in range(has + 1, doubt.begun + 1) if view.job.permits(size)), default=has)
        wanted = again - has if again > has else 0 if doubt.rests else _step(view, has, draft.narrowest)
        if 0 < wanted <= len(usable):
            caps[job] += wanted
            left = left.difference(sorted(usable)[:wanted])
    return caps


def _step(view: JobView, has: int, narrowest: int) -> int:
    """How many nodes more make the next size that the job permits; 0: none."""
    sizes = range(has + max(1, narrowest), view.job.max_nodes + 1)
    return next((size - has for size in sizes if view.job.permits(size)), 0)
