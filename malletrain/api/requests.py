"""What people ask of the daemon, turned into events; what only shows, `malletrain.store.views` has."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from malletrain.api.explain import explain
from malletrain.api.people_rows import profile_row, promise_row
from malletrain.api.roles import Conflict, Identity, NotFound, Unavailable
from malletrain.api.schemas import JobBody
from malletrain.api.visibility import Visibility
from malletrain.domain import event as kinds
from malletrain.domain.errors import InvalidInput, Refused
from malletrain.domain.event import Event, Payload
from malletrain.domain.job import JobPhase, JobView, MalleableJob, ScriptVerdict
from malletrain.loop.ports import Clock
from malletrain.loop.tick import Loop
from malletrain.loop.waiting_reason import why_held
from malletrain.slurm.formats.hostlist import node_names
from malletrain.slurm.site.site_facts import Harvest
from malletrain.wire.rows import ProfileRow, PromiseRow

#: Most jobs of one user that are announced and have no array attached.
MAX_UNATTACHED_JOBS = 32

DAY_S = 86_400.0


class LoopRequests:
    """Each request is one event; the loop acts on it. The routes have checked form and rights; each call is durable
    when it returns, may raise `Refused`, `InvalidInput`, `NotFound`, `Conflict`, `Unavailable`, from any thread.

    Args:
        facts: the lock that is held while events are written.
        harvest: where pilots run: jobs for another partition or account are refused.
        latest: the newest events of the journal; of_main_job: those that name a job of the main queue.
        next_id: a job number never given before.
        account_of: the account that a user's jobs are charged to; None: the one that pilots run in."""

    def __init__(
        self,
        loop: Loop,
        facts: AbstractContextManager[object],
        clock: Clock,
        harvest: Harvest,
        latest: Callable[[int], Sequence[Event]],
        next_id: Callable[[], int],
        of_main_job: Callable[[str], Sequence[Event]] = lambda _: (),
        account_of: Callable[[str], str] | None = None,
        sends_notices: bool = False,
    ) -> None:
        self._loop, self._facts, self._clock, self._harvest = loop, facts, clock, harvest
        self._latest, self._next_id, self._of_main_job = latest, next_id, of_main_job
        self._account_of, self._sends_notices = account_of, sends_notices

    def announce(self, job: JobBody, identity: Identity) -> int:
        """Take a new job; returns its number."""
        for what, asked, ours in (
            ("partition", job.partition, self._harvest.partition),
            ("account", job.account, self._harvest.account),
        ):
            if asked and ours and asked != ours:
                raise InvalidInput(what, f"pilots run in {what} {ours} here, not {asked}: leave --{what} out")
        most = self._loop.rules.max_weight
        if job.weight > most and identity.role != "operator":
            raise Refused(
                f"--weight={job.weight:g} is more than users may give ({most:g}): give the "
                "lesser ones of your jobs less, or ask an operator"
            )
        mail_user = self._address_for(job, identity)
        # Asked before the lock is taken: slurmdbd may be slow.
        account = self._account_of(identity.user) if self._account_of else job.account or self._harvest.account
        with self._facts:
            if job.key:
                # Its answer was lost, and it was sent again: the job is there.
                for known in self._loop.views.values():
                    if (known.job.uid, known.job.key) == (identity.uid, job.key):
                        return known.job.id
            self._check_unattached(identity)
            number = self._next_id()
            wanted = job.job(number, identity.user, identity.uid, self._clock.now(), account, mail_user)
            if why := self._loop.refusal(wanted):
                raise Conflict(why)
            waits = self._waits(wanted, identity)
            events = [self._event(kinds.JobAnnounced(wanted), number)]
            if job.check is not None:
                found, fewest = ScriptVerdict(job.check.verdict), min(wanted.sizes, default=wanted.min_nodes)
                checked = kinds.ScriptChecked(job.check.digest, found, job.check.text, fewest)
                events.append(self._event(checked, number, job.check.text))
            if waits:
                events.append(self._event(kinds.JobHeld(identity.user, waits=True), number, waits))
            self._loop.record(events)
        return number

    def _address_for(self, job: JobBody, identity: Identity) -> str:
        """Whom messages about a new job go to, if its owner asked for any: an address, or their own name."""
        if not job.mail:
            return ""
        if not self._sends_notices:
            raise Refused(
                "--mail-type: the daemon of this site sends nothing (its configuration has no notify.hook): leave it "
                "out; `malletrain wait JOB; mail -s 'it has ended' ADDRESS </dev/null` waits for the end"
            )
        if "@" not in job.mail_user and job.mail_user not in ("", identity.user):
            raise Refused(f"--mail-user={job.mail_user[:80]} is not your own name: give a whole address")
        return job.mail_user or identity.user

    def _waits(self, job: MalleableJob, identity: Identity) -> str:
        """For what a new job waits, or "". Whether another user's job exists is not said."""
        for kind, other in job.after:
            view = self._loop.views.get(other)
            if view is None or view.job.uid != identity.uid:
                raise Conflict(
                    f"--dependency={kind.value}:{other}: you have no job {other}, or it was over long ago; "
                    "`malletrain status --all` lists yours"
                )
        reason, never = why_held(job, self._loop.views)
        if never:
            raise Conflict(f"--dependency: the job {reason}")
        return reason

    def _check_unattached(self, identity: Identity) -> None:
        """Announcing costs a user nothing, while each job is in everybody's status and in each decision."""
        unseen = self._loop.ledger.unseen_arrays()
        idle = [
            job
            for job, view in self._loop.views.items()
            if view.job.uid == identity.uid
            and (view.phase is JobPhase.ANNOUNCED or view.waits)
            and not view.pilots
            and job not in unseen
        ]
        if len(idle) >= MAX_UNATTACHED_JOBS:
            raise Conflict(
                f"{len(idle)} jobs of {identity.user}, such as {idle[0]}, are announced and have no tasks: submit by "
                f"mtbatch, which does both, or `malletrain cancel {idle[0]}`"
            )

    def attach_array(self, job: int, array_id: int, tasks: int, identity: Identity) -> None:
        """The owner has submitted a held array of `tasks` tasks for the job. Idempotent."""
        with self._facts:
            view = self._live(job)
            # Another user's array is refused by the look at it: the answer must not say whether it exists.
            own = [other for other in self._loop.views.values() if other.job.uid == identity.uid]
            mark = f"{array_id}_"
            if any(name.startswith(mark) for name in view.pilots):
                return
            # Slurm uses numbers again: what a job that is over had by this one was another array.
            if any(name.startswith(mark) for other in own if not other.phase.is_over for name in other.pilots):
                raise Conflict(f"array {array_id} belongs to another job")
            unseen = self._loop.ledger.unseen_arrays()
            lost = f"Slurm has lost array {array_id}, and given its number to job {job}'s"
            events = [
                self._event(kinds.ArrayRefused(array_id, gone=True), other.job.id, lost)
                for other in own
                if other.job.id != job and array_id in unseen.get(other.job.id, ())
            ]
            self._loop.record([*events, self._event(kinds.ArrayAttached(array_id, tasks), job)])

    def cancel(self, job: int, identity: Identity) -> None:
        """End the job. Idempotent."""
        with self._facts:
            if not self._known(job).phase.is_over:
                self._record(kinds.JobCancelled(identity.user), job, f"cancelled by {identity.user}")

    def hold(self, job: int, identity: Identity) -> None:
        """Take the job's nodes until it is released. Idempotent."""
        with self._facts:
            view = self._live(job)
            if view.phase is not JobPhase.HELD or view.waits:
                self._record(kinds.JobHeld(identity.user), job, f"held by {identity.user}")

    def release(self, job: int, identity: Identity) -> None:
        """Let a held job run again. Idempotent."""
        with self._facts:
            if self._live(job).phase is JobPhase.HELD:
                self._record(kinds.JobReleased(identity.user), job, f"released by {identity.user}")

    def explain(self, subject: str, sight: Visibility) -> Sequence[str]:
        """Why a job (`job 3`, `3`), node, pilot (`123_4`) or main job (`main-job 99`) has what it has, in lines."""
        loop = self._loop
        asked = subject.removeprefix("main-job ")
        events = self._of_main_job(asked.strip()) if asked != subject else self._latest(5000)
        with self._facts:
            delays = loop.ledger.promise.delays(-math.inf) if asked != subject else ()
        seen = (loop.last_snapshot, loop.last_decision)
        return explain(subject, loop.views, *seen, events, sight, loop.waiting, delays)

    def promise(self, days: int, sight: Visibility) -> PromiseRow:
        """What the main queue is promised, what that costs, and how it was kept in the last `days`."""
        now = self._clock.now()
        with self._facts:
            return promise_row(self._loop.ledger.promise, self._loop.rules, now - days * DAY_S, now, sight)

    def profile(self, job: int) -> ProfileRow:
        """What is known of how the job scales."""
        loop = self._loop
        with self._facts:
            view, known = loop.views.get(job), loop.ledger.known().get(job)
        if view is None:
            raise NotFound(f"job {job} is over: its samples are in `malletrain events --job {job}`")
        return profile_row(view, known, loop.advice.get(job, ""), loop.rules)

    def drain(self, nodes: str, until: float, identity: Identity) -> Sequence[str]:
        """Keep pilots off `nodes` (Slurm's host list; empty: all) until then, by now to end it; returns the names."""
        snapshot = self._loop.last_snapshot
        if snapshot is None:
            raise Unavailable("Slurm has not been seen yet: ask again in a moment")
        wanted = node_names([nodes], "nodes") if nodes else frozenset(snapshot.node)
        unknown = sorted(wanted - set(snapshot.node))
        if unknown:
            raise InvalidInput("nodes", f"Slurm knows no {', '.join(unknown[:5])}")
        names = sorted(wanted)
        with self._facts:
            drain = kinds.OperatorRequest("drain", identity.user, tuple(names), until)
            self._record(drain, None, f"drain by {identity.user}")
        return names

    def ban(self, user: str, uid: int, reason: str, identity: Identity) -> None:
        """Refuse the user from now on, and end the user's jobs. Idempotent."""
        why = f"banned by {identity.user}: {reason}"
        ban = kinds.OperatorRequest("ban", identity.user, user=user, uid=uid)
        with self._facts:
            own = [id for id, view in self._loop.views.items() if view.job.uid == uid and not view.phase.is_over]
            ends = [self._event(kinds.JobCancelled(identity.user), job, why) for job in own]
            # In one transaction: no job of theirs is left behind.
            self._loop.record([self._event(ban, None, why), *ends])

    def unban(self, user: str, uid: int, identity: Identity) -> None:
        """Admit the user again. Idempotent."""
        with self._facts:
            if uid in self._loop.ledger.bans:
                unban = kinds.OperatorRequest("unban", identity.user, user=user, uid=uid)
                self._record(unban, None, f"admitted again by {identity.user}")

    def bans(self) -> Mapping[int, str]:
        """Why each banned user id is."""
        return self._loop.ledger.bans

    def drains(self) -> Mapping[str, float]:
        """Until when (Unix seconds) operators keep pilots off each node."""
        with self._facts:
            return self._loop.ledger.drains(self._clock.now())

    def _known(self, job: int) -> JobView:
        view = self._loop.views.get(job)
        if view is None:
            raise NotFound(f"there is no job {job}: `malletrain status` lists them")
        return view

    def _live(self, job: int) -> JobView:
        view = self._known(job)
        if view.phase.is_over:
            raise Conflict(f"job {job} is {view.phase.value} already")
        return view

    def _record(self, payload: Payload, job: int | None, reason: str) -> None:
        self._loop.record([self._event(payload, job, reason)])

    def _event(self, payload: Payload, job: int | None, reason: str = "") -> Event:
        return Event(self._clock.now(), payload, job, reason=reason)
