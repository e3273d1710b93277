"""The world that a member brings to a daemon that may have forgotten it: whether it counts, and its adoption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from malletrain.domain.errors import ContradictsRecord, Refused
from malletrain.loop.membership.admission import Admission, Claim, NotItsPilot
from malletrain.loop.membership.machine import JobMachine
from malletrain.loop.membership.next_world import GENERATION_GAP
from malletrain.loop.membership.state import JobMembership, Worker
from malletrain.wire.messages import Plan, Seat, Standing

#: Members that repair their world without the daemon go on so far beyond the highest number that they have heard of
#: (`malletrain.elastic.resize.quorum.QUORUM_GENERATION_GAP`).
QUORUM_GENERATION_GAP = 500

#: No world has a number so far beyond the journal's: room for a journal that was restored from long ago, and for a
#: world that was repaired without the daemon a thousand times.
MAX_GENERATIONS_AHEAD = 1_000_000


#: The members of a world that counts, each with why it is to leave, if it is.
Brought = tuple[tuple[Seat, str], ...]


def members_of(
    claim: Claim,
    job: JobMembership,
    said: Standing,
    admit: Callable[[Claim], Admission],
    refused: Callable[[int, str], None],
) -> Brought | None:
    """The members of the world that a standing brings, by one that is admitted; None when the job keeps the world
    that it has. `refused` is called with job and reason for each member that `admit` refuses. Nothing changes.

    Raises:
        ContradictsRecord: the generation is not one that the journal allows.
        Refused: the caller has no seat in it, a worker has two, or a member is another job's.
    """
    names = [seat.worker for seat in said.members]
    if claim.worker not in names:
        raise Refused(f"worker {claim.worker} tells of a world that is not its own: end this process")
    if len(set(names)) < len(names):
        raise Refused("a worker has two seats in the world that it reports, or is named twice: end this process")
    absent: list[str] = []
    members: Brought = ()
    for seat in said.members:
        try:
            members += ((seat, admit(Claim.of_seat(seat, claim.job, claim.uid)).leave),)
        except NotItsPilot:
            raise
        except Refused as error:
            absent.append(f"no seat for {seat.worker[:80]}, which {claim.worker} names: {error}")
    possible = _is_possible(job, claim.job, said)
    trained_on = _trained_on_without(claim, job, said)
    if trained_on is not None:
        raise Refused(
            f"worker {claim.worker} was given up: job {claim.job} trained on in generation {trained_on} "
            "without it: end this process"
        )
    if not possible or (job.taken is not None and said.generation < job.taken.generation):
        return None
    for why in absent:
        refused(claim.job, why)
    return members


def _trained_on_without(claim: Claim, job: JobMembership, said: Standing) -> int | None:
    """The later generation in which others have trained on without the caller, whose state is older than theirs."""
    world, taken = job.world, job.taken
    if world is not None and (world.has(claim.worker) or said.generation in job.published):
        return None  # it is to take that world, or to leave by it
    if world is not None and said.generation < world.generation:
        return world.generation
    if taken is not None and said.generation < taken.generation and claim.pilot not in taken.pilots:
        return taken.generation
    return None


def _is_possible(job: JobMembership, job_id: int, said: Standing) -> bool:
    """Whether the job's members may have taken that generation; False when it is old, or known. ContradictsRecord:
    the journal does not allow it."""
    most = max(job.generation, job.before.published) + MAX_GENERATIONS_AHEAD
    if not 1 <= said.generation <= most or not 0 <= said.seen <= most:
        number = said.seen if 1 <= said.generation <= most else said.generation
        raise ContradictsRecord(f"generation {number} cannot have been published for job {job_id}: end this process")
    if job.world is None:
        return True
    if said.generation <= job.world.generation or said.generation in job.published:
        return False
    if job.before.published < said.generation < job.world.generation + QUORUM_GENERATION_GAP:
        raise ContradictsRecord(
            f"generation {said.generation} was never published for job {job_id}, which is in generation "
            f"{job.world.generation}: end this process"
        )
    return True


def take_standing(machine: JobMachine, this: Worker, said: Standing, brought: Brought | None) -> None:
    """Records where a member stands, and adopts its world (`brought`; None to keep the present one)."""
    machine.step = max(machine.step, said.step)
    this.at = Plan(said.generation, said.members)
    own = said.address or next(seat.address for seat in said.members if seat.worker == this.id) or this.address
    if brought is not None:
        this.address = own
        _adopt(machine, this, said, brought)
    elif (plan := machine.published.get(said.generation)) is not None and plan.has(this.id):
        machine.take(said.generation)
        machine.arrived.add(this.id)
    if machine.world is not None and machine.world.generation == said.generation and machine.world.has(this.id):
        this.address = own
        machine.train(this)
    if said.seen > machine.generation:
        # It takes no plan below the number of a quorum's to which it is bound.
        machine.generation = said.seen
        if machine.is_planned(this.id):
            machine.ask(f"{this.id} has seen generation {said.seen}", broken=True)


def _adopt(machine: JobMachine, this: Worker, said: Standing, brought: Brought) -> None:
    for seat, _ in brought:
        _seat(machine, this, seat)
    members = tuple(replace(seat, address=machine.workers[seat.worker].address) for seat, _ in brought)
    machine.generation = max(machine.generation, said.generation, said.seen) + GENERATION_GAP
    world = Plan(said.generation, members, "", "adopted from its members")
    machine.trained(world)
    machine.arrived, machine.void_before = set(world.workers), said.generation
    if machine.pending is not None and machine.pending.generation <= said.generation:
        machine.pending = None
    for seat, leave in brought:
        member = machine.workers[seat.worker]
        if leave and member.leaving_since is None:
            machine.ask_to_leave(member, leave)
    gone = [seat.worker for seat in said.members if not world.has(seat.worker)]
    gone += [name for name in world.workers if not machine.workers[name].phase.lives]
    if gone:
        machine.ask(f"{', '.join(gone)[:300]} cannot be there any more", broken=True)


def _seat(machine: JobMachine, this: Worker, seat: Seat) -> None:
    """Gives a member of an adopted world its seat; one not heard yet is waited for."""
    workers, now = machine.workers, machine.clock.elapsed()
    member = workers.get(seat.worker)
    if member is None:
        restart = int(seat.worker.rpartition(".")[2])  # (it is admitted)
        member = Worker(seat.worker, this.job, seat.pilot, restart, "", this.uid, now, now, address=seat.address)
        workers[member.id] = member
    elif member.may_return:  # its silence alone was held against it
        machine.bring_back(member)
    else:
        member.address = member.address or seat.address
        return
    if member is not this:
        machine.expect(member)
        machine.train(member)
