"""What a training script uses.

    s = elastic.Session(model, optimizer, dataset, batch_size=64)
    for epoch in s.epochs(10):
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                loss = loss_function(model(x), y)
                loss.backward()
                optimizer.step()
    s.finish({"loss": float(loss)})

`batch_size` is that of all workers together. When `backward` returns, gradients are those of the whole batch and the
step is committed; if a peer is lost before, `backward` does not return, and the same batch comes again.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import torch

from malletrain.elastic.comm.gloo_group import all_closed
from malletrain.elastic.comm.group import Group, SoloGroup
from malletrain.elastic.comm.local_rank import LocalRank
from malletrain.elastic.comm.node_group import NodeGroup
from malletrain.elastic.comm.static_rendezvous import environment_world
from malletrain.elastic.data.batch_loader import BatchLoader
from malletrain.elastic.data.batch_size import BatchRule, SessionBatch, as_rule
from malletrain.elastic.data.proportional_shares import ProportionalShares
from malletrain.elastic.data.sample_loader import SampleLoader
from malletrain.elastic.data.sampler import Sampler, Share
from malletrain.elastic.data.virtual_shards import ShardedBatch, VirtualShards
from malletrain.elastic.equality import Equality, judge, layers_of, whole_batch_layers
from malletrain.elastic.errors import ElasticError, JobOver, Released
from malletrain.elastic.evaluate import evaluate
from malletrain.elastic.figures import Figures
from malletrain.elastic.gradients.learning_rate import LearningRate
from malletrain.elastic.gradients.reducer import GradientReducer
from malletrain.elastic.gradients.sync_batchnorm import SyncBatchNormLayers
from malletrain.elastic.launch import worker_start
from malletrain.elastic.link import standalone_record
from malletrain.elastic.link.reports import Reports
from malletrain.elastic.link.throughput_meter import Meter
from malletrain.elastic.resize.lifecycle import WorkerLifecycle
from malletrain.elastic.resize.reconfigure import Reconfigurer
from malletrain.elastic.state import untracked
from malletrain.elastic.state.checkpoint_store import CheckpointStore
from malletrain.elastic.state.checkpointing import Checkpointing
from malletrain.elastic.state.sharded_model import OutputScale
from malletrain.elastic.state.training_state import Position, Stateful, TrainingState
from malletrain.elastic.step import Step
from malletrain.wire import messages

log = logging.getLogger("malletrain.elastic")


class Session(Figures):
    """Training that may change its size between any two steps.

    Args:
        model: any module; not wrapped in DistributedDataParallel.
        optimizer: of its parameters.
        dataset: map-style.
        batch_size: samples of one step, over all workers: a number, or a rule (`PerWorker`, `Chosen`).
        learning_rate: how the learning rate follows a batch that changes; by default it stays as it is.
        noise_scale: whether the gradient noise scale is measured; by default where the batch may change.
        seed: of the order of samples, augmentation and dropout.
        shuffle, drop_last, collate: as in `torch.utils.data.DataLoader`.
        reduction: whether the script's loss is a `mean` over samples, or a `sum`.
        warm_up: called with a batch before this worker joins, to run the model forward and backward once; by
            default the model is called with the batch's first part.
        additive_loss: whether the loss is a mean or sum of one term for each sample; False for contrastive losses,
            which compare samples of a batch.
        virtual_shards: cut each batch into so many shards (see `shards`), so that layers that look at a whole batch
            see the same ones at every size.
        balance: give each worker a share of the batch in proportion to how fast it computes, where nodes differ; by
            default all have the same share.
        must_be_finite: gradients that are nan or infinite are an error that names the worker; by default unless a
            `GradScaler` is tracked, which expects them.
        world: outside any pilot, the group of processes that were started together (`fixed.environment_world`,
            `mpi.mpi_world`); by default this process trains alone.
        loaders: processes that load batches ahead, while this one trains; by default batches are loaded between
            steps.
        checkpoint_dir: where the state is kept while the job has no nodes; by default `.malletrain/JOB` in the
            directory of submission.
        checkpoint_s: seconds from one checkpoint to the next, written beside training, for the case that all nodes
            are lost at once. (When they are given back in order the state is saved in any case.)

    Raises:
        ElasticError: something cannot be trained this way; the message says what.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        dataset: Any,
        *,
        batch_size: int | BatchRule,
        learning_rate: LearningRate | None = None,
        noise_scale: bool | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
        reduction: Literal["mean", "sum"] = "mean",
        warm_up: Callable[[Any], Any] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_s: float = 600.0,
        virtual_shards: int | None = None,
        additive_loss: bool = True,
        balance: bool = False,
        must_be_finite: bool | None = None,
        world: Group | None = None,
        loaders: int = 0,
    ) -> None:
        local_rank = worker_start.find_own_local_rank(os.environ) if world is None else LocalRank()
        self._sharded = worker_start.check_model(model, local_rank)
        self.model = model
        self._began = time.monotonic()
        self._loader = SampleLoader(dataset, seed, collate)
        self._session_batch = SessionBatch(as_rule(batch_size), learning_rate, noise_scale)
        if drop_last and not self._session_batch.fixed:
            raise ElasticError("drop_last=True needs a batch_size that is a number: else what is dropped would vary")
        reference = self._session_batch.rule.reference
        self._sampler = Sampler(len(dataset), reference, seed=seed, shuffle=shuffle, drop_last=drop_last)
        self._position = Position()
        self._state = TrainingState(model, optimizer, self._position)
        self._state.terms = repr(
            (len(dataset), reference, seed, shuffle, drop_last, reduction, virtual_shards, balance)
        )
        self._session_batch.attach(self._state, optimizer)
        self._warm_up = warm_up
        self._pilot = worker_start.find_pilot_context(os.environ)
        if self._pilot is None and world is None and local_rank.size > 1:
            # Processes of one node without a daemon: a laptop with two GPUs, say.
            world = NodeGroup(environment_world(os.environ), SoloGroup())
        self._fixed = world if self._pilot is None else None
        self._reconfigurer = Reconfigurer(
            self._pilot.worker if self._pilot else "alone",
            self._pilot.host if self._pilot else "127.0.0.1",
            self._state,
            local_rank=local_rank,
            local_leader=self._pilot.local_leader if self._pilot else None,
            save=lambda: self._checkpointing.save(),  # noqa: PLW0108 - these are made after this
            load=lambda: self._checkpointing.load(),  # noqa: PLW0108
            top_up=self._top_up,
            peer_store=self._pilot.store.peer_store if self._pilot and self._pilot.store else None,
            prepare=lambda: self._reducer.allocate_buffers(),  # noqa: PLW0108
        )
        self._committer = self._reconfigurer.committer
        directory = worker_start.checkpoint_directory(os.environ, checkpoint_dir)
        part = (local_rank.rank, local_rank.size) if self._sharded else None
        checkpoints = CheckpointStore(directory, checkpoint_s, part) if directory else None
        self._checkpointing = Checkpointing(checkpoints, self._state, self._committer, sharded=self._sharded)
        self._committer.save_is_due = self._checkpointing.is_due
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._reducer = GradientReducer(
            trained, self._committer, reduction == "mean", lambda: self._position.step, sharded=self._sharded
        )
        self._scale = OutputScale(model, local_rank, mean=reduction == "mean") if self._sharded else None
        if self._sharded and (virtual_shards or layers_of(model) or self._session_batch.noise is not None):
            raise ElasticError(
                "a sharded model bears neither virtual_shards nor sync_batchnorm nor a measured noise scale (a batch "
                "that changes measures it: noise_scale=False)"
            )
        if self._session_batch.noise is not None:
            self._reducer.measure_noise(self._session_batch.noise)
        self._must_be_finite = must_be_finite
        if balance and virtual_shards:
            raise ElasticError("balance and virtual_shards exclude each other: shards are of one size")
        self._proportional_shares = ProportionalShares(balance=balance)
        self._shards = (
            VirtualShards(virtual_shards, model, self._reducer, seed, reduction == "mean") if virtual_shards else None
        )
        whole = bool(whole_batch_layers(model))
        self._batch_loader = BatchLoader(
            self._sampler, self._loader, self._proportional_shares, self._shards, loaders, whole=whole
        )
        norms = layers_of(model)
        if norms and virtual_shards:
            raise ElasticError("virtual_shards and sync_batchnorm: one of the two, both make BatchNorm equal")
        self._norms = (
            SyncBatchNormLayers(norms, self._committer, self._reducer, reduction == "mean") if norms else None
        )
        self._judgement = judge(
            model, shards=bool(virtual_shards), fixed_batch=self._session_batch.fixed, additive=additive_loss
        )
        recorder = standalone_record.find_record(os.environ) if self._pilot is None else None
        self._reports = Reports(
            self._reconfigurer, recorder, self._proportional_shares, self._session_batch.noise_scale
        )
        self._meter = Meter(self._reports.samples)
        fixed = self._session_batch.fixed and self._session_batch.noise is None
        if fixed and not (virtual_shards or norms or self._sharded):
            self._reconfigurer.lend()
        local_leader = self._pilot.local_leader if self._pilot else None
        self._lifecycle = WorkerLifecycle(
            self._reconfigurer,
            self._checkpointing,
            self._entered,
            self._reports,
            local_leader,
            in_pilot=self._pilot is not None,
        )
        self._when_main: list[Callable[[], object]] = []
        self._was_main = False
        self._joined = False
        self._share: Share | None = None
        self._committed = True
        self._load_s = 0.0
        worker_start.on_terminate(self._lifecycle.terminated)
        atexit.register(_end_surely, self._reconfigurer)

    # --- what the script uses -------------------------------------------------------------------------------------

    def when_main(self, callback: Callable[[], object]) -> None:
        """Call `callback()` in the moment when this worker becomes the main one: to open a log file, say. Call this
        before the first epoch."""
        self._when_main.append(callback)

    def track(self, **things: Stateful) -> None:
        """Make schedulers, scalers, averages and the like part of the state: `s.track(scheduler=scheduler)`.

        They need `state_dict` and `load_state_dict`. Call it before the first epoch.
        """
        if self._joined:
            raise ElasticError("track() must be called before the first epoch: a newcomer would miss it")
        for name, thing in things.items():
            self._state.track(name, thing)

    def join(self) -> None:
        """Enter the world now, and take over its state; by itself the first epoch does."""
        self._join()

    def epochs(self, count: int) -> Iterator[int]:
        """Epochs from wherever training is up to `count`."""
        self._join()
        while self._position.epoch < count:
            yield self._position.epoch
            self._position.epoch += 1
            self._position.cursor = 0
            self._state.forget_boundary()

    def batches(self) -> Iterator[Any]:
        """This worker's parts of the batches that are left of the epoch; one that was not committed comes again."""
        self._join()
        while self._position.cursor < self._sampler.epoch_length:
            self._lifecycle.between_steps()
            began = time.monotonic()
            world = self._committer.world
            owes = self._committer.received_sums is not None
            self._session_batch.update(self._sampler, world.size, world.chosen_batch, owes_a_step=owes)
            at = self._position.epoch, self._position.cursor
            share, batch = self._batch_loader.load(*at, world.rank, world.size, world.recovering_ranks)
            self._checkpointing.save_async()
            self._share, self._committed = share, False
            self._load_s = time.monotonic() - began
            yield batch
            if self._share is not None:
                raise ElasticError("the body of `for batch in s.batches()` needs `with s.step():` around the step")
        self._state.mark_boundary()
        self._meter.paused()

    def shards(self, batch: Any) -> Iterator[Any]:
        """The shards of a batch of `batches()`; one forward and backward for each, inside the step:

        with s.step():
            optimizer.zero_grad()
            for x, y in s.shards(batch):
                loss_function(model(x), y).backward()
            optimizer.step()
        """
        if self._shards is None or not isinstance(batch, ShardedBatch):
            raise ElasticError("shards() needs Session(..., virtual_shards=N), and what batches() gave")
        return self._shards.run(batch, self._position.step)

    def step(self, weight: int | None = None) -> AbstractContextManager[None]:
        """One step: committed or repeated. `weight`: samples or tokens that this worker's loss is the mean of, where
        it is not the number of samples it was given."""
        return Step(self, weight)

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Inside a step, around every backward but the last: gradients are only added up."""
        self._reducer.set_accumulating(True)
        try:
            yield
        finally:
            self._reducer.set_accumulating(False)

    def evaluate(
        self, metrics: Callable[[Any], Mapping[str, Any]], dataset: Any = None, *, batch_size: int = 256
    ) -> dict[str, float]:
        """Means over a data set, worked out by all members together; every member gets them. Before the first epoch a
        worker in a pilot is by itself: it evaluates the model as the script has made it.

        Args:
            metrics: sums (not means) over a batch, by name; called without gradients, the model in eval mode.
            dataset: map-style; by default the one trained on.
            batch_size: samples of one call.
        """
        if self._pilot is None:
            self._join()
        self._meter.paused()
        loader = (
            SampleLoader(dataset, self._sampler.seed, self._loader._collate) if dataset is not None else self._loader
        )
        return evaluate(self, loader, metrics, batch_size)

    def report(self, **values: float) -> None:
        """Figures for the daemon's record and for searches; the main worker's count."""
        if self.is_main and self._position.samples:
            for name, value in values.items():
                figure = float(value)
                said = figure if math.isfinite(figure) else None  # JSON knows no other numbers
                self._reports.hold(messages.Metric(name[:200], said, self._position.samples))

    def finish(self, result: Mapping[str, Any] | None = None) -> None:
        """Training is over: the last thing a script calls. `result`: plain JSON values, for the job's record."""
        self._join()
        self._reconfigurer.finishing = True
        try:
            self._lifecycle.meet()
        except JobOver as over:
            # The main worker was through the last round and told the daemon, before this one had noticed.
            log.info("the job is over: %s", over)
        if self.is_main:
            self._meter.flush()
            self._reports.stands()
            self._reports.say(messages.Finished(messages.plain(dict(result or {}), "result")))
        standalone_record.note_finish()
        if self._reconfigurer.link is not None:
            self._reconfigurer.link.flush(10.0)
            self._reconfigurer.link.close()
        if self._pilot is not None and self._pilot.local_leader is not None:
            self._pilot.local_leader.close()
        self._checkpointing.discard()
        worker_start.on_terminate(signal.SIG_DFL)

    # --- inside -----------------------------------------------------------------------------------------------

    def _join(self) -> None:
        """Once, when the script begins its loop: warm up, say so, and enter the first world."""
        if self._joined:
            return
        untracked.warn(self.model, self._state)
        if self._must_be_finite is None:
            scales = any(isinstance(thing, torch.amp.GradScaler) for thing in self._state.tracked.values())
            self._must_be_finite = not scales
        self._reducer.must_be_finite = self._must_be_finite
        if self._pilot is None:
            self._join_without_daemon()
            return
        weak = self._judgement.equality is Equality.STATISTICAL
        log.log(logging.WARNING if weak else logging.INFO, "equality with a static run is %s", self.equality)
        imported = time.monotonic() - self._began
        began = time.monotonic()
        worker_start.warm_up(self.model, self._loader, self._sampler, self._warm_up)
        stages = {"build": imported, "warm_up": time.monotonic() - began, **worker_start.stages()}
        self._reconfigurer.link = link = self._pilot.open(self._reconfigurer)
        link.say(messages.Warm(self._pilot.wait_warm(), stages))
        self._reconfigurer.join()
        self._joined = True
        self._lifecycle.begin()

    def _join_without_daemon(self) -> None:
        """With those that were started together, or alone."""
        if self._fixed is not None and self._fixed.size > 1:
            worker_start.warm_up(self.model, self._loader, self._sampler, self._warm_up)
            self._reconfigurer.enter_static_world(self._fixed)
        else:
            self._checkpointing.load()
            self._state.has_state = True
            self._committer.world.workers = ("alone",)
        self._joined = True
        self._entered()

    def _entered(self) -> None:
        """This worker trains in another world."""
        self._meter.disturbed()
        self._proportional_shares.reset(self.size)
        if self.is_main and not self._was_main:
            for callback in self._when_main:
                callback()
        self._was_main = self.is_main

    def _top_up(self, tasks: int) -> None:
        if self._pilot is not None:
            self._pilot.resubmitter(tasks, self._reports.say)


def _end_surely(reconfigurer: Reconfigurer) -> None:
    """At the very end: a group stuck in an operation, or in the making, would abort the process instead. A worker
    that leaves ends at once: a main job may wait for its node, and the interpreter takes a second and more to take
    torch apart."""
    if reconfigurer.released or not reconfigurer.give_up(1.0) or not all_closed(1.0):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1 if hasattr(sys, "last_value") else Released.STATUS if reconfigurer.released else 0)
