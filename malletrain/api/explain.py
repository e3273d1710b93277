"""Decisions in words: what `malletraind --dry-run` prints; why a job, node or pilot has what it has, whether a pilot
ever stood in a main job's way. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from malletrain.api.roles import NotFound
from malletrain.api.visibility import Visibility
from malletrain.domain import event as kinds
from malletrain.domain.decision import (
    ACTION_NAMES,
    Action,
    CancelTasks,
    CutLimit,
    Decision,
    LeavePilot,
    RecyclePilot,
    StartPilot,
    TopUp,
)
from malletrain.domain.event import Event, utc
from malletrain.domain.job import JobView
from malletrain.domain.snapshot import SlurmJob, Snapshot
from malletrain.loop.trackers.main_jobs import MainJobDelay, head_of
from malletrain.loop.waiting_reason import why_too_dear


class _Shown:
    """What of the loop's state the caller may see."""

    def __init__(self, views: Mapping[int, JobView], events: Sequence[Event], sight: Visibility) -> None:
        self.sight = sight
        self.views = {number: view for number, view in views.items() if sight.sees_job_of(view.job.uid)}
        self._events = events

    def words(self, text: str, main_job: str = "") -> str:
        return self.sight.words(text, self.views, main_job)

    def sees(self, job: int | None) -> bool:
        """Whether what is said of this job, or of no job, is for the caller."""
        return self.sight.uid is None or job in self.views

    def events(self, about: Callable[[Event], bool]) -> Iterator[Event]:
        return (event for event in self._events if about(event) and self.sees(event.job))


def explain(
    subject: str,
    views: Mapping[int, JobView],
    snapshot: Snapshot | None,
    decision: Decision | None,
    events: Sequence[Event],
    sight: Visibility = Visibility(),  # noqa: B008 - frozen
    waiting: Callable[[int], str] = lambda _: "",
    delays: Sequence[MainJobDelay] = (),
) -> tuple[str, ...]:
    """The lines about `subject`: a malleable job's number, a node's name, a pilot's id, or `main-job ID` for a job of
    the main queue. `events` are the journal's latest; for a main job, those that name it. `waiting` says why a job
    has no node; `delays`: main jobs that met pilots, and what that cost each.
    Raises NotFound: nothing of that name is known, or nothing that `sight` shows."""
    shown = _Shown(views, events, sight)
    if subject.startswith("main-job "):
        return tuple(_main_job(subject, snapshot, events, shown, delays))
    number = subject.removeprefix("job ").strip()
    if number.isdecimal():
        view = shown.views.get(int(number)) if len(number) < 19 else None  # no job's number is so long
        if view is None:
            raise NotFound(f"{subject}: no malleable job of this number is known; `malletrain status` lists them")
        return tuple(_job(view, decision, shown, waiting(view.job.id)))
    if snapshot is not None and sight.nodes and subject in snapshot.node:
        return tuple(_node(subject, snapshot, decision, shown))
    owner = next((view for view in shown.views.values() if subject in view.pilots), None)
    if owner is None:
        raise NotFound(f"{subject}: is neither a job's number, nor a node, nor a pilot such as 123_4")
    return tuple(_pilot(subject, owner, shown))


def _job(view: JobView, decision: Decision | None, shown: _Shown, waiting: str) -> Iterator[str]:
    job = view.job
    yield f"job {job.id} ({job.name}) of {job.user}: {view.phase.value}, {job.min_nodes}-{job.max_nodes} nodes"
    if view.reason:
        yield f"  {shown.words(view.reason)}"
    if view.fixed:
        yield f"  {shown.words(view.fixed)}"
    elif view.check is not None:
        said = f": {shown.words(view.check.text)}" if view.check.text else ""
        yield f"  check of its script at changing sizes: {view.check.verdict.value}{said}"
    if job.trusted:
        yield "  its script is not checked (--trust)"
    if waiting:
        yield f"  waits: {shown.words(waiting)}"
    held = ", ".join(f"{p.node or 'no node'} ({p.id}, {p.phase.value})" for p in view.active) or "none"
    yield f"  nodes: {held}; {len(view.held)} tasks wait for a hole"
    if view.world is not None:
        yield f"  generation {view.world.generation}: {len(view.world.members)} train together"
    curve = view.curve
    if curve is not None:
        points = ", ".join(f"{n}: {rate:.1f}" for n, rate in curve.points)
        source = "given" if job.given_curve and not view.curve_refuted else "learnt, see `malletrain profile`"
        yield f"  samples/s by nodes ({source}): {points}"
        if view.curve_refuted:
            yield f"  the curve that was given is no longer believed: {view.curve_refuted}"
    else:
        yield "  samples/s by nodes: not measured yet, taken as linear"
    if job.deadline is not None:
        yield f"  to be done by {utc(job.deadline)}"
    if job.budget_node_s is not None:
        yield f"  ends after {job.budget_node_s / 3600:.4g} node-hours"
    if job.batch_min is not None:
        noise = "not known yet" if view.noise_scale is None else f"{view.noise_scale:.0f} samples"
        choice = "" if view.batches else "; not chosen yet: all windows so far have about as many samples a node"
        yield f"  batch: {job.batch_min} to {job.batch_max} samples, gradient noise scale {noise}{choice}"
    if decision is not None:
        size = decision.sizes.get(job.id, 0)
        if why := why_too_dear(view, decision.horizon_s):
            yield f"  grows little: {shown.words(why)}"
        yield f"  last decision ({utc(decision.at)}, {decision.status.value}): {size} nodes"
        for action in decision.actions:
            if action.job_id == job.id:
                yield f"    {shown.words(describe_action(action))}"
        for refusal in decision.refusals:
            if refusal.subject in (f"job {job.id}", "all"):
                yield f"    not: {shown.words(refusal.reason)}"
    yield from _history(shown, lambda e: e.job == job.id)


def _node(name: str, snapshot: Snapshot, decision: Decision | None, shown: _Shown) -> Iterator[str]:
    node = snapshot.node[name]
    holders = ", ".join(_holder(job, shown) for job in snapshot.holders.get(name, ()))
    yield f"node {name}: {node.state.value} at {utc(snapshot.taken_at)}; held by {holders or 'no job'}"
    for view in shown.views.values():
        for pilot in view.active:
            if pilot.node == name:
                ends = f", ends by {utc(pilot.ends_at)}" if pilot.ends_at else ""
                reason = shown.words(pilot.reason)
                yield f"  pilot {pilot.id} of job {view.job.id}: {pilot.phase.value}{ends} {reason}".rstrip()
    if decision is not None:
        for stray in decision.strays:
            if name in stray.nodes and shown.sight.sees_main_job_of(stray.user):
                then = f"left alone: {stray.left}" if stray.left else "it is ended, and its node taken back"
                yield f"  job {stray.job} of {stray.user} is in the harvest partition and no pilot: {then}"
        for hole in decision.holes:
            if hole.node == name:
                yield f"  hole until {utc(hole.until)}: {shown.words(hole.reason)}"
        for action in decision.actions:
            if not isinstance(action, CancelTasks | TopUp) and action.node == name and shown.sees(action.job_id):
                yield f"  {shown.words(describe_action(action))}"
        for refusal in decision.refusals:
            if refusal.subject in (name, "all"):
                yield f"  not used: {shown.words(refusal.reason)}"
    yield from _history(shown, lambda e: e.node == name)


def _holder(job: SlurmJob, shown: _Shown) -> str:
    if not shown.sight.sees_main_job_of(job.user):
        return "a job of another user"
    return f"job {job.id} of {job.user} in {job.partition}"


def _pilot(pilot_id: str, view: JobView, shown: _Shown) -> Iterator[str]:
    pilot = view.pilots[pilot_id]
    where = f" on {pilot.node}" if pilot.node else ""
    since = f"{pilot.phase.value}{where} since {utc(pilot.since)}"
    yield f"pilot {pilot_id} of job {view.job.id}: {since} {shown.words(pilot.reason)}"
    yield from _history(shown, lambda e: e.pilot == pilot_id)


def _main_job(
    subject: str, snapshot: Snapshot | None, events: Sequence[Event], shown: _Shown, delays: Sequence[MainJobDelay]
) -> Iterator[str]:
    job_id = subject.removeprefix("main-job ").strip()
    rows = [] if snapshot is None else [job for job in snapshot.jobs if is_main_job(job.id, job_id)]
    about = [event for event in events if is_main_job(main_job_of(event), job_id)]
    meetings = [event.payload for event in about if isinstance(event.payload, kinds.MainJobMet)]
    users = [row.user for row in rows] or [each.user for each in meetings if each.user]
    if shown.sight.uid is not None and not (users and all(map(shown.sight.sees_main_job_of, users))):
        raise NotFound(f"{subject}: no job of yours in the main queue has this number now, and none that pilots met")
    for row in rows:
        reason = f" ({row.reason})" if row.reason else ""
        yield f"main job {row.id} of {row.user}: {row.state.value}{reason}, {row.node_count} nodes"
    if meetings and not rows:
        submitted = next((f", submitted {utc(each.submitted_at)}" for each in meetings if each.submitted_at), "")
        yield f"main job {job_id} of {users[0] if users else '?'}{submitted}: no longer in Slurm's queue"
    for event in about:
        yield from _meeting(event, shown)
    for delay in delays:
        if is_main_job(delay.main_job, job_id):
            task = "" if delay.main_job == job_id else f"{delay.main_job}: "
            yield f"  {task}{shown.words(delay.words())}"
    if not about:
        yield f"  no pilot was asked to leave for job {job_id}, and none had been on its nodes shortly before it"
        if not rows:
            yield (
                f"  the journal does not name job {job_id}: it has those that pilots met in the last 30 days, "
                "of a job that Slurm requeued the last run"
            )


def _meeting(event: Event, shown: _Shown) -> Iterator[str]:
    """The line about one event of a main job, from its fields."""
    pilot = f"pilot {event.pilot}" if shown.sees(event.job) else "a pilot"
    match event.payload:
        case kinds.ActionIntent(action=LeavePilot() | RecyclePilot()):
            yield f"  {utc(event.at)} {pilot} was asked to leave {event.node} for it"
        case kinds.MainJobMet() as meeting if event.node:
            at = event.at
            if meeting.put_off:
                said = f"it runs on {event.node} and others, after Slurm had put it off"
            elif meeting.waited_for:
                front = shown.words(f"main job {meeting.waited_for}")
                said = f"it runs on {event.node}, and had waited behind {front}"
            else:
                at, begun = event.at if meeting.left_at is None else meeting.left_at, meeting.started_at
                began = ", which it has then" if begun is None else f", which it has since {utc(begun)}"
                said = f"{pilot} {'was preempted on' if meeting.preempted else 'had left'} {event.node}{began}"
            yield f"  {utc(at)} {said}"
        case kinds.MainJobMet(put_off=True):
            yield f"  {utc(event.at)} Slurm has put it off, after it preempted a pilot for one of its parts"


def main_job_of(event: Event) -> str:
    """The main job that an event names, or ''."""
    match event.payload:
        case kinds.ActionIntent(action=LeavePilot(main_job=main_job) | RecyclePilot(main_job=main_job)):
            return main_job
        case kinds.MainJobMet(main_job=main_job):
            return main_job
    return ""


def is_main_job(found: str, asked: str) -> bool:
    """Whether `found`, the id of a job or of a part of one (`12_3`, `12+1`, `het12`), belongs to `asked`."""
    return bool(asked) and asked in (found, head_of(found))


def _history(shown: _Shown, about: Callable[[Event], bool]) -> Iterator[str]:
    figures = kinds.SamplesReported | kinds.MetricReported
    newest = [event for event in shown.events(about) if not isinstance(event.payload, figures)][-12:]
    if newest:
        yield "  lately:"
    for event in newest:
        acted = event.payload if isinstance(event.payload, kinds.ActionIntent | kinds.ActionOutcome) else None
        what = ACTION_NAMES[type(acted.action)] if acted else ""
        where = " ".join(part for part in (event.pilot or "", event.node or "") if part)
        reason = shown.words(event.reason)
        yield f"    {utc(event.at)} {event.kind} {what} {where} {reason}".replace("  ", " ").rstrip()


def describe(decision: Decision) -> Iterator[str]:
    """The lines."""
    holes, actions = len(decision.holes), len(decision.actions)
    yield f"at {utc(decision.at)}: holes {holes}, actions {actions}, sizing {decision.status.value}"
    for hole in decision.holes:
        yield f"hole    {hole.node} until {utc(hole.until)}: {hole.reason}"
    for job, nodes in sorted(decision.sizes.items()):
        yield f"size    job {job}: {nodes} {'node' if nodes == 1 else 'nodes'}"
    for stray in decision.strays:
        what = f"left alone: {stray.left}" if stray.left else "no pilot: it is ended"
        yield f"stray   job {stray.job} of {stray.user} on {', '.join(stray.nodes) or 'no node yet'}: {what}"
    yield from map(describe_action, decision.actions)
    for refusal in decision.refusals:
        yield f"not     {refusal.subject}: {refusal.reason}"
    if not decision.actions:
        yield "nothing to do"


def describe_action(action: Action) -> str:
    """One action and its reason, in one line."""
    match action:
        case StartPilot():
            what = f"start   {action.pilot} of job {action.job_id} on {action.node} for {action.limit_s:.0f} s"
        case LeavePilot():
            by = f"by {utc(action.deadline)} ({action.cause.value})"
            what = f"leave   {action.pilot} of job {action.job_id} from {action.node} {by}"
        case CutLimit():
            what = f"cut     {action.pilot} of job {action.job_id} on {action.node} to end by {utc(action.ends_at)}"
        case RecyclePilot():
            where = f" on {action.node}" if action.node else ""
            what = f"recycle {action.pilot} of job {action.job_id}{where}"
        case CancelTasks():
            what = f"cancel  {', '.join(action.pilots)} of job {action.job_id}"
        case TopUp():
            what = f"top up  job {action.job_id} by {action.tasks} held tasks"
    return f"{what}: {action.reason}"
