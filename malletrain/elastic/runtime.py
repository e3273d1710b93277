"""Everything that the parts of one training session share, made in one place and in order."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import logging
import os
import signal
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import torch

from malletrain.elastic.comm.background import Background, all_ended
from malletrain.elastic.comm.carrier import find_carrier
from malletrain.elastic.comm.group import Group, SoloGroup
from malletrain.elastic.comm.node_group import LocalRank, NodeGroup, find_local_rank
from malletrain.elastic.comm.static_rendezvous import RENDEZVOUS_TIMEOUT, environment_world, step_host
from malletrain.elastic.comm.world_group import require_one_carrier, with_device
from malletrain.elastic.data.batch_size import Chosen, SessionBatch, as_rule
from malletrain.elastic.data.dataset_digest import DatasetChanges, dataset_digest
from malletrain.elastic.data.prefetch import BatchLoader, SampleLoader
from malletrain.elastic.data.random_seeds import BETWEEN_STEPS, seed_plain
from malletrain.elastic.data.sampler import DrawnOrder, Sampler, Share, mix
from malletrain.elastic.data.streams import StreamBatches, StreamPositions, StreamReader, Streams, StreamSampler
from malletrain.elastic.data.virtual_shards import VirtualShards
from malletrain.elastic.equality import Equality, judge, synced_layers
from malletrain.elastic.errors import ElasticError, JobOver, PeerLost, Released, SessionOver
from malletrain.elastic.gradients.batch_gather import BatchGather
from malletrain.elastic.gradients.learning_rate import LearningRate
from malletrain.elastic.gradients.reducer import GradientPhase, GradientReducer
from malletrain.elastic.gradients.sync_batchnorm import SyncBatchNormLayers
from malletrain.elastic.invariants.agreement import RoundKind
from malletrain.elastic.invariants.invariants import Invariants
from malletrain.elastic.launch import hang_watch, job_sessions, worker_start
from malletrain.elastic.launch.failure_report import (
    ENDED,
    FLUSH_TIMEOUT_S,
    MAX_TEXT_CHARACTERS,
    before_immediate_end,
    report_uncaught,
    text_of,
)
from malletrain.elastic.link import standalone_record
from malletrain.elastic.link.daemon_link import END_PATIENCE_S, Link
from malletrain.elastic.link.local_group import Follower
from malletrain.elastic.link.training_reports import Meter, Reports
from malletrain.elastic.resize.lifecycle import WorkerLifecycle
from malletrain.elastic.resize.member import Member
from malletrain.elastic.resize.reconfigure import Reconfigurer
from malletrain.elastic.resize.state_recovery import StateRecovery
from malletrain.elastic.state.buffer_copies import BufferCopies
from malletrain.elastic.state.checkpoint_store import (
    Checkpointing,
    CheckpointStore,
    checkpoint_directory,
    resumed_directory,
)
from malletrain.elastic.state.shared_values import SharedValues
from malletrain.elastic.state.training_state import SCRIPT_VALUES, Position, TrainingState
from malletrain.wire import messages
from malletrain.wire.errors import WireError

log = logging.getLogger("malletrain.elastic")

#: How long a worker waits for the final state of a session that the others have ended.
FINAL_STATE_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What few sessions need: `Session(..., options=elastic.Options(...))`.

    Attributes:
        order: called with an epoch; returns every index of the data set once, the same on every worker: a list of
            indices, or of batches, each a list of at most `batch_size` indices. For batches of samples of similar
            length, or a curriculum. Default: a random order, or with `shuffle=False` as they lie.
        learning_rate: how the learning rate follows a batch that changes. Default: it does not.
        noise_scale: whether to measure the gradient noise scale. Default: if the batch may change.
        loaders: number of processes that load batches ahead. Default: batches are loaded between steps.
        additive_loss: whether the loss is a mean or sum of one term a sample. Pass False for contrastive losses,
            which compare samples of a batch, and for others that are no such sum (a root of a mean).
        must_be_finite: whether gradients that are nan or infinite raise an error that names the worker. Default: yes,
            unless a tracked `GradScaler` expects them.
        world: outside a pilot, the group of the processes that were started together (`elastic.environment_world`,
            `elastic.mpi_world`). Default: this process trains alone.
        checkpoint_dir: where to save the state while the job has no nodes. Default: `.malletrain/JOB` in the
            directory of submission.
        checkpoint_s: seconds between checkpoints, which are written while training goes on and used if all nodes are
            lost at once. (When nodes are given back in order, the state is saved in any case.)
        when_main: called when this worker becomes the main one, for example to open a log file.
        when_joining: called with epoch and step on a worker that joins, or resumes, a training that has begun, before
            its first step: for what the script did in earlier epochs and the training state does not hold, such as a
            stage of the data set. (Which parameters are trained, and their groups in optimizers, it is given.)
    """

    order: Callable[[int], Sequence[Any]] | None = None
    learning_rate: LearningRate | None = None
    noise_scale: bool | None = None
    loaders: int = 0
    additive_loss: bool = True
    must_be_finite: bool | None = None
    world: Group | None = None
    checkpoint_dir: str | os.PathLike[str] | None = None
    checkpoint_s: float = 600.0
    when_main: Callable[[], object] | None = None
    when_joining: Callable[[int, int], object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Options):
    """The keyword arguments of `Session`, and its options; see there."""

    batch_size: int | Chosen
    seed: int
    shuffle: bool
    drop_last: bool
    collate: Callable[[list[Any]], Any] | None
    reduction: Literal["mean", "sum"]
    virtual_shards: int | None
    warm_up: Callable[[Any], Any] | None


class Runtime:
    """One training session: its parts, and the step under way. Raises `ElasticError`: it cannot be trained this way;
    the message says what to change."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        dataset: Any,
        settings: Settings,
    ) -> None:
        environ, mean = os.environ, settings.reduction == "mean"
        self._stages, self._begins_at = dict[str, float](), time.monotonic()  #: seconds of the start, by part
        self._settings = settings
        local_rank = find_local_rank(environ) if settings.world is None else LocalRank()
        self.model = model
        worker_start.check_model(model)
        self.committed = True  #: whether the step under way is committed
        self.load_s = 0.0
        self.joined = False  #: whether training has begun
        self.calls = 0  #: collective calls of the script since the last step
        self.step: Any = None  #: the `Step` under way; None between steps
        self.backwards = 1  #: `backward()` calls of a step without a block
        self.left_by = ""  #: the exception that has left a step in its middle
        self.may_be_half = False  #: whether the script has left the last committed step before its end
        self._reported = False  #: how the script ends
        self.passed = False  #: whether this worker passes over the session, which the others have ended
        self.finished = False
        self._kept_final = self._completed = False
        self._result: dict[str, Any] = {}
        #: Whether this worker was in the session's world; the generation up to which plans are not entered.
        self.in_world, self.tried = False, 0
        self._finished_epoch = -1
        self.when_main = [settings.when_main] if settings.when_main else []
        self.when_joining = [settings.when_joining] if settings.when_joining else []
        self._was_main = False
        #: The training state as it comes back before a void step is repeated: its body has gone on meanwhile.
        self.kept: tuple[bytes, list[torch.Tensor]] | None = None

        # What is trained: data, batch, state.
        self.session_batch = SessionBatch(as_rule(settings.batch_size), settings.learning_rate, settings.noise_scale)
        norms = synced_layers(model)
        streams = dataset if isinstance(dataset, Streams) else None
        self._check_settings(bool(norms), bool(streams))
        self.position = Position()
        batch = self.session_batch.rule.reference
        self.loader: SampleLoader | StreamReader
        self.sampler: Sampler | StreamSampler
        digest, forked = dataset_digest(dataset), bool(settings.loaders)
        changes = None if streams is not None else DatasetChanges(dataset, digest, in_processes=forked)
        self.dataset_changes = changes
        if streams is not None:
            self.loader = reader = StreamReader(streams, settings.seed, settings.collate)
            positions = StreamPositions(streams.count)
            self.sampler = stream_sampler = StreamSampler(self.position, positions, batch, settings.seed)
            length = streams.count
        else:
            self.loader = sample_loader = SampleLoader(dataset, settings.seed, settings.collate)
            drawn = settings.order if isinstance(settings.order, DrawnOrder) else None
            length = len(dataset) if drawn is None else drawn.samples
            self.sampler = sampler = Sampler(
                length,
                batch,
                seed=settings.seed,
                shuffle=settings.shuffle,
                drop_last=settings.drop_last,
                order=settings.order,
            )
            if settings.order is not None and not self.session_batch.fixed and sampler.batch_ends(0):
                raise ElasticError(
                    "an order that consists of batches needs a batch_size that is a number, that of the largest: "
                    "with Chosen give an order of indices"
                )
        in_job = "MALLETRAIN_URL" in environ and "MALLETRAIN_JOB" in environ
        before: Runtime | None = job_sessions.begin() if in_job else None
        self._before = before  #: of the session before, until this one is in a world
        self.state = TrainingState(model, optimizers, self.position)
        self.state.session = 0 if before is None else before.state.session + 1
        self.shared = SharedValues()
        self.state.track(SCRIPT_VALUES, self.shared)
        decisive = (settings.seed, settings.shuffle, settings.drop_last, settings.reduction, settings.virtual_shards)
        self.state.terms = repr((length, batch, *decisive, digest))
        if streams is not None:
            self.state.track("malletrain.streams", positions)
        self.session_batch.attach(self.state, self.state.optimizers)

        # Who trains: this process as a member of a world.
        self.pilot: worker_start.PilotContext | None
        self.pilot = pilot = worker_start.find_pilot_context(environ) if before is None else before.pilot
        self._static_world = None if pilot is not None else settings.world
        if pilot is None and settings.world is None and local_rank.size > 1:
            # Processes that torchrun started on one node, without a daemon.
            self._static_world = NodeGroup(environment_world(environ), SoloGroup())
        self.member = Member(
            pilot.worker if pilot else "alone",
            pilot.host if pilot else "127.0.0.1",
            local_rank,
            self.state,
            pilot.local_leader if pilot else None,
            functools.partial(standalone_record.record, dict(environ)) if pilot is None else None,
            functools.partial(worker_start.end_script, environ),
        )
        if before is not None and before.in_world:
            self.member.pending_groups = before.member.pending_groups
        self.committer = self.member.committer
        directory = checkpoint_directory(environ, settings.checkpoint_dir)
        resumed = resumed_directory(environ, directory) if directory else None
        self._base, number = directory, self.state.session
        checkpoints: CheckpointStore | None = None
        self._finals: list[CheckpointStore] = []  #: where the final state of this session is, or is to be
        if directory:
            own = job_sessions.folder_of(directory, number)
            from_other = job_sessions.folder_of(resumed, number) if resumed else None
            if number and from_other is not None and not from_other.is_dir():
                from_other = None  # the other job had not come to this session
            checkpoints = CheckpointStore(own, settings.checkpoint_s, from_other)
            bases = [directory, *([resumed] if resumed else [])]
            self._finals = [CheckpointStore(job_sessions.final_of(base, number)) for base in bases]
        self.checkpointing = Checkpointing(checkpoints, self.state, self.committer)
        self.committer.save_is_due = self.checkpointing.is_due

        # How a step is made: gradients, and this member's share of each batch.
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.reducer = GradientReducer(
            trained, self.committer, mean, lambda: self.position.step, noise=self.session_batch.noise
        )
        self.state.before_capture = self._before_capture
        self.buffer_copies = BufferCopies(model)
        self.invariants = Invariants(
            self.state,
            self.shared,
            self.committer,
            self.reducer,
            in_step=lambda: self.step is not None,
            order=(lambda epoch: (sampler.permutation(epoch), sampler.batch_ends(epoch))) if settings.order else None,
            dataset=None if changes is None else lambda: changes.digest,
        )
        shards = settings.virtual_shards
        self.shards = VirtualShards(shards, model, self.reducer, settings.seed) if shards else None
        self.norms = SyncBatchNormLayers(norms, self.committer, self.reducer) if norms else None
        rounds = self.invariants.agreement.open
        opens = [functools.partial(rounds, kind) for kind in (RoundKind.STEP, RoundKind.GATHER, RoundKind.COUNT)]
        self.reducer.open_pass = opens[0]
        self.gathers = BatchGather(self.committer, self.reducer, opens[1], opens[2], sharded=bool(shards))
        self.streams = StreamBatches(stream_sampler, reader, positions, self.reducer) if streams is not None else None
        self._batch_loader: BatchLoader | StreamBatches = self.streams or BatchLoader(
            sampler, sample_loader, self.shards, settings.loaders
        )
        self.judgement = judge(
            model, shards=bool(shards), fixed_batch=self.session_batch.fixed, additive=settings.additive_loss
        )

        # How the world changes, and what is reported.
        counted = (0, 0) if before is None else before.counted()
        self.reports = Reports(self.member.say, self.committer, self.session_batch.noise_scale, *counted)
        self.meter = Meter(self.reports.samples)
        store_server = pilot.store if pilot else None
        self.recovery = StateRecovery(self.member, self.state, self.checkpointing.load, self._is_over, store_server)
        self._carrier = find_carrier(model, environ)
        if pilot is not None and self._carrier is not None:
            Background(self._carrier.load, "load")  # what it raises, joining the first world raises again
        numeric = self.judgement.equality is not Equality.STATISTICAL
        self.reconfigurer = Reconfigurer(
            self.member,
            self.state,
            self.recovery,
            self.checkpointing,
            self.reports,
            entered=self._entered,
            top_up=lambda tasks: pilot.resubmitter(tasks, self.member.say) if pilot is not None else None,
            store_server=store_server,
            carrier=self._carrier,
            tries=self.reducer.trial.begins if numeric else lambda _world, _following: False,
        )
        self.reducer.trial.found = lambda text: self._say_as_main(messages.Compared(text))
        self.lifecycle = WorkerLifecycle(
            self.member,
            self.reconfigurer,
            self.checkpointing,
            self.reports,
            self.invariants.agreement,
            in_pilot=pilot is not None,
        )
        if pilot is not None:
            report_uncaught(weakref.WeakMethod(self.report_failure))
        worker_start.on_terminate(self.lifecycle.terminated)
        atexit.unregister(_end_process)
        atexit.register(_end_process, self.member)
        atexit.unregister(_say_ending)  # of sessions before: the last one is what the process is about
        atexit.register(_say_ending, weakref.ref(self))  # which runs before the one above
        before_immediate_end(functools.partial(_say_ending, weakref.ref(self)))
        if pilot is not None:
            job_sessions.made(number)

    def _check_settings(self, norms: bool, streams: bool) -> None:
        """Raise `ElasticError` for settings that exclude each other."""
        settings = self._settings
        excluded = ("order", "drop_last", "virtual_shards", "loaders")
        unfit = [name for name in excluded if getattr(settings, name)]
        if streams and unfit:
            raise ElasticError(
                f"Session(..., {unfit[0]}=...) needs map-style data: a stream gives its samples in its own order, "
                "and reads ahead by itself where it does"
            )
        if settings.drop_last and not self.session_batch.fixed:
            raise ElasticError("drop_last=True needs a batch_size that is a number: else what is dropped would vary")
        if norms and settings.virtual_shards:
            raise ElasticError("virtual_shards and sync_batchnorm: one of the two, both make BatchNorm equal")

    def join(self) -> None:
        """Warm up and enter the first world. Later calls do nothing."""
        if self.joined:
            return
        must_be_finite = self._settings.must_be_finite
        if must_be_finite is None:
            must_be_finite = not any(isinstance(t, torch.amp.GradScaler) for t in self.state.tracked.values())
        self.reducer.must_be_finite = must_be_finite
        if self.pilot is None or self._is_over():
            hang_watch.session_made()
            if self.pilot is None:
                self._join_without_daemon()
            else:
                self._pass_over(patience_s=0.0)
            return
        weak = self.judgement.equality is Equality.STATISTICAL
        log.log(logging.WARNING if weak else logging.INFO, "equality with a static run is %s", self.judgement)
        before = self._before
        if before is None or not before.in_world:  # else the others wait
            began = time.monotonic()
            worker_start.warm_up(self.model, self.loader, self.sampler, self._settings.warm_up)
            self._stages = {"build": began - self._begins_at, "warm_up": time.monotonic() - began}
        hang_watch.session_made()
        hang_watch.HangWatch(lambda: self.member.worker, self.rounds_so_far).start()
        self._connect(self.pilot)
        self.recovery.begin_session()
        try:
            if before is not None and before.in_world:
                stays = self.reconfigurer.follow(before.reconfigurer)
            else:
                self.reconfigurer.join(0 if before is None else before.tried)
                stays = False
        except SessionOver as over:
            self.tried = over.tried
            self._pass_over(patience_s=FINAL_STATE_PATIENCE_S)
            return
        self._before = None
        self.joined = self.in_world = True
        self._call_joining()
        if stays:
            self._entered()
        else:
            self.lifecycle.last_commit = time.monotonic()
            self.reconfigurer.begin_world(0.0, self.committer.world.nodes)

    def _before_capture(self) -> None:
        self.reducer.settle()
        self.position.rounds = self.committer.rounds_done

    def counted(self) -> tuple[int, int]:
        """Steps and samples that were committed in all sessions so far."""
        return self.reports.steps_before + self.position.step, self.reports.samples_before + self.position.samples

    def rounds_so_far(self) -> int | None:
        """Rounds committed so far, steps and others; None once the session ends."""
        return None if self.member.finishing or self.passed else self.committer.rounds_done

    def _connect(self, pilot: worker_start.PilotContext) -> None:
        """Take the connection of the session before, or open one and say that this worker is warm."""
        link = self._before.member.link if self._before is not None else None
        if link is None:
            log.info("start: %s", ", ".join(f"{part} {seconds:.2f} s" for part, seconds in self._stages.items()))
            self.member.link = pilot.open(self.reconfigurer)
            self.member.link.say(messages.Warm(pilot.wait_warm(), self._stages))
            return
        self.member.link = link
        link.serve(self.reconfigurer)

    def _is_over(self) -> bool:
        """Whether the session has ended, and its final state is saved."""
        return any(each.is_there() for each in self._finals)

    def _pass_over(self, patience_s: float) -> None:
        """The others have ended this session: take its final state, and go on with the script."""
        until = time.monotonic() + patience_s
        while not self._is_over():  # a shared folder may show it late
            if time.monotonic() > until:
                self.member.release(f"the final state of session {self.state.session} of the script is not here")
            time.sleep(0.2)
        next(each for each in self._finals if each.is_there()).load(self.state)
        log.info("session %d of the script is over: this worker passes over it", self.state.session)
        self.state.has_state = self.joined = self.passed = True
        worker_start.on_terminate(signal.SIG_DFL)
        if self.member.link is None and self.pilot is not None:
            self._connect(self.pilot)
        self.reconfigurer.wait_seat()
        self._before = None

    @property
    def is_main(self) -> bool:
        """Whether this process prints and writes: the main one of its world, or of the one that it will enter."""
        if self.passed:
            return self.member.local_rank.is_leader and self.reconfigurer.is_first()
        return self.committer.world.rank == 0

    def loader_of(self, dataset: Any) -> SampleLoader:
        """A loader of `dataset` with the session's seed and collate function; of the training data if it is None."""
        if isinstance(self._settings.order, DrawnOrder) and dataset is None:
            raise ElasticError(
                f"evaluate() needs a data set: {self._settings.order.name} leaves samples out or repeats them: "
                "s.evaluate(metrics, dataset)"
            )
        if dataset is None and isinstance(self.loader, SampleLoader):
            return self.loader
        if dataset is None or isinstance(dataset, Streams):
            raise ElasticError("evaluate() needs a map-style data set: s.evaluate(metrics, test_set)")
        return SampleLoader(dataset, self._settings.seed, self._settings.collate)

    def batch_ends(self) -> list[int]:
        """Where the batches of the present epoch end, if the script's order consists of batches; else nothing."""
        return self.sampler.batch_ends(self.position.epoch) if isinstance(self.sampler, Sampler) else []

    def check_epoch(self) -> None:
        """Raise `ElasticError` if the script asks for an epoch's batches again after it has made them all."""
        if self.position.cursor >= self.sampler.epoch_length and self._finished_epoch == self.position.epoch:
            raise ElasticError(
                "the epoch's batches are used up: iterate over epochs by `for epoch in s.epochs(n):`, not by range(n)"
            )
        self._finished_epoch = self.position.epoch
        if self.dataset_changes is not None:
            self.dataset_changes.epoch_begins()

    def leave_step(self) -> None:
        """The script has left the body of a step, or the process ends."""
        if self.step is not None:
            self.step.end(left=True)

    def end_step_for(self, call: str) -> None:
        """End the step under way, if there is one, for a call that all workers make after a step. Raises
        `ElasticError`: it is not committed yet, or ends with its block."""
        if self.step is None:
            return
        if self.step.is_block or not (self.committed or self.reducer.aborted):
            raise ElasticError(
                f"call s.{call}() after the step, not inside it: after optimizer.step() in the body of the loop, or "
                "after the `with s.step():` block"
            )
        self.step.end()
        self.reducer.phase = GradientPhase.USED

    def load_batch(self) -> tuple[Share, Any]:
        """Do what is due between two steps, then load this worker's share of the next batch. Raises `Released`: this
        worker's part is over."""
        if self.left_by:
            raise ElasticError(
                f"the script caught an exception of a step and went on ({self.left_by}): the others wait for this "
                "worker in that step. Leave samples out in __getitem__ or collate, or give them a loss of 0"
            )
        if self.kept is not None:
            self.buffer_copies.restore()
            self.state.restore(*self.kept)
            self.kept = None
        self.lifecycle.between_steps()
        began = time.monotonic()
        world = self.committer.world
        self.session_batch.update(self.sampler, world.chosen_batch)
        at = self.position.epoch, self.position.cursor
        loaded = self._batch_loader.load(*at, world.rank, world.size)
        self.checkpointing.save_async()
        self.committed = self.may_be_half = False
        self.load_s = time.monotonic() - began
        self.seed_between()
        return loaded

    def seed_between(self) -> None:
        """Seed what the script draws between two steps: alike on every worker, so that they decide alike, and
        whatever loading has drawn here."""
        seed_plain(mix(self.sampler.seed, self.position.step, BETWEEN_STEPS))

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Wait until every member has committed its last step, and end the session. In a job, its final state is
        saved, and the job ends with the script; else the result is reported now."""
        self.join()
        self._result = messages.plain(dict(result or {}), "result")
        self.leave_step()
        if not self.passed:
            self.reducer.settle()
            self.member.finishing = True
            try:
                self.lifecycle.sum_of_all(self._last_table, RoundKind.FINISH)
            except JobOver as over:
                log.info("the job is over: %s", over)
            except SessionOver as over:  # all steps are committed here, too
                self.tried, self.in_world = over.tried, False
            if self.committer.world.rank == 0:
                self.meter.flush()
                self.reports.send_held()
        standalone_record.FINISHED.set()
        worker_start.on_terminate(signal.SIG_DFL)
        self.invariants.end()
        self.finished = True
        if self.pilot is None:
            self._say_as_main(messages.Finished(self._result))
            self.checkpointing.discard()
            return
        job_sessions.end(self)

    def _last_table(self) -> torch.Tensor:
        """This member's part in the last round of the session. The main worker saves the final state before it, for
        workers that join the next session."""
        if not self._kept_final and self._finals and self.pilot is not None and self.checkpointing.is_writer:
            self._kept_final = True
            try:
                self._finals[0].save(self.state)
            except ElasticError as error:
                log.warning(
                    "no worker can join, and no node be lost, after another Session of this script: %s", error
                )
        return torch.zeros(1, dtype=torch.float64)

    def _complete(self) -> None:
        """The script has ended: the main worker reports the result, and the others wait until it has."""
        link = self.member.link
        last = job_sessions.is_latest(self.state.session)
        if self._completed or link is None or not last or hasattr(sys, "last_value"):
            return
        self._completed = True
        while not self._is_first(link):
            with link.changed:
                plan = link.plan
                seatless = plan is not None and not self.member.has_seat(plan)
                if link.end is not None or link.leave is not None or seatless or link.away_since is not None:
                    break  # while the daemon is away, the main worker alone waits
                link.changed.wait(0.5)
        else:
            self._report_result(link)
        link.flush(10.0)
        link.close()
        if self.member.local_leader is not None:
            self.member.local_leader.close()

    def _is_first(self, link: Link | Follower) -> bool:
        """Whether this is the main worker, or in its place: it may be lost after the last session."""
        if not self.member.local_rank.is_leader or link.end is not None:
            return False
        world, plan = self.committer.world, link.plan
        if self.passed or not self.in_world or (plan is not None and plan.voids(world.generation)):
            return self.reconfigurer.is_first()
        return world.rank == 0

    def _report_result(self, link: Link | Follower) -> None:
        self.member.say(messages.Finished(self._result))
        if link.deliver_end():
            if self._base is not None:
                job_sessions.discard(self._base, self.state.session)
            return
        why = link.end or f"it was away for {END_PATIENCE_S / 60:.0f} minutes"
        log.error(
            "training has finished, and the daemon has not taken it (%s): the final state is kept, and the job, if "
            "it is not over, goes on from it",
            why,
        )
        _end_at_once(1)

    def _say_as_main(self, message: messages.Message) -> None:
        if self.committer.world.rank == 0:
            self.member.say(message)

    def _call_joining(self) -> None:
        if self.position.step:
            for callback in self.when_joining:
                callback(self.position.epoch, self.position.step)

    def _join_without_daemon(self) -> None:
        """Enter the world of processes that were started together, or train alone."""
        if self._static_world is not None and self._static_world.size > 1:
            worker_start.warm_up(self.model, self.loader, self.sampler, self._settings.warm_up)
            world = self._static_world
            try:
                require_one_carrier(world, self._carrier)
                if self._carrier is not None:
                    world = with_device(world, self._carrier, step_host(os.environ), RENDEZVOUS_TIMEOUT)
            except PeerLost as lost:
                raise ElasticError(f"the devices of these processes cannot be connected: {lost}") from lost
            self.reconfigurer.enter_static_world(world)
        else:
            self.checkpointing.load()
            self.state.has_state = True
            self.committer.world.workers = ("alone",)
        self.joined = True
        self._call_joining()
        self._entered()

    def _entered(self) -> None:
        """Training begins in a world."""
        world = self.committer.world
        self.invariants.entered()
        self.meter.disturbed()
        self.reports.world_began()
        is_main = world.rank == 0
        if is_main and not self._was_main:
            for callback in self.when_main:
                callback()
        self._was_main = is_main

    def ending(self) -> None:
        """The process ends: say so where the script has not finished, and nothing else ends it."""
        if self.finished and self.pilot is not None:
            self._complete()
            return
        self.leave_step()
        if self.lifecycle.gives_up:
            with contextlib.suppress(Released):
                self.lifecycle.between_steps()
        begun = self.joined or self._before is not None  # another one after a session that has ended
        over = self._reported or self.member.finishing or self.member.released or hasattr(sys, "last_value")
        if not begun or over:
            return
        if self.pilot is None:
            self._reported = True
            if self.position.step:
                log.warning("after step %d %s", self.position.step, ENDED)
        else:
            self._report(ENDED)

    def _keep_state(self) -> None:
        """Save the state as the script fails, on the worker that writes checkpoints."""
        trains = self.joined and self.pilot is not None and self.state.has_state
        if not trains or not self.checkpointing.is_writer:
            return
        try:
            saved = self.checkpointing.save()
        except ElasticError as error:
            log.warning("%s", error)
            return
        if saved:
            job = os.environ.get("MALLETRAIN_JOB", "")
            log.warning("the state after step %d is kept in %s: mtbatch --resume=%s", self.position.step, saved, job)

    def report_failure(self, error: BaseException) -> None:
        """Report the exception that ends the script."""
        self.leave_step()
        if text := text_of(error):
            self._report(text, keep=not isinstance(error, ElasticError))  # which says that it is wrong

    def _report(self, text: str, *, keep: bool = True) -> None:
        """Save the state if it is to be kept, and deliver the report of a failure, the first one only: also before
        this worker has joined, when it has no link yet."""
        if self._reported:
            return
        self._reported = True
        if keep and not self.may_be_half:
            self._keep_state()
        failure = messages.Failed(self.position.step, f"{self.member.worker}: {text}"[:MAX_TEXT_CHARACTERS])
        if self.member.link is None and self.pilot is not None and not self.joined:
            with contextlib.suppress(WireError):  # the exception itself is on standard error
                self.pilot.report(failure)
            return
        self.member.say(failure)
        if self.member.link is not None:
            self.member.link.flush(FLUSH_TIMEOUT_S)


def _say_ending(runtime: weakref.ref[Runtime]) -> None:
    """At exit."""
    live = runtime()
    if live is not None:
        live.ending()


def _end_process(member: Member) -> None:
    """At exit, close the group while the interpreter is whole: one that is closed after it aborts the process now and
    then (with two processes a node, in one run of ten). A worker that leaves ends at once: it holds a node that a
    main job may wait for. Where a thread does not end, the process ends without what would abort it: that thread's
    return from C++ once the interpreter has ended, and what libraries do at exit."""
    member.committer.world.group.abandon()
    member.pending_groups.give_up()
    if member.released:
        _end_at_once(1 if hasattr(sys, "last_value") else Released.STATUS)
    if not all_ended(1.0):
        libc = ctypes.CDLL(None)
        ctypes.CDLL("libstdc++.so.6")["_ZSt13set_terminatePFvvE"](libc.pause)  # std::set_terminate: that thread waits
        libc.on_exit(libc["_exit"], None)  # with the status of `sys.exit`, which Python tells nobody


def _end_at_once(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
