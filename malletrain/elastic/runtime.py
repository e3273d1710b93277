"""Everything that the parts of one training session share, made in one place and in order."""

from __future__ import annotations

import atexit
import contextlib
import copy
import functools
import logging
import os
import signal
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from malletrain.elastic.comm.background import all_closed
from malletrain.elastic.comm.carrier import find_carrier
from malletrain.elastic.comm.group import Group, SoloGroup
from malletrain.elastic.comm.local_rank import LocalRank
from malletrain.elastic.comm.node_group import NodeGroup
from malletrain.elastic.comm.static_rendezvous import RENDEZVOUS_TIMEOUT, environment_world, step_host
from malletrain.elastic.comm.world_group import require_one_carrier, with_device
from malletrain.elastic.data.batch_loader import BatchLoader
from malletrain.elastic.data.batch_size import BatchRule, SessionBatch, as_rule
from malletrain.elastic.data.dataset_digest import dataset_digest
from malletrain.elastic.data.proportional_shares import ProportionalShares
from malletrain.elastic.data.random_seeds import BETWEEN_STEPS, seed_plain
from malletrain.elastic.data.sample_loader import SampleLoader
from malletrain.elastic.data.sampler import DrawnOrder, Sampler, Share, mix
from malletrain.elastic.data.streams import StreamBatches, StreamPositions, StreamReader, Streams, StreamSampler
from malletrain.elastic.data.virtual_shards import VirtualShards
from malletrain.elastic.equality import Equality, Judgement, judge, synced_layers
from malletrain.elastic.errors import ElasticError, JobOver, PeerLost, Released
from malletrain.elastic.gradients.batch_gather import BatchGather
from malletrain.elastic.gradients.comm_hook import CommHook, check_hook
from malletrain.elastic.gradients.learning_rate import LearningRate
from malletrain.elastic.gradients.reducer import GradientReducer
from malletrain.elastic.gradients.sync_batchnorm import SyncBatchNormLayers
from malletrain.elastic.invariants.agreement import RoundKind
from malletrain.elastic.invariants.invariants import Invariants
from malletrain.elastic.launch import worker_start
from malletrain.elastic.launch.compile_cache import SHARED_VARIABLE
from malletrain.elastic.launch.compiled_code import MIN_COMPILE_S, CompiledCode
from malletrain.elastic.launch.failure_report import ENDED, FLUSH_TIMEOUT_S, FailureReporter, before_immediate_end
from malletrain.elastic.launch.hang_watch import HangWatch
from malletrain.elastic.launch.start_stages import StartStages
from malletrain.elastic.link import standalone_record
from malletrain.elastic.link.daemon_link import END_PATIENCE_S
from malletrain.elastic.link.throughput_meter import Meter
from malletrain.elastic.link.training_reports import Reports
from malletrain.elastic.resize.lifecycle import WorkerLifecycle
from malletrain.elastic.resize.member import Member
from malletrain.elastic.resize.reconfigure import Reconfigurer
from malletrain.elastic.resize.state_recovery import StateRecovery
from malletrain.elastic.state.after_block import AfterBlockChanges
from malletrain.elastic.state.buffer_copies import BufferCopies
from malletrain.elastic.state.checkpoint_store import CheckpointStore
from malletrain.elastic.state.checkpointing import Checkpointing
from malletrain.elastic.state.sharded_model import OutputScale
from malletrain.elastic.state.shared_values import SharedValues
from malletrain.elastic.state.side_copy import side_copies
from malletrain.elastic.state.training_state import Position, TrainingState
from malletrain.wire import messages
from malletrain.wire.errors import WireError

log = logging.getLogger("malletrain.elastic")

#: Types that gradients may be summed in. float16 overflows, and a loss scaler would not see where.
SUM_DTYPES = (torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The keyword arguments of `Session`; see there."""

    batch_size: int | BatchRule
    learning_rate: LearningRate | None
    noise_scale: bool | None
    seed: int
    shuffle: bool
    drop_last: bool
    order: Callable[[int], Sequence[Any]] | None
    collate: Callable[[list[Any]], Any] | None
    reduction: Literal["mean", "sum"]
    warm_up: Callable[[Any], Any] | None
    checkpoint_dir: str | os.PathLike[str] | None
    checkpoint_s: float
    virtual_shards: int | None
    additive_loss: bool
    balance: bool
    must_be_finite: bool | None
    sum_dtype: torch.dtype | None
    comm_hook: CommHook | None
    world: Group | None
    loaders: int


class Runtime:
    """One training session: its parts, and the step under way.

    Args:
        model: to train.
        optimizers: of its parameters.
        dataset: map-style, or streams.
        settings: of the session.

    Attributes:
        share: the samples of the batch under way that this worker has; None between steps.
        committed: whether the step under way is committed.
        load_s: seconds that loading the batch took.
        joined: whether training has begun.
        mean: whether the script's loss is a mean over its samples (else a sum).
        left_by: the exception that has left the block of a step.
        any_block_made: whether a block of this worker has come to its end.
        first_given_up: whether its first block was given up just now.
        shared: the values of `Session.state`.
        buffer_copies: the model's buffers as the step under way began.
        after_block: what the script changes in the model after the block of a step.
        gathers: rows of all members within a step.
        when_joining: called on a worker that joins a training that has begun.
        calls: how many collective calls the script has made since the last step.
        weight: what this worker's part of the last step counts: samples, or what the script said.

    Raises:
        ElasticError: it cannot be trained this way; the message says what to change.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        dataset: Any,
        settings: Settings,
    ) -> None:
        environ, mean = os.environ, settings.reduction == "mean"
        self.mean = mean
        self._stages = StartStages()
        self._settings = settings
        local_rank = worker_start.find_own_local_rank(environ) if settings.world is None else LocalRank()
        self.model = model
        self.sharded = worker_start.check_model(model, local_rank)
        self.share: Share | None = None
        self.committed = True
        self.load_s = 0.0
        self.joined = False
        self.calls = 0
        self.weight = 0.0
        self.left_by = ""
        self._said_end = False
        self.first_given_up = False
        self.any_block_made = False
        self._finished_epoch = -1
        self.when_main: list[Callable[[], object]] = []
        self.when_joining: list[Callable[[int, int], object]] = []
        self._was_main = False
        self._hook_rounds = False
        self._kept: tuple[dict[str, Any], list[list[dict[str, Any]]]] | None = None

        # What is trained: data, batch, state.
        self.session_batch = SessionBatch(as_rule(settings.batch_size), settings.learning_rate, settings.noise_scale)
        norms = synced_layers(model)
        streams = dataset if isinstance(dataset, Streams) else None
        self._check_settings(bool(norms), bool(streams))
        self.position = Position()
        batch = self.session_batch.rule.reference
        self.loader: SampleLoader | StreamReader
        self.sampler: Sampler | StreamSampler
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
                    "with PerWorker and Chosen give an order of indices"
                )
        self.state = TrainingState(model, optimizers, self.position)
        self.shared = SharedValues()
        self.state.track("malletrain.values", self.shared)
        self.state.terms = repr(
            (length, batch, settings.seed, settings.shuffle, settings.drop_last,
             settings.reduction, settings.virtual_shards, settings.balance, settings.sum_dtype,
             type(settings.comm_hook).__qualname__, dataset_digest(dataset))
        )  # fmt: skip
        if streams is not None:
            self.state.track("malletrain.streams", positions)
        self.session_batch.attach(self.state, self.state.optimizers)

        # Who trains: this process as a member of a world.
        self._pilot = pilot = worker_start.find_pilot_context(environ)
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
            standalone_record.find_record(environ) if pilot is None else None,
            functools.partial(worker_start.end_script, environ),
        )
        self.committer = self.member.committer
        directory = worker_start.checkpoint_directory(environ, settings.checkpoint_dir)
        part = (local_rank.rank, local_rank.size) if self.sharded else None
        resumed = worker_start.resumed_directory(environ, directory) if directory else None
        checkpoints = CheckpointStore(directory, settings.checkpoint_s, part, resumed) if directory else None
        self._compiled: CompiledCode | None = None
        if pilot is not None and directory and environ.get(SHARED_VARIABLE):
            self._compiled = CompiledCode(Path(environ[SHARED_VARIABLE]), directory)
        self.checkpointing = Checkpointing(
            checkpoints, self.state, self.committer, sharded=self.sharded, side=side_copies(self.state)
        )
        self.state.before_restore = self.checkpointing.hold
        self.committer.save_is_due = self.checkpointing.is_due

        # How a step is made: gradients, and this member's share of each batch.
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.reducer = GradientReducer(
            trained,
            self.committer,
            mean,
            lambda: self.position.step,
            sharded=self.sharded,
            sum_dtype=settings.sum_dtype,
            comm_hook=settings.comm_hook,
        )
        self.state.before_capture = self.reducer.settle
        self.reducer.before_return = self.checkpointing.hold
        self.buffer_copies = BufferCopies(model)
        self.after_block = AfterBlockChanges(model)
        self.invariants = Invariants(
            self.state, self.shared, self.committer, self.reducer, lambda: self.share is not None
        )
        if settings.order is not None:
            self.invariants.order = lambda epoch: (sampler.permutation(epoch), sampler.batch_ends(epoch))
        self.reducer.open_pass = functools.partial(self.invariants.agreement.open, RoundKind.STEP)
        if self.session_batch.noise is not None:
            self.reducer.measure_noise(self.session_batch.noise)
        self.output_scale = OutputScale(model, local_rank, mean=mean) if self.sharded else None
        self.proportional_shares = ProportionalShares(balance=settings.balance)
        self.shards = (
            VirtualShards(settings.virtual_shards, model, self.reducer, settings.seed, mean)
            if settings.virtual_shards
            else None
        )
        self.norms = SyncBatchNormLayers(norms, self.committer, self.reducer, mean) if norms else None
        open_gather = functools.partial(self.invariants.agreement.open, RoundKind.GATHER)
        self.gathers = BatchGather(self.committer, self.reducer, open_gather, mean=mean)
        self.streams: StreamBatches | None = None
        if streams is not None:
            self.streams = StreamBatches(stream_sampler, reader, positions, self.reducer)
        self._batch_loader: BatchLoader | StreamBatches = self.streams or BatchLoader(
            sampler, sample_loader, self.proportional_shares, self.shards, settings.loaders
        )
        self.judgement = self._judge()

        # How the world changes, and what is reported.
        self.reports = Reports(
            self.member.say, self.committer, self.proportional_shares, self.session_batch.noise_scale
        )
        self.meter = Meter(self.reports.samples)
        store_server = pilot.store if pilot else None
        self.recovery = StateRecovery(self.member, self.state, self.checkpointing.load, store_server)
        self._carrier = find_carrier(model, environ)
        if pilot is not None and self._carrier is not None and self._carrier.load is not None:
            self._stages.load_beside(self._carrier.load)
        self.reconfigurer = Reconfigurer(
            self.member,
            self.state,
            self.recovery,
            self.checkpointing,
            self.reports,
            entered=self._entered,
            prepare=self.reducer.allocate_buffers,
            top_up=self._top_up,
            store_server=store_server,
            carrier=self._carrier,
        )
        self.lifecycle = WorkerLifecycle(
            self.member,
            self.reconfigurer,
            self.checkpointing,
            self.reports,
            self.invariants.agreement,
            in_pilot=pilot is not None,
        )
        self.failures = FailureReporter(
            lambda: self.member.worker, lambda: self.position.step, self._keep_state, self._send_failure, self._hint
        )
        if pilot is not None:
            self.failures.install()
        worker_start.on_terminate(self.lifecycle.terminated)
        atexit.register(_end_process, self.member)
        atexit.unregister(_say_ending)  # of sessions before: the last one is what the process is about
        atexit.register(_say_ending, weakref.ref(self))  # which runs before the one above
        before_immediate_end(functools.partial(_say_ending, weakref.ref(self)))

    def _check_settings(self, norms: bool, streams: bool) -> None:
        """Raise `ElasticError` for settings that exclude each other."""
        settings = self._settings
        excluded = ("order", "drop_last", "virtual_shards", "balance", "loaders")
        unfit = [name for name in excluded if getattr(settings, name)]
        if streams and unfit:
            raise ElasticError(
                f"Session(..., {unfit[0]}=...) needs map-style data: a stream gives its samples in its own order, "
                "and reads ahead by itself where it does"
            )
        if streams and self.sharded:
            raise ElasticError("a sharded model needs map-style data: its processes must load equally often")
        if settings.drop_last and not self.session_batch.fixed:
            raise ElasticError("drop_last=True needs a batch_size that is a number: else what is dropped would vary")
        if self.sharded and (settings.virtual_shards or norms or self.session_batch.noise is not None):
            raise ElasticError(
                "a sharded model bears neither virtual_shards nor sync_batchnorm nor a measured noise scale (a batch "
                "that changes measures it: noise_scale=False)"
            )
        if settings.sum_dtype not in (None, *SUM_DTYPES):
            raise ElasticError(f"sum_dtype must be {' or '.join(map(str, SUM_DTYPES))}, not {settings.sum_dtype}")
        if settings.comm_hook is not None:
            if settings.sum_dtype is not None or self.session_batch.noise is not None or self.sharded:
                raise ElasticError(
                    "comm_hook bears neither sum_dtype nor a measured noise scale nor a sharded model: leave one out"
                )
            first = next(parameter for parameter in self.model.parameters() if parameter.requires_grad)
            self._hook_rounds = not check_hook(settings.comm_hook, first.dtype, first.device)
        if settings.balance and settings.virtual_shards:
            raise ElasticError("balance and virtual_shards exclude each other: shards are of one size")
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
        if self._pilot is None:
            self._join_without_daemon()
            return
        weak = self.judgement.equality is Equality.STATISTICAL
        log.log(logging.WARNING if weak else logging.INFO, "equality with a static run is %s", self.judgement)
        if self._compiled is not None and self._compiled.fetch():
            log.info("what another pilot of the job has compiled is here")
        with self._stages.warming():
            self._warm_up()
        if (
            self._compiled is not None
            and self._pilot.local_rank.is_leader
            and self._stages.compile_s >= MIN_COMPILE_S
        ):
            self._compiled.share_behind()
        stages = self._stages.finished(worker_start.stages())
        HangWatch(lambda: self.member.worker, lambda: None if self.member.finishing else self.position.rounds).start()
        self.member.link = link = self._pilot.open(self.reconfigurer)
        link.say(messages.Warm(self._pilot.wait_warm(), stages))
        self.reconfigurer.join()
        self.joined = True
        self._call_joining()
        self.lifecycle.begin()

    @property
    def in_pilot(self) -> bool:
        """Whether a daemon decides about this worker."""
        return self._pilot is not None

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

    def load_batch(self) -> Any:
        """Do what is due between two steps, then load this worker's part of the next batch, and begin its step.

        Raises:
            Released: this worker's part is over.
        """
        if self.left_by:
            raise ElasticError(
                f"the script caught an exception of a step and went on ({self.left_by}): the others wait for this "
                "worker in that step. Leave samples out in __getitem__ or collate, or give them a loss of 0"
            )
        self._take_back()
        self.lifecycle.between_steps()
        began = time.monotonic()
        world = self.committer.world
        repeats = self.committer.received_sums is not None
        self.session_batch.update(self.sampler, world.size, world.chosen_batch, owes_a_step=repeats)
        at = self.position.epoch, self.position.cursor
        self.share, batch = self._batch_loader.load(*at, world.rank, world.size)
        self.checkpointing.save_async()
        self.committed = False
        self.load_s = time.monotonic() - began
        self.seed_between()
        return batch

    def seed_between(self) -> None:
        """Seed what the script draws between two steps: alike on every worker, so that they decide alike."""
        seed_plain(mix(self.sampler.seed, self.position.step, BETWEEN_STEPS))

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Wait until every member has committed its last step, then report the result and close all connections."""
        self.join()
        self.reducer.settle()
        self.member.finishing = True
        self.invariants.agreement.want_digest()
        try:
            self.lifecycle.barrier()
        except JobOver as over:
            # The main worker completed the last round and reported it before this one noticed.
            log.info("the job is over: %s", over)
        if self.committer.world.rank == 0:
            self.meter.flush()
            self.reports.send_held()
            self.member.say(messages.Finished(messages.plain(dict(result or {}), "result")))
        standalone_record.note_finish()
        worker_start.on_terminate(signal.SIG_DFL)
        told = True
        if self.member.link is not None:
            told = self.member.link.deliver_end() if self.committer.world.rank == 0 else self.member.link.flush(10.0)
            self.member.link.close()
        if self.member.local_leader is not None:
            self.member.local_leader.close()
        self.invariants.end()
        if not told and self.committer.world.rank == 0:
            refusal = self.member.link.end if self.member.link is not None else None
            why = refusal or f"it was away for {END_PATIENCE_S / 60:.0f} minutes"
            raise ElasticError(
                f"training has finished, and the daemon has not taken it ({why}): the last save is kept, and "
                "the job, if it is not over, goes on from it"
            )
        self.checkpointing.discard()

    def keep_tracked(self) -> None:
        """A step is to be repeated: the script's code after its block runs now, and once more after the repetition.
        What it does to tracked things is taken back before that."""
        if not self.state.has_state:
            return
        self.after_block.given_up()
        groups = [
            [{name: copy.deepcopy(value) for name, value in group.items() if name != "params"} for group in each]
            for each in (optimizer.param_groups for optimizer in self.state.optimizers)
        ]
        self._kept = {name: copy.deepcopy(thing.state_dict()) for name, thing in self.state.tracked.items()}, groups

    # --- inside -----------------------------------------------------------------------------------------------

    def _take_back(self) -> None:
        self.after_block.body_ended()
        if self._kept is None:
            return
        self.buffer_copies.restore()
        (tracked, groups), self._kept = self._kept, None
        for name, thing in self.state.tracked.items():
            thing.load_state_dict(tracked[name])
        for optimizer, of_optimizer in zip(self.state.optimizers, groups, strict=True):
            for group, values in zip(optimizer.param_groups, of_optimizer, strict=False):
                group.update(values)

    def _judge(self) -> Judgement:
        return judge(
            self.model,
            shards=bool(self._settings.virtual_shards),
            fixed_batch=self.session_batch.fixed,
            additive=self._settings.additive_loss,
            rounded=self._settings.sum_dtype is torch.bfloat16 or self._hook_rounds,
        )

    def _call_joining(self) -> None:
        if self.position.step:
            for callback in self.when_joining:
                callback(self.position.epoch, self.position.step)

    def _warm_up(self) -> None:
        worker_start.warm_up(self.model, self.loader, self.sampler, self._settings.warm_up)

    def _join_without_daemon(self) -> None:
        """Enter the world of processes that were started together, or train alone."""
        if self._static_world is not None and self._static_world.size > 1:
            self._warm_up()
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
        self.proportional_shares.reset(world.size)
        is_main = world.rank == 0
        if is_main and not self._was_main:
            for callback in self.when_main:
                callback()
        self._was_main = is_main

    def ending(self) -> None:
        """The process ends: say so where the script has not finished, and nothing else ends it."""
        if not self.joined or self.member.finishing or self.member.released or hasattr(sys, "last_value"):
            return
        if self._said_end:
            return
        self._said_end = True
        if self._pilot is None:
            if self.position.step:
                log.warning("after step %d %s", self.position.step, ENDED)
        else:
            self.failures.report_end(whole=self.share is None)

    def _keep_state(self) -> None:
        """Save the state as the script fails, on the worker that writes checkpoints."""
        trains = self.joined and self._pilot is not None and self.state.has_state
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

    def _hint(self, error: BaseException) -> str:
        """What the script's author may not expect: the block that sets a name was given up."""
        if not isinstance(error, NameError) or not self.first_given_up:
            return ""
        return (
            "this worker's first `with s.step():` block was given up, as a worker left or joined: a name that only "
            "the block sets is not set then. Set it before the loop, or use it in the block"
        )

    def _send_failure(self, failure: messages.Message) -> None:
        """Deliver the report of a failure: also before this worker has joined, when it has no link yet."""
        if self.member.link is None and self._pilot is not None and not self.joined:
            with contextlib.suppress(WireError):  # the exception itself is on standard error
                self._pilot.report(failure)
            return
        self.member.say(failure)
        if self.member.link is not None:
            self.member.link.flush(FLUSH_TIMEOUT_S)

    def _top_up(self, tasks: int) -> None:
        if self._pilot is not None:
            self._pilot.resubmitter(tasks, self.member.say)


def _say_ending(runtime: weakref.ref[Runtime]) -> None:
    """At exit."""
    live = runtime()
    if live is not None:
        live.ending()


def _end_process(member: Member) -> None:
    """At exit, close the group while the interpreter is whole: one that is closed after it aborts the process now and
    then (with two processes a node, in one run of ten). End at once where the usual way fails or takes long: a group
    that is stuck in an operation aborts the process, and a worker that leaves holds a node that a main job may wait
    for."""
    member.committer.world.group.abandon()
    if member.released or not member.pending_groups.give_up(1.0) or not all_closed(1.0):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1 if hasattr(sys, "last_value") else Released.STATUS if member.released else 0)
