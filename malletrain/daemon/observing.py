"""`malletraind --observe`: the daemon's own loop over imagined pilots, for weeks, with the right to look alone.

It listens on nothing, asks Slurm to change nothing, and writes a journal of its own beside the daemon's.
`malletrain observed` reads it."""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from malletrain import __version__
from malletrain.config.sections import Config
from malletrain.daemon.poll_backoff import PollBackoff
from malletrain.daemon.process.timers import SystemClock
from malletrain.domain import event as kinds
from malletrain.domain.event import Event
from malletrain.domain.job import Curve, MalleableJob
from malletrain.loop.tick import Loop
from malletrain.observe.shadow import NOBODY, ShadowCluster, ShadowWorkers
from malletrain.site_rules import policy_from, rules_from
from malletrain.slurm.cluster import SlurmCluster
from malletrain.slurm.command import Commands
from malletrain.slurm.site import site_facts
from malletrain.store.journal import SqliteJournal, observed_path
from malletrain.store.upkeep import Upkeep

#: An imagined job that has consumed so many tasks is followed by a new one: what is folded stays small.
TASKS_OF_A_JOB = 2000

#: Array numbers of one imagined job begin at its own number times this.
_ARRAYS = 1_000_000


class Observing:
    """What would be harvested, and what that would cost the main queue. `tick` and `watch` come from timers."""

    #: It listens on nothing.
    url = ""

    def __init__(self, config: Config) -> None:
        """Read the site's configuration, open the journal of observation, fold it, and begin.
        Raises MalletrainError: Slurm does not answer, or the journal is in use."""
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger("malletraind")
        self._config = config
        self._clock = clock = SystemClock()
        self._commands = Commands(config.slurm.environment(os.environ))
        facts = _with_partition(site_facts.read(self._commands), config.slurm.partition)
        rules = replace(rules_from(config, facts), max_nodes=1)  # imagined pilots hold a node each
        harvest = site_facts.Harvest(config.slurm.partition, config.slurm.account, config.slurm.qos)
        real = SlurmCluster(self._commands, harvest, lambda _job: None, clock.now, facts.bf_interval_s)
        self._shadow = ShadowCluster(real, config.slurm.partition, clock)
        self._deeds, self._closed = threading.Lock(), threading.Event()
        self._noted_at = float("-inf")
        self._pace = PollBackoff(clock.elapsed)
        self.path = observed_path(Path(config.store.path))
        self._journal = SqliteJournal(self.path)
        self._workers = ShadowWorkers(self._shadow, 0, clock)
        self._loop = Loop(
            self._shadow, self._workers, self._journal, clock, policy_from(config), rules, guard=threading.RLock()
        )
        self._job = 0
        self._loop.restore()
        started = kinds.DaemonStarted(
            __version__,
            look_s=config.loop.watch_interval_s,
            leave_s=rules.usual_leave_s,
            keep_idle=rules.keep_idle,
            max_pilots=rules.max_pilots,
        )
        self._loop.record([Event(clock.now(), started)])
        self._imagine_a_job("observing begins")
        self._log.info("observing", journal=str(self.path), partition=config.slurm.partition)

    def work(self) -> Sequence[tuple[str, float, Callable[[], object]]]:
        """As `Service.work`; a run whose facts cannot be written fails, and the log says so."""
        loop = self._config.loop
        return (
            ("tick", loop.tick_s, self.tick),
            ("watch", loop.watch_interval_s, self.watch),
            ("upkeep", 3600.0, self.upkeep),
        )

    def tick(self) -> None:
        """Look and decide; what comes of it is imagined, and recorded."""
        with self._deeds:
            self._loop.react()
        snapshot = self._loop.ask_snapshot()
        if snapshot is None:
            return
        with self._deeds:
            view = self._loop.views.get(self._job)
            if view is None or view.phase.is_over or len(view.pilots) - len(view.active) > TASKS_OF_A_JOB:
                self._imagine_a_job("its tasks are used up")
            self._note_main_jobs()
            self._loop.tick_on(snapshot)

    def watch(self) -> None:
        """The light look at the waiting main jobs, left out while the controller is slow."""
        snapshot = self._pace.timed(self._loop.ask_look) if self._pace.may_look() else None
        if snapshot is not None:
            with self._deeds:
                self._loop.watch_on(snapshot)
                self._loop.react()

    def skipped(self, task: str) -> None:
        """Only logs a line: observing counts no errors."""

    def upkeep(self) -> None:
        """Keep the journal small."""
        with self._deeds:
            self._loop.ledger.forget_over(self._clock.now() - 3600.0)
        Upkeep(self._journal).tend(self._clock.now())

    def serve_forever(self) -> None:
        """Return when it is closed."""
        self._closed.wait()

    def hurry(self) -> None:
        """The end is near: Slurm is waited for no longer."""
        self._commands.end_within(0.0)

    def close(self) -> None:
        """Record the end, and give the journal back."""
        if not self._closed.is_set():
            self._closed.set()
            self._loop.record([Event(self._clock.now(), kinds.DaemonStopped())])
            self._journal.close()

    def _note_main_jobs(self) -> None:
        """Record how many started; every minute also when none did, as a sign of life."""
        now, jobs = self._clock.now(), self._shadow.take_main_started()
        if jobs or now - self._noted_at >= 60.0:  # time observed is counted up to the last event
            self._noted_at = now
            self._loop.record([Event(now, kinds.MainJobsStarted(jobs))])

    def _imagine_a_job(self, why: str) -> None:
        """An endless job that scales perfectly: it takes every node that it is given. Those before it are over."""
        now = self._clock.now()
        events = [
            Event(now, kinds.JobCancelled(), number, reason=why)
            for number, view in self._loop.views.items()
            if not view.phase.is_over
        ]
        self._job = max(self._loop.views, default=0) + 1
        most, array = self._loop.rules.max_pilots, self._job * _ARRAYS
        job = MalleableJob(self._job, "imagined", NOBODY, -1, "", 1, most, now, given_curve=Curve.linear(most))
        self._shadow.submit_array(NOBODY, most, array)
        self._workers.next_array = array + 1
        events.append(Event(now, kinds.JobAnnounced(job), self._job))
        events.append(Event(now, kinds.TasksAdded(array, tuple(range(most))), self._job))
        self._loop.record(events)


def _with_partition(facts: site_facts.SiteFacts, name: str) -> site_facts.SiteFacts:
    """The site with a harvest partition over all its nodes, where it has none yet."""
    if name in facts.partitions:
        return facts
    nodes = frozenset[str]().union(*(partition.nodes for partition in facts.partitions.values()))
    imagined = site_facts.PartitionFacts(name, 0, "REQUEUE", 0.0, None, nodes, "UP")
    return replace(facts, partitions={**facts.partitions, name: imagined})
