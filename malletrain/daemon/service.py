"""The composition root: every part made and joined, and the only writer of the journal."""

import functools
import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from malletrain import __version__
from malletrain.api.app import create_app
from malletrain.api.auth import Auth
from malletrain.api.connections import ConnectionTable, within_descriptors
from malletrain.api.http_server import HttpServer, serve
from malletrain.api.people_routes import JournalNotifier, PeopleRoutes
from malletrain.api.rate_limits import ApiLimits, ReportBudget
from malletrain.api.requests import LoopRequests
from malletrain.api.roles import Roles, uids_of
from malletrain.api.worker_routes import WorkersGate, WorkersRouter
from malletrain.config.sections import Config
from malletrain.daemon.first_fold import FirstFold, folded
from malletrain.daemon.journal_keeper import JournalKeeper
from malletrain.daemon.metrics import Metrics, RunHealth
from malletrain.daemon.notice_hook import NoticeHook
from malletrain.daemon.poll_backoff import PollBackoff
from malletrain.daemon.process.timers import SystemClock
from malletrain.daemon.site_watch import SiteWatch
from malletrain.domain.decision import Decision
from malletrain.domain.errors import JournalUnavailable
from malletrain.domain.event import BreakerSwitched, DaemonStarted, DaemonStopped, Event, JobNotified
from malletrain.domain.snapshot import NodeState, Snapshot
from malletrain.loop.membership.admission import admit, holding
from malletrain.loop.membership.members import Membership
from malletrain.loop.membership.state import MembershipSettings
from malletrain.loop.memory import MemoryJournal
from malletrain.loop.ports import Cluster
from malletrain.loop.tick import Loop
from malletrain.loop.trackers.harm_signals import why_to_pause
from malletrain.site_rules import excluded_nodes, harvest_of, policy_from, rules_from
from malletrain.slurm.actuator.client import ActuatorClient
from malletrain.slurm.cluster import SlurmCluster
from malletrain.slurm.command import TIMEOUT_S, Commands
from malletrain.slurm.queries import PERIODS_DAYS, past_arrivals
from malletrain.slurm.read_pyslurm import PYTHON, choose
from malletrain.slurm.site import site_facts
from malletrain.slurm.submission.user_accounts import UserAccounts
from malletrain.store.history_views import StoreHistory
from malletrain.store.journal import SqliteJournal, read_events
from malletrain.store.upkeep import Upkeep
from malletrain.store.views import StoreViews, stray_nodes
from malletrain.web.page_routes import WebPages
from malletrain.web.sign_in import SignIn

#: A look that Slurm took long to answer is followed by rest, ten times as long, up to this (seconds): ticks come
#: less often then.
LONGEST_REST_S = 120.0

#: A command of Slurm's that runs when the daemon ends has so long (seconds): one that steers takes a
#: fraction of a second, and what is cut off is found out by the next daemon.
GOODBYE_S = 3.0

#: Jobs that ended so long (seconds) ago are forgotten: the journal has them.
REMEMBERED_S = 86_400.0


class Service:
    """One daemon at work. `tick`, `watch` and `react` come from timers, each in a thread of its own.

    Two locks: `_deeds`, held while Slurm is steered, and `_facts`, held just while events are written and folded.
    Whoever holds `_facts` never waits for Slurm, so a worker's fault is mended while a tick waits."""

    def __init__(
        self, config: Config, *, act: bool, user_mode: bool, facts: Callable[[], site_facts.SiteFacts] | None = None
    ) -> None:
        """Check the site, open the journal, fold it, and listen unless nothing is to be done for real (`act`).

        `facts`: gives what the site's Slurm is configured to do, where it was asked already.
        Raises MalletrainError: Slurm does not answer, the partition is not fit, the journal is in use, ..."""
        self._config = config
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger("malletraind")
        self._clock = SystemClock()
        self._checked_at = float("-inf")
        self._begun, self._pace = self._clock.now(), PollBackoff(self._clock.elapsed)
        self._tick_pace = PollBackoff(self._clock.elapsed, LONGEST_REST_S)
        self.metrics = Metrics(self._clock)
        self._runs = RunHealth(lambda task: self.metrics.failures.labels(task).inc(), self.metrics.slurm_answers.set)
        self._commands = commands = Commands(
            config.slurm.environment(os.environ), on_command=self.metrics.slurm_command
        )
        self._apart: ActuatorClient | None = None
        found = site_facts.read(commands) if facts is None else facts()
        harvest = harvest_of(config, found)
        charging = config.charging
        self._accounts = UserAccounts(
            commands, charging.account, charging.users, config.slurm.account, self._clock.elapsed, found.accounting
        )
        self._site = SiteWatch(commands, harvest, found, self._clock.elapsed)
        self._site.refuse_unfit()
        self._facts, self._deeds = threading.RLock(), threading.Lock()
        self._wake, self._closed = threading.Event(), threading.Event()
        path = Path(config.store.path)
        # A look that does nothing reads beside the daemon that may be running.
        self._disk = SqliteJournal(path) if act else None
        begun = FirstFold() if self._disk is None else folded(path)
        self._keeper: JournalKeeper | None = None
        if self._disk is not None:
            min_free = 1e6 * config.store.min_free_mb
            self._keeper = JournalKeeper(self._disk, self.metrics, min_free, self._clock.elapsed)
        journal = self._keeper or _copy_of(path)
        self._membership = Membership(
            MembershipSettings(),
            self._clock,
            lambda claim: admit(self._loop.views, claim),
            begun.worlds,
            self._refused_worker,
            functools.partial(secrets.token_hex, 32),  # bytes
            lambda job: holding(self._loop.views, job),
            lambda job, until: self._loop.reserve_generations(job, until),  # noqa: PLW0108 - made below
        )
        budget = ReportBudget(ApiLimits(), self._clock, self.metrics.figures_dropped.inc)
        self._roles = Roles(
            uids_of(config.operators, "operators") | {os.geteuid()},
            serves={os.geteuid()} if user_mode else None,
            private_data=lambda: self._site.facts.private_data,
            bans=lambda: self._loop.ledger.bans,
        )
        self._gate = WorkersGate(
            self._membership,
            self._facts,
            self._persist,
            self._clock,
            budget,
            self._roles.sight_of,
            self._roles.is_banned,
            lambda uid, digest: None if self._views is None else self._views.script_check(uid, digest),
        )
        cluster = self._cluster(commands, harvest, found.bf_interval_s)
        rules = rules_from(config, found)
        rules = replace(rules, harvest_account=config.slurm.account, takes_back=not user_mode)
        self._loop = Loop(
            cluster, self._gate, journal, self._clock, policy_from(config), rules, act=act, guard=self._facts
        )
        events = begun.events + self._loop.restore(begun.ledger)
        self._loop.ledger.promise.look_s = config.loop.tick_s
        self._harvest = harvest
        self._hook = NoticeHook(config.notify.hook, self._clock)
        self._views: StoreViews | None = None
        self._history: StoreHistory | None = None
        self._server: HttpServer | None = None
        self._changes = JournalNotifier()
        self.url = ""
        self._log.info("journal read", events=events, jobs=len(self._loop.views))
        self._learn_arrivals(commands, found)
        if self._disk is not None:
            self._begin(self._disk)

    def _learn_arrivals(self, commands: Commands, facts: site_facts.SiteFacts) -> None:
        """How main jobs of late arrive, by accounting. Also where nothing is promised: people ask how many were late,
        and of how many."""
        promise = self._loop.rules.promise
        if facts.accounting:
            days = PERIODS_DAYS[0 if promise is not None and promise.p95_s is not None else 1]
            found = self._loop.ledger.promise.learn(past_arrivals(commands, self._config.slurm.partition, days))
            self._log.info("main jobs by accounting", arrivals=found)

    # -- what timers call --------------------------------------------------------------------------------------

    def work(self) -> Sequence[tuple[str, float, Callable[[], object]]]:
        """What is done again and again: its name, the seconds between two runs, and what. No run overlaps itself."""
        loop = self._config.loop
        return (
            ("tick", loop.tick_s, self.tick),
            ("watch", loop.watch_interval_s, self.watch),
            ("journal", 5.0, self.flush),
            ("messages", 5.0, self.tell_owners),
            ("upkeep", 3600.0, self.upkeep),
        )

    def tick(self) -> Decision:
        """Look, decide, act. Without an answer from Slurm, or while it rests from a slow one: an empty decision."""
        decision = None
        if self._tick_pace.may_look():
            with self._runs.run("tick"):
                with self._deeds:
                    self._loop.react()
                with self.metrics.stage("look"):
                    snapshot = self._tick_pace.timed(self._loop.ask_snapshot)
                self._runs.looked(answered=snapshot is not None)
                if snapshot is not None:
                    self.metrics.snapshot_at.set(snapshot.taken_at)
                    with self._deeds, self.metrics.stage("decide and act"):
                        self._mind_breaker(snapshot)
                        decision = self._loop.tick_on(snapshot)
                self.metrics.show_jobs(self._loop.views.values())
        return decision or Decision(at=self._clock.now())

    def watch(self) -> None:
        """A light look at the waiting main jobs, for yielding before Slurm's next cycle preempts.

        Left out while the controller is slow: a look must not cost the main queue more than it gives. Main jobs
        that come in a burst are seen one look after the other, so a look that found some is followed by another."""
        end = self._clock.elapsed() + self._config.loop.watch_interval_s
        while self._pace.may_look():
            with self._runs.run("watch"):
                snapshot = self._pace.timed(self._loop.ask_look)
                if snapshot is not None or self._loop.unavailable:
                    self._runs.looked(answered=snapshot is not None)
                if snapshot is None:
                    return
                with self._deeds:
                    gave_way = self._loop.watch_on(snapshot)
            soon = self._pace.soon_s
            if not gave_way or self._clock.elapsed() + soon > end or self._closed.wait(soon):
                return

    def react(self) -> None:
        """Let workers' deadlines pass, and free the nodes of those that have left."""
        self._gate.tick()
        with self._deeds:
            self._loop.react()

    def upkeep(self) -> None:
        """Forget jobs that ended a day ago, which the journal still has, and keep the journal small and sound. What
        is wrong with it is in `ailments` then."""
        with self._facts:
            self._loop.ledger.forget_over(self._clock.now() - REMEMBERED_S)
        if self._disk is not None:
            with self._runs.run("upkeep"):
                upkeep = Upkeep(self._disk)
                done = upkeep.tend(self._clock.now())
                if self._clock.elapsed() - self._checked_at >= 86_400.0:  # daily
                    upkeep.check()
                    self._checked_at = self._clock.elapsed()
            self._log.info("upkeep", merged=done.merged, deleted=done.deleted, freed_bytes=done.freed_bytes)

    def flush(self) -> None:
        """Write what the journal refused before, once it takes it."""
        if self._keeper is not None:
            with self._runs.run("journal"):
                self._keeper.flush()

    def tell_owners(self) -> None:
        """Send owners the messages that they asked for: written down first, so that a message is never sent twice."""
        if not self._hook.is_on:
            return
        with self._facts:
            due = self._loop.ledger.notices_due(self._clock.now())
        for notice in due:
            if self._closed.is_set():
                return
            job = notice.job.id
            try:
                self._loop.record([Event(self._clock.now(), JobNotified(notice.what), job)])
            except JournalUnavailable:
                return  # said by what looks after the journal
            if why := self._hook.send(notice):
                self._log.warning("message not sent", job=job, what=notice.what.value, why=why)
                self._loop.record([Event(self._clock.now(), JobNotified(notice.what, failed=True), job, reason=why)])

    def skipped(self, task: str) -> None:
        """A run of a timer was left out: the one before is still going."""
        self.metrics.skipped.labels(task).inc()

    def ailments(self) -> Sequence[str]:
        """What is wrong now, a line each: what /v1/health answers."""
        found = list(self._runs.ailments())
        snapshot, now = self._loop.last_snapshot, self._clock.now()
        oldest = 3 * self._config.loop.tick_s + TIMEOUT_S
        if snapshot is None and now - self._begun > oldest:
            found.append("Slurm has not been seen yet: is slurmctld up? `scontrol ping` tells")
        elif snapshot is not None and now - snapshot.taken_at > oldest:
            found.append(f"Slurm was last seen {now - snapshot.taken_at:.0f} s ago: `scontrol ping` tells more")
        return [*found, why] if (why := self._why_unsafe() or self._loop.paused) else found

    # -- its life ----------------------------------------------------------------------------------------------

    def serve_forever(self) -> None:
        """Return when the service is closed, or its API has failed."""
        while not self._closed.wait(1.0):
            if self._server is not None and not self._server.is_serving:
                self._log.error("the API has stopped")
                return

    def hurry(self) -> None:
        """The end is near: a round that Slurm keeps waiting is not waited for any longer than this."""
        self._hook.end()
        self._commands.end_within(GOODBYE_S)
        if self._apart is not None:
            self._apart.end_within(GOODBYE_S)

    def close(self) -> None:
        """Stop serving, record it, give the journal back. Pilots train on: Slurm and their limits hold them."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._wake.set()
        if self._server is not None:
            self._gate.end_polls()
            self._changes.end()
            self._server.close()
            self._reactor.join(10)
            self._persist()
            self._loop.record([Event(self._clock.now(), DaemonStopped())])
            self.flush()
        for reader in (self._views, self._history):
            if reader is not None:
                reader.close()
        if self._disk is not None:
            self._disk.close()

    def _cluster(self, commands: Commands, harvest: site_facts.Harvest, bf_interval_s: float) -> Cluster:
        """Slurm, steered by this process, or by the actuator where there is one."""
        clock, release = self._clock.now, self._site.facts.release
        pyslurm, why = choose(commands, release, os.environ.get(PYTHON, ""))
        self._log.info("reader", what=why)
        here = SlurmCluster(commands, harvest, self._owner_of, clock, bf_interval_s, pyslurm)
        socket_path = self._config.actuator.socket
        if not socket_path:
            return here
        # The longest order is four of Slurm's commands.
        patience_s = 4 * TIMEOUT_S + 5.0
        self._apart = ActuatorClient(here, Path(socket_path), self._owner_of, patience_s)
        return self._apart

    def _former_urls(self) -> tuple[str, ...]:
        """URLs of this daemon that jobs which are not over were submitted with: their scripts hold them."""
        since = [view.job.submitted_at for view in self._loop.views.values() if not view.phase.is_over]
        urls = self._loop.ledger.former_urls(self.url, min(since)) if since else ()
        if urls:
            self._log.warning("jobs call this daemon by a former URL: keep it until they are over", urls=urls)
        return urls

    def _begin(self, journal: SqliteJournal) -> None:
        """Listen, and answer workers as they speak."""
        config, roles = self._config, self._roles
        port = config.api.port or _free_port(config.api.host)
        self.url = config.api.url or f"http://{socket.getfqdn()}:{port}"
        audiences = (self.url, *self._former_urls())
        auth = Auth(audiences, roles, self._clock)
        journal.on_append(self._changes.ring)
        views = self._views = StoreViews(
            journal.path,
            lambda: self._loop.last_snapshot,
            lambda: self._loop.last_decision,
            __version__,
            self.notices,
            self._loop.waiting,
        )

        def latest(count: int) -> Sequence[Event]:
            return tuple(journal.read(max(0, journal.last - count)))

        requests = LoopRequests(
            self._loop,
            self._facts,
            self._clock,
            self._harvest,
            latest,
            views.next_job_id,
            views.of_main_job,
            self._accounts.of,
            sends_notices=self._hook.is_on,
        )
        limits, slurm = ApiLimits(), config.slurm
        site = {"partition": slurm.partition, "account": slurm.account, "qos": slurm.qos}
        site["sbatch"] = " ".join(config.pilot.sbatch)
        connections = ConnectionTable(limits, within_descriptors(limits.connections))
        app = create_app(
            PeopleRoutes(
                requests, views, auth, roles, self._changes, self._clock, limits, site, self._gate.budget.journal
            ),
            WorkersRouter(self._gate, auth.worker_uid, connections),
            connections,
            holds_token=self._gate.holds_token,
            metrics=self.metrics.render,
            ailments=self.ailments,
            pages=self._pages(journal.path) if config.web.serve else None,
        )
        self._server = serve(app, config.api.host, port, connections)
        if not self._server.was_held:
            auth.listens_since = self._clock.elapsed()
        if os.environ.get("LISTEN_FDS") and not self._server.is_inherited:
            mend = "systemctl edit malletraind.socket, or stop it"
            self._log.warning("malletraind.socket holds another port than api.port", port=port, mend=mend)
        self._loop.record([Event(self._clock.now(), DaemonStarted(__version__, url=self.url))])
        self._reactor = threading.Thread(target=self._react_for_ever, name="reactor", daemon=True)
        self._reactor.start()

    def _pages(self, journal: Path) -> WebPages:
        """The web page."""
        self._history = StoreHistory(journal)
        sign_in = SignIn(self._roles, self._clock, self.url)
        return WebPages(sign_in, self._history, self._node_states, lambda: stray_nodes(self._loop.last_decision))

    # -- what the parts ask of each other ----------------------------------------------------------------------

    def _persist(self) -> None:
        """Workers have said something: into the journal before any of them sees what follows."""
        if self._loop.take_reports():
            self._wake.set()

    def _react_for_ever(self) -> None:
        """A worker that has left frees its node now, not at the next timer."""
        while not self._closed.is_set():
            self._wake.wait(0.1)  # a worker's fault is mended in a fraction of a second
            self._wake.clear()
            if not self._closed.is_set():
                try:
                    with self._runs.run("react"):
                        self.react()
                except Exception:  # noqa: BLE001 - whatever it is, the next round must come; the log has it whole
                    self._log.exception("reacting to workers failed")

    def _refused_worker(self, job: int, reason: str) -> None:
        self.metrics.workers_refused.inc()
        self._log.warning("worker refused", job=job, reason=reason)

    def _owner_of(self, job_id: int) -> int | None:
        view = self._loop.views.get(job_id)
        return None if view is None else view.job.uid

    def _mind_breaker(self, snapshot: Snapshot) -> None:
        """Step back at signs of harm or without a journal, and say so in log, journal and `status`."""
        before, unfit = self._site.facts, self._site.why_unfit()
        if self._site.facts is not before:  # read again
            excluded = excluded_nodes(self._config, self._site.facts)
            self._loop.rules = replace(self._loop.rules, exclude_nodes=excluded)
        ledger, rules = self._loop.ledger, self._loop.rules
        signs = ledger.signs_of_harm(rules, unfit)
        why = self._why_unsafe() or why_to_pause(signs, self._clock.now(), self._config.breaker.preemptions_per_hour)
        if bool(why) != bool(self._loop.paused):
            self._log.warning("breaker", why=why or "closed again")
            self._loop.record([Event(self._clock.now(), BreakerSwitched(bool(why)), reason=why)])
        self._loop.paused = why
        self._loop.crowded = self._site.why_no_more_tasks(sum(job.task_count for job in snapshot.jobs))
        self.metrics.breaker_open.set(bool(why))

    def _why_unsafe(self) -> str:
        return self._keeper.why_unsafe() if self._keeper is not None else ""

    def notices(self) -> Sequence[str]:
        """What people should know besides: why nothing starts, and what is in the way."""
        found = [why] if (why := self._why_unsafe() or self._loop.paused) else []
        if self._loop.crowded:
            found.append(f"no held tasks are added: {self._loop.crowded}")
        decision = self._loop.last_decision
        if decision is not None and decision.strays:
            nodes = len(stray_nodes(decision))
            found.append(
                f"{len(decision.strays)} jobs that are no pilots are in the harvest partition, on {nodes} nodes: "
                "`malletrain events` and `explain NODE` say whose"
            )
        return found

    def _node_states(self) -> dict[str, NodeState]:
        snapshot = self._loop.last_snapshot
        return {} if snapshot is None else {node.name: node.state for node in snapshot.nodes}


def _copy_of(path: Path) -> MemoryJournal:
    journal = MemoryJournal()
    journal.append(read_events(path))
    return journal


def _free_port(host: str) -> int:
    """A port for `--user`, whose URL must be known before it serves."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as probe:
        return int(probe.getsockname()[1])
