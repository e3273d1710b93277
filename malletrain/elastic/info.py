"""What a script may want to know of its session now and then: `s.info`."""

from __future__ import annotations

from malletrain.elastic.runtime import Runtime


class Info:
    """Figures of a session, as they are when they are read."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @property
    def nodes(self) -> int:
        """Number of nodes that train now."""
        return self._runtime.committer.world.nodes

    @property
    def samples_done(self) -> int:
        """Samples committed since training began."""
        return self._runtime.position.samples

    @property
    def share(self) -> int:
        """Number of this worker's samples in the batch under way. It is 0 where the batch is smaller than the
        world."""
        return 0 if self._runtime.share is None else self._runtime.share.weight

    @property
    def batch_size(self) -> int:
        """Samples of one step over all workers, now."""
        return self._runtime.session_batch.lr_scaling.batch

    @property
    def fixed_batch(self) -> bool:
        """Whether `batch_size` is the same at every size."""
        return self._runtime.session_batch.fixed

    @property
    def equal_batches(self) -> bool:
        """Whether all batches of an epoch but the last have `batch_size` samples: an `order` of batches may have
        others."""
        return not self._runtime.batch_ends()

    @property
    def gain(self) -> float:
        """The factor on the learning rate that follows from the present batch."""
        return self._runtime.session_batch.lr_scaling.gain

    @property
    def progress(self) -> float:
        """Training so far in steps of the reference batch. Schedules should count these."""
        return self._runtime.session_batch.lr_scaling.progress

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale in samples (see `gradients.noise_scale`), or None while it is unknown."""
        return self._runtime.session_batch.noise_scale()

    @property
    def equality(self) -> str:
        """In which sense the result equals that of a static run."""
        return str(self._runtime.judgement)

    def decay(self, of_reference: float) -> float:
        """The decay of a running average for one step of the present batch.

        Args:
            of_reference: the decay for one step of the reference batch. The result averages over as many samples
                (Busbridge et al., NeurIPS 2023).
        """
        return float(of_reference**self._runtime.session_batch.lr_scaling.power)
