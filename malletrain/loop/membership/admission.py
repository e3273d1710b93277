"""Whether a process may be a worker: what it claims, held against the journal, which has Slurm's view of each pilot.
Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from malletrain.domain.errors import Refused
from malletrain.domain.job import Elastic, JobView, Pilot, PilotPhase, ScriptVerdict, keeps_its_size
from malletrain.loop.membership.next_world import JobTerms
from malletrain.wire.messages import Seat

#: A pilot in one of these phases may have a worker.
_HAS_WORKER = (PilotPhase.RELEASED, PilotPhase.RUNNING, PilotPhase.LEAVING)


class NotItsPilot(Refused):
    """The pilot belongs to another job. No worker that means well ever claims that."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Who a process says that it is: run `restart` of a pilot, on `node`, for a job.

    `uid` is proven. Without a `node` it is not the process itself that speaks.
    """

    job: int
    pilot: str
    restart: int
    node: str
    uid: int

    @classmethod
    def of_seat(cls, seat: Seat, job: int, uid: int) -> Claim:
        """The claim of a member that another process names. Refused: its name is no worker's."""
        number = seat.worker.rpartition(".")[2]
        restart = int(number) if number.isascii() and number.isdigit() and len(number) < 10 else -1
        claim = cls(job, seat.pilot, restart, "", uid)
        if restart < 0 or claim.worker != seat.worker:
            raise Refused("that is no worker's name")
        return claim

    @property
    def worker(self) -> str:
        return f"{self.pilot}.{self.restart}"


@dataclass(frozen=True, slots=True)
class Admission:
    """The terms of its job; `leave`: why it is to leave, if its pilot was asked to."""

    terms: JobTerms
    leave: str = ""


def admit(views: Mapping[int, JobView], claim: Claim) -> Admission:
    """Admit a process that its job's owner runs, in a pilot of that job, on its node, in its present run.

    Raises:
        NotItsPilot: the pilot is another job's.
        Refused: anything else is not so; the text says what.
    """
    view = views.get(claim.job)
    if view is None or view.job.uid != claim.uid:
        raise Refused(f"job {claim.job} is not yours, or not known here: end this process")
    if view.phase.is_over:
        raise Refused(f"job {claim.job} is {view.phase.value}: end this process")
    pilot = view.pilots.get(claim.pilot)
    if pilot is None and any(claim.pilot in other.pilots for other in views.values()):
        raise NotItsPilot(f"pilot {claim.pilot} is none of job {claim.job}'s: end this process")
    if pilot is None or pilot.phase not in _HAS_WORKER:
        phase = "unknown" if pilot is None else pilot.phase.value
        raise Refused(
            f"pilot {claim.pilot} of job {claim.job} is {phase}, not started by this daemon: end this process"
        )
    nodes = _nodes(view, pilot)
    if claim.node and nodes and claim.node not in nodes:
        raise Refused(f"pilot {claim.pilot} is on node {','.join(nodes)}, not on {claim.node}: end this process")
    if pilot.restarts is not None and claim.restart != pilot.restarts:
        raise Refused(
            f"pilot {claim.pilot} has restart count {pilot.restarts} in Slurm, not {claim.restart}: end this process"
        )
    job = view.job
    relaunched, items = job.elastic is not Elastic.LIVE, job.elastic is Elastic.TASKS
    terms = JobTerms(
        job.min_nodes,
        job.max_nodes,
        job.sizes,
        relaunched,
        items=items,
        fixed=keeps_its_size(job, view.check),
        trusted=job.trusted,
        checked=view.check.digest if view.check is not None else "",
        undecided=view.check is not None and view.check.verdict is ScriptVerdict.UNDECIDED,
    )
    leaves = pilot.phase is PilotPhase.LEAVING
    return Admission(terms, (pilot.reason or "its pilot was asked to leave") if leaves else "")


#: In these phases a pilot may hold a node.
_HOLDS_NODE = (*_HAS_WORKER, PilotPhase.RECYCLING)


def holding(views: Mapping[int, JobView], job: int) -> Mapping[str, bool]:
    """The job's pilots that may hold a node, and whether a worker has been warm there, by the journal: one that was
    lost may train on where it is not heard."""
    view = views.get(job)
    pilots = view.pilots.values() if view is not None else ()
    return {each.id: each.ready or each.unheard for each in pilots if each.phase in _HOLDS_NODE}


def _nodes(view: JobView, pilot: Pilot) -> tuple[str, ...]:
    """The nodes of the pilot's task: which of several is whose is known only once Slurm shows that it runs."""
    together = view.co_allocated.get(pilot.task, ()) or (pilot,)
    return tuple(sorted({each.node for each in together if each.node}))
