"""The doors to the code: with the other doors_*.py the only file of the corpus that imports it, behind plain values.

Everything goes in and comes out as text, numbers, lists and dicts with the names below, so that a renaming is mended
here, in the calls, and changes no recorded byte.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from malletrain.api.explain import explain
from malletrain.cli.main import main as malletrain_main
from malletrain.cli.main import run as run_command
from malletrain.cli.sizing import plan as plan_command
from malletrain.decide.rules import AccountBudget, Period, Rules, SiteLimit
from malletrain.domain.decision import (
    Action,
    CancelTasks,
    CutLimit,
    Decision,
    LeaveCause,
    LeavePilot,
    RecyclePilot,
    StartPilot,
    TopUp,
)
from malletrain.domain.errors import MalletrainError
from malletrain.domain.event import Event, JobAnnounced
from malletrain.domain.job import Curve, Elastic, MalleableJob, PilotEnd, Profile
from malletrain.domain.snapshot import BackfillPlan, Node, NodeState, Reservation, SlurmJob, SlurmState
from malletrain.loop.membership.admission import Admission, Claim
from malletrain.loop.membership.members import Membership
from malletrain.loop.membership.next_world import JobTerms, LastWorlds
from malletrain.loop.membership.state import MembershipSettings
from malletrain.loop.memory import ManualClock, MemoryCluster, MemoryJournal, MemoryWorkers
from malletrain.loop.tick import Loop
from malletrain.observe.observation import observation
from malletrain.observe.shadow import ShadowCluster, ShadowWorkers
from malletrain.sizing import registry
from malletrain.sizing.objective import Objective
from malletrain.wire.messages import (
    CheckedIn,
    Exited,
    Failed,
    Fault,
    Finished,
    Leaving,
    Left,
    Plan,
    Samples,
    Seat,
    Standing,
    Switched,
    ToppedUp,
    Warm,
    message_of,
    to_json,
)
from tests.sizing.problems import shipped
from tests.world import data_of, event_of

Json = dict[str, Any]

START = 1_000_000.0


# --- Commands -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done:
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def text(self) -> str:
        return f"status {self.status}\n--- out\n{self.out}--- err\n{self.err}"


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """An empty folder, which is the present one meanwhile: so no path of the machine is in an answer."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        yield Path(name)


def malletrain(*argv: str, stdin: bytes = b"") -> Done:
    """`malletrain ARGV` in this process."""
    return run(malletrain_main, argv, stdin)


def plan(*argv: str) -> Done:
    """`malletrain plan ARGV`, without looking for the command first: that takes longer than most plans."""
    return run(lambda given: run_command(plan_command, "malletrain", given), argv)


def run(main: Any, argv: Sequence[str], stdin: bytes = b"") -> Done:
    """A command's entry point in this process."""
    out, err = io.BytesIO(), io.BytesIO()
    texts = [io.TextIOWrapper(stream, "utf-8") for stream in (io.BytesIO(stdin), out, err)]
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = texts
    try:
        main(list(argv))
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        for text in texts:
            text.flush()
    return Done(status, out.getvalue().decode(), err.getvalue().decode())


def policies() -> tuple[str, ...]:
    """The names of the policies that are shipped; a site's own are none of ours."""
    return shipped()


# --- Events ---------------------------------------------------------------------------------------------------


def event(
    at: float,
    kind: str,
    job: int | None = None,
    pilot: str | None = None,
    node: str | None = None,
    reason: str = "",
    **data: Any,
) -> Event:
    """An event of the journal."""
    return event_of(at, kind, job, pilot, node, reason, data)


def event_row(it: Event) -> Json:
    """An event as it is recorded."""
    return {
        "at": it.at,
        "kind": str(it.kind),
        "job": it.job,
        "pilot": it.pilot,
        "node": it.node,
        "reason": it.reason,
        "data": data_of(it),
    }


# --- What decisions look at -----------------------------------------------------------------------------------


def node(name: str, state: str = "idle", *, gres: str = "", cpus: int = 0, weight: int = 1) -> Node:
    """A node of the harvest partition and the main one."""
    return Node(name, NodeState(state), ("batch", "harvest"), cpus=cpus, gres=gres, weight=weight)


def main_job(
    number: int,
    *,
    nodes: Sequence[str] = (),
    count: int = 1,
    start: float | None = None,
    planned: Sequence[str] = (),
    limit_s: float = 600.0,
    end: float | None = None,
    reason: str = "Resources",
    priority: int = 100,
    het: int | None = None,
    switches: int | None = None,
    features: str = "",
) -> SlurmJob:
    """A job of the main queue: it runs where `nodes` are given, else waits."""
    return SlurmJob(
        id=str(number),
        raw_id=number,
        user="main",
        account="main",
        partition="batch",
        qos="normal",
        state=SlurmState.RUNNING if nodes else SlurmState.PENDING,
        reason="None" if nodes else reason,
        node_count=len(nodes) or count,
        het_id=het,
        time_limit_s=limit_s,
        start_time=start,
        end_time=end,
        nodes=tuple(nodes),
        planned_nodes=tuple(planned),
        features=features,
        priority=priority,
        switches=switches,
    )


def reservation(name: str, start: float, end: float, nodes: Sequence[str], *flags: str) -> Reservation:
    """A reservation of nodes."""
    return Reservation(name, start, end, tuple(nodes), frozenset(flags))


def job(
    number: int,
    *,
    name: str = "",
    user: str = "ann",
    account: str = "a",
    least: int = 1,
    most: int = 8,
    at: float = START,
    sizes: Sequence[int] = (),
    weight: float = 1.0,
    elastic: str = "live",
    curve: Sequence[tuple[int, float]] | None = None,
    total: float | None = None,
    profile: str | None = None,
    batch: tuple[int, int] | None = None,
    budget_node_s: float | None = None,
    deadline: float | None = None,
) -> MalleableJob:
    """A malleable job."""
    return MalleableJob(
        id=number,
        name=name or f"job{number}",
        user=user,
        uid=1001,
        account=account,
        min_nodes=least,
        max_nodes=most,
        submitted_at=at,
        sizes=tuple(sizes),
        weight=weight,
        elastic=Elastic(elastic),
        given_curve=None if curve is None else Curve(tuple(curve)),
        total_samples=total,
        profile=None if profile is None else Profile(profile),
        batch_min=None if batch is None else batch[0],
        batch_max=None if batch is None else batch[1],
        budget_node_s=budget_node_s,
        deadline=deadline,
    )


def rules(
    *,
    objective: str = "throughput",
    alpha: float = 0.0,
    horizon_s: float = 300.0,
    caps: Mapping[str, int] | None = None,
    floors: Mapping[str, int] | None = None,
    watts: float | None = None,
    user_share: float = 1.0,
    budgets: Mapping[str, float] | None = None,
    shares: Mapping[str, float] | None = None,
    max_wait_s: float = 1800.0,
    keep_idle: int = 0,
    keep_leaves: int = 0,
    max_pilots: int = 200,
    max_nodes: int = 1,
    max_pilot_s: float = 3600.0,
    max_starts: int = 0,
    exit_s: float | None = None,
    exclude: Sequence[str] = (),
) -> Rules:
    """What a site allows. `caps`, `floors`, `budgets` (node-seconds a day) and `shares` are by account."""
    limits = [SiteLimit(f"cap {a}", accounts=frozenset({a}), most_nodes=n) for a, n in (caps or {}).items()]
    limits += [SiteLimit(f"floor {a}", accounts=frozenset({a}), least_nodes=n) for a, n in (floors or {}).items()]
    if watts is not None:
        limits.append(SiteLimit("power", available=watts, per_node=1.0))
    return Rules(
        horizon_s=horizon_s,
        objective=Objective(objective),
        alpha=alpha,
        account_shares=dict(shares or {}),
        limits=tuple(limits),
        user_share=user_share,
        budgets=tuple(
            AccountBudget(f"budget {a}", frozenset({a}), s, Period.DAY) for a, s in (budgets or {}).items()
        ),
        max_wait_s=max_wait_s,
        keep_idle=keep_idle,
        keep_leaves=keep_leaves,
        max_pilots=max_pilots,
        max_nodes=max_nodes,
        max_pilot_s=max_pilot_s,
        max_starts=max_starts,
        exit_s=exit_s,
        margin_s=10.0,
        min_hole_s=70.0,
        exclude_nodes=frozenset(exclude),
    )


def decision_row(it: Decision) -> Json:
    """A decision as it is recorded."""
    return {
        "at": it.at,
        "sizes": dict(it.sizes),
        "nodes": it.nodes,
        "held": dict(it.held),
        "horizon_s": it.horizon_s,
        "reason": it.reason,
        "status": it.status.value,
        "objective": it.objective,
        "holes": [
            {"node": h.node, "until": h.until, "reason": h.reason, "expected_s": None, "cohort": h.cohort}
            for h in it.holes
        ],
        "actions": [action_row(action) for action in it.actions],
        "refusals": [{"subject": r.subject, "reason": r.reason} for r in it.refusals],
        "batches": dict(it.batches),
    }


def action_row(it: Action) -> Json:
    """An action as it is recorded."""
    row: Json = {"job": it.job_id, "reason": it.reason}
    match it:
        case StartPilot():
            row |= {"do": "start", "pilot": it.pilot, "node": it.node, "limit_s": it.limit_s, "replaces": it.replaces}
        case LeavePilot():
            row |= {"do": "leave", "pilot": it.pilot, "node": it.node, "cause": it.cause.value, "by": it.deadline}
        case CutLimit():
            row |= {"do": "cut", "pilot": it.pilot, "node": it.node, "ends_at": it.ends_at}
        case RecyclePilot():
            row |= {"do": "recycle", "pilot": it.pilot, "node": it.node, "unstarted": it.unstarted}
        case CancelTasks():
            row |= {"do": "cancel", "pilots": list(it.pilots)}
        case TopUp():
            row |= {"do": "top_up", "tasks": it.tasks}
    return row


class Site:
    """The loop over a cluster, workers and a journal in memory."""

    def __init__(self, nodes: Iterable[Node], site: Rules, policy: str) -> None:
        self._clock = ManualClock(START)
        self._cluster = MemoryCluster(nodes, self._clock)
        self._workers = MemoryWorkers(self._clock)
        self._journal = MemoryJournal()
        self._loop = Loop(self._cluster, self._workers, self._journal, self._clock, registry.policy(policy), site)

    @property
    def now(self) -> float:
        return self._clock.now()

    def submit(self, wanted: MalleableJob, tasks: int) -> int:
        """The job is announced with an array of held tasks; the array's number."""
        self._loop.record([Event(self.now, JobAnnounced(wanted), wanted.id)])
        return self.attach(wanted.id, wanted.user, tasks)

    def attach(self, number: int, user: str, tasks: int) -> int:
        """Another array of the job; its number."""
        array = self._cluster.submit_array(user, tasks)
        self.record(event(self.now, "array_attached", number, array_id=array, tasks=tasks))
        return array

    def record(self, *events: Event) -> None:
        """What people ask for."""
        self._loop.record(events)

    def report(self, *events: Event) -> None:
        """What workers say."""
        self._workers.report(*events)

    def set_main(self, jobs: Iterable[SlurmJob]) -> None:
        """The main queue."""
        self._cluster.set_main(jobs)

    def set_node(self, it: Node) -> None:
        self._cluster.nodes[it.name] = it

    def set_reservations(self, them: Iterable[Reservation]) -> None:
        self._cluster.reservations = tuple(them)

    def end_pilot(self, pilot: str, state: str) -> None:
        self._cluster.end_pilot(pilot, PilotEnd(SlurmState(state), exit_code=1))

    def fails(self, how: str) -> None:
        """Slurm does not answer, until this is told ''."""
        self._cluster.down = how

    def crowds(self, why: str) -> None:
        """No more held tasks may be submitted."""
        self._loop.crowded = why

    def tick(self, seconds: float) -> Json | None:
        """A whole round, and the workers' answers; the decision, with what would be measured next."""
        self._clock.advance(seconds)
        decided = self._loop.tick()
        self._loop.react()
        if decided is None:
            return None
        return decision_row(decided) | {"advice": dict(self._loop.advice)}

    def watch(self, seconds: float) -> None:
        """A light look."""
        self._clock.advance(seconds)
        self._loop.watch()
        self._loop.react()

    def running(self) -> Mapping[str, str]:
        """Pilot -> its first node, as the cluster has it."""
        return {pilot: task.node for pilot, task in sorted(self._cluster.tasks.items()) if task.node}

    def asked(self) -> Json:
        """What workers were asked for, other than to leave."""
        return {
            "ended": dict(self._workers.ended),
            "topped_up": dict(self._workers.topped_up),
            "batches": dict(self._workers.batches),
            "climbers": sorted(self._workers.climbers),
        }

    def journal(self) -> list[Event]:
        """The journal."""
        return list(self._journal.events)

    def events(self) -> list[Json]:
        """The journal, as it is recorded."""
        return [event_row(it) for it in self._journal.events]

    def explain(self, subject: str) -> str:
        """What `malletrain explain` prints of a job, node or pilot, or of `main-job ID`."""
        loop = self._loop
        try:
            told = explain(subject, loop.views, loop.last_snapshot, loop.last_decision, self._journal.events)
        except MalletrainError as error:
            return f"refused: {error}\n"
        return "".join(f"{line}\n" for line in told)

    def decide_elsewise(
        self,
        site: Rules,
        policy: str,
        *,
        later_s: float = 0.0,
        jobs: Iterable[SlurmJob] = (),
        nodes: Iterable[Node] = (),
        reservations: Iterable[Reservation] = (),
        cycle_s: float | None = None,
        leaves: Mapping[str, str] | None = None,
        paused: str = "",
        crowded: str = "",
    ) -> Json:
        """What another daemon would decide that reads this journal and this cluster, with changes: `jobs` are more
        of the main queue; `nodes` stand for those of their names; backfill came by `cycle_s` ago."""
        clock = ManualClock(self.now + later_s)
        seen = self._cluster.snapshot()
        other = {it.name: it for it in nodes}
        plan = BackfillPlan() if cycle_s is None else BackfillPlan(last_cycle_at=clock.now() - cycle_s)
        seen = replace(
            seen,
            taken_at=clock.now(),
            nodes=tuple(other.get(it.name, it) for it in seen.nodes),
            jobs=(*seen.jobs, *jobs),
            reservations=(*seen.reservations, *reservations),
            plan=plan,
            leaves=dict(leaves or {}),
        )
        loop = Loop(
            self._cluster, MemoryWorkers(clock), self._journal, clock, registry.policy(policy), site, act=False
        )
        loop.restore()
        loop.paused, loop.crowded = paused, crowded
        decided = loop.tick_on(seen)
        if decided is None:
            raise RuntimeError("nothing was decided")
        return decision_row(decided) | {"advice": dict(loop.advice)}


class ObservedSite:
    """The loop over imagined pilots, as under --observe: one endless job, on a cluster that is only looked at."""

    def __init__(self, nodes: Iterable[Node], site: Rules, tasks: int) -> None:
        self._clock = ManualClock(START)
        self._cluster = MemoryCluster(nodes, self._clock)
        self._imagined = ShadowCluster(self._cluster, "harvest", self._clock)
        self._journal = MemoryJournal()
        workers = ShadowWorkers(self._imagined, 11, self._clock)
        policy = registry.policy("auto")
        self._loop = Loop(self._imagined, workers, self._journal, self._clock, policy, site)
        self._imagined.submit_array("nobody", tasks, 10)
        wanted = replace(job(1, most=tasks, curve=[(1, 1.0), (tasks, 0.9 * tasks)]), user="nobody")
        begun = event(START, "daemon_started", look_s=2.0, leave_s=2.0, keep_idle=0, max_pilots=200)
        announcement = Event(START, JobAnnounced(wanted), 1)
        self._loop.record(
            [begun, announcement, event(START, "tasks_added", 1, array_id=10, tasks=list(range(tasks)))]
        )

    def tick(self, seconds: float, main: Iterable[SlurmJob]) -> None:
        """The main queue becomes this; then a light look, and a whole one."""
        self._cluster.set_main(main)
        self._clock.advance(2.0)
        self._loop.watch()
        self._clock.advance(seconds)
        self._loop.tick()
        self._loop.record([event(self._clock.now(), "main_started", jobs=self._imagined.take_main_started())])

    def events(self) -> list[Json]:
        """The journal, as it is recorded."""
        return [event_row(it) for it in self._journal.events]

    def told(self) -> Mapping[str, Any]:
        """What `malletrain observed --json` tells of it."""
        return observation(self._journal.events).to_json()


# --- Membership -----------------------------------------------------------------------------------------------


class _Hand:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> float:
        return START + self.at

    def elapsed(self) -> float:
        return self.at


class Members:
    """The membership of jobs' worlds, without workers at the other ends of the wires."""

    def __init__(
        self,
        *,
        least: int = 1,
        most: int = 64,
        sizes: Sequence[int] = (),
        restarts: bool = False,
        batches: Sequence[tuple[int, int]] = (),
        generations: Mapping[int, int] | None = None,
    ) -> None:
        terms = JobTerms(least, most, tuple(sizes), restarts, tuple(batches))
        self._clock = _Hand()
        self._claims: dict[str, Claim] = {}
        self._it = Membership(
            MembershipSettings(), self._clock, lambda claim: Admission(terms),
            {job: LastWorlds(number) for job, number in (generations or {}).items()},
        )  # fmt: skip

    @property
    def at(self) -> float:
        return self._clock.at

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and what is due happen."""
        self._clock.at += seconds
        due = self._it.due()
        if due is not None and due <= self._clock.at:
            self._it.tick()

    def due(self) -> float | None:
        return self._it.due()

    # The loop's side

    def leave(self, job: int, pilot: str, reason: str) -> None:
        self._it.leave(LeavePilot(job, pilot, "n", LeaveCause.SHRINK, 0.0, reason))

    def end_job(self, job: int, reason: str) -> None:
        self._it.end_job(job, reason)

    def top_up(self, job: int, tasks: int) -> bool:
        return self._it.top_up(job, tasks)

    def choose_batches(self, job: int, batches: Sequence[tuple[int, int]]) -> None:
        self._it.choose_batches(job, tuple(batches))

    def climb(self, *jobs: int) -> None:
        self._it.climb(frozenset(jobs))

    def slept(self, seconds: float) -> None:
        self._it.slept(seconds)

    # The workers' side

    def hello(self, job: int, pilot: str, restart: int, node: str) -> str:
        """The worker's name; or why it was refused, with `refused: ` before."""
        claim = Claim(job, pilot, restart, node, 1000)
        try:
            self._claims[claim.worker] = claim
            return self._it.hello(claim).id
        except MalletrainError as error:
            return f"refused: {error}"

    def adopt(
        self, worker: str, generation: int, seats: Sequence[tuple[str, str, str]], step: int, address: str, seen: int
    ) -> None:
        """`seats`: worker, pilot, address."""
        told = Standing(generation, tuple(Seat(worker, address) for worker, _, address in seats), step, address, seen)
        self._it.hello(self._claims[worker], told)

    def polled(self, worker: str) -> None:
        self._it.polled(worker)

    def answered(self, worker: str) -> None:
        self._it.answered(worker)

    def heard(self, worker: str) -> None:
        self._it.alive(worker)

    def disconnected(self, worker: str) -> None:
        self._it.disconnected(worker)

    def warm(self, worker: str, address: str, **stages: float) -> None:
        self._it.report(worker, Warm(address, stages))

    def checked_in(self, worker: str, answers: int, step: int, whole: bool) -> None:
        self._it.report(worker, CheckedIn(answers, 0, step, whole))

    def fault(self, worker: str, generation: int, step: int, how: str, detail: str) -> None:
        self._it.report(worker, Fault(generation, step, how, detail))

    def switched(self, worker: str, generation: int, step: int, nodes: int, pause_s: float, grew: bool) -> None:
        said = Switched(generation, step, nodes, pause_s, grew)
        self._it.report(worker, said)

    def leaving(self, worker: str, why: str) -> None:
        self._it.report(worker, Leaving(why))

    def left(self, worker: str, generation: int, step: int, saved: str | None) -> None:
        self._it.report(worker, Left(generation, step, saved))

    def finished(self, worker: str, **result: Any) -> None:
        self._it.report(worker, Finished(result))

    def failed(self, worker: str, step: int, message: str) -> None:
        self._it.report(worker, Failed(step, message))

    def exited(self, worker: str, status: int) -> None:
        self._it.report(worker, Exited(status))

    def samples(self, worker: str, step: int, **data: Any) -> None:
        self._it.report(worker, Samples(step=step, **data))

    def topped_up(self, worker: str) -> None:
        self._it.report(worker, ToppedUp(1, 1))

    # What comes of it

    def phase(self, worker: str) -> str:
        """joining, warm, serving, left or lost; '' when it must say hello anew."""
        found = self._it.worker(worker)
        return "" if found is None else found.phase.value

    def directive(self, worker: str) -> Json:
        """What is wanted of the worker."""
        it = self._it.directive_for(worker)
        return {
            "seq": it.seq,
            "plan": None if it.plan is None else _plan_row(it.plan),
            "check_in": it.check_in,
            "leave": it.leave,
            "end": it.end,
            "top_up": it.top_up,
        }

    def deliver(self, worker: str, body: Json) -> None:
        """A message of a worker's report, as it came."""
        self._it.report(worker, message_of(body))

    def directive_sent(self, worker: str) -> str:
        """What is wanted of the worker, as it is sent."""
        return json.dumps(to_json(self._it.directive_for(worker)))

    def world(self, job: int) -> Json | None:
        """The plan that trains now."""
        it = self._it.world(job)
        return None if it is None else _plan_row(it)

    def events(self) -> list[Json]:
        """Events since the last call."""
        return [event_row(it) for it in self._it.reports()]


def _plan_row(it: Plan) -> Json:
    return {
        "generation": it.generation,
        "members": [{"worker": s.worker, "pilot": s.pilot, "address": s.address} for s in it.members],
        "store": it.store,
        "reason": it.reason,
        "urgent": it.urgent,
        "batch": it.batch,
        "void_before": it.void_before,
    }
