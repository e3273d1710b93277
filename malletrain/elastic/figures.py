"""What a script can ask about its training."""

from __future__ import annotations

from malletrain.elastic.comm.step_commit import StepCommitter
from malletrain.elastic.data.batch_size import SessionBatch
from malletrain.elastic.data.sampler import Share
from malletrain.elastic.equality import Judgement
from malletrain.elastic.state.training_state import Position


class Figures:
    """Where training is, how many take part, and what a step is worth. `Session` is one."""

    _committer: StepCommitter
    _position: Position
    _session_batch: SessionBatch
    _judgement: Judgement
    _share: Share | None

    @property
    def is_main(self) -> bool:
        """Whether this worker is the one that prints and writes: the oldest one. It stays so until it leaves; then,
        between two steps, the next oldest is (see `Session.when_main`)."""
        return self._committer.world.rank == 0

    @property
    def size(self) -> int:
        """How many processes train now: `nodes`, times how many there are on each."""
        return self._committer.world.size

    @property
    def nodes(self) -> int:
        """How many nodes train now."""
        return self._committer.world.nodes

    @property
    def epoch(self) -> int:
        """The epoch under way, from 0."""
        return self._position.epoch

    @property
    def steps_done(self) -> int:
        """Steps committed since training began, whichever workers made them."""
        return self._position.step

    @property
    def samples_done(self) -> int:
        """Samples committed since training began."""
        return self._position.samples

    @property
    def share(self) -> int:
        """How many samples of the batch at hand count. 0 where this worker has no part in the step: in a batch
        smaller than the world, and in a newcomer's first step, while its state is on its way."""
        return 0 if self._share is None else self._share.weight

    @property
    def batch_size(self) -> int:
        """Samples of a step of all workers, now."""
        return self._session_batch.lr_scaling.batch

    @property
    def fixed_batch(self) -> bool:
        """Whether `batch_size` is the same at every size."""
        return self._session_batch.fixed

    @property
    def gain(self) -> float:
        """What the learning rate is multiplied by now, because of the batch."""
        return self._session_batch.lr_scaling.gain

    @property
    def progress(self) -> float:
        """Steps of the reference batch that training so far is worth: what schedules should count."""
        return self._session_batch.lr_scaling.progress

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale in samples (see `noise`); None while it is not known."""
        return self._session_batch.noise_scale()

    @property
    def equality(self) -> str:
        """In which sense the result is that of a static run."""
        return str(self._judgement)

    def decay(self, of_reference: float) -> float:
        """The decay of a running average for one step, so that it reaches over as many samples as `of_reference` does
        at the reference batch (Busbridge et al., NeurIPS 2023)."""
        return float(of_reference**self._session_batch.lr_scaling.power)
