"""Decides which process saves the training state, and when. `checkpoint_store` does the writing."""

from __future__ import annotations

from malletrain.elastic.comm.step_commit import StepCommitter
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.state.checkpoint_store import CheckpointStore
from malletrain.elastic.state.training_state import TrainingState


class Checkpointing:
    """One member's part in checkpoints; without a store, none are kept."""

    def __init__(self, checkpoints: CheckpointStore | None, state: TrainingState, committer: StepCommitter) -> None:
        self._checkpoints = checkpoints
        self._state = state
        self._committer = committer
        self._requested = False

    @property
    def is_writer(self) -> bool:
        """Whether this process writes checkpoints in this world."""
        return self._committer.world.rank == 0

    @property
    def can_write(self) -> bool:
        """Whether this process writes for its node, where no world has a first one."""
        world = self._committer.world
        return world.rank % world.local_size == 0

    def save(self) -> str | None:
        """Write a checkpoint now; returns its directory, or None if no checkpoints are kept."""
        return str(self._checkpoints.save(self._state)) if self._checkpoints else None

    def save_if_possible(self) -> tuple[str | None, str]:
        """As `save`, for one that leaves whatever comes of it (a main job must not wait for a folder that is full):
        where the state was saved, and why it could not be.

        Tell the daemon before the log: where the job's output lies in the same folder, srun ends at the first line
        that it cannot write, and this process with it.
        """
        try:
            return self.save(), ""
        except ElasticError as error:
            return None, str(error)

    def load(self) -> bool:
        """Restore the newest checkpoint; returns whether there was one."""
        return self._checkpoints is not None and self._checkpoints.load(self._state) is not None

    def discard(self) -> None:
        """Remove the checkpoints, on the main worker. Call it when training is over."""
        if self._checkpoints is not None and self._committer.world.rank == 0:
            self._checkpoints.discard()

    def is_due(self) -> bool:
        """Whether it is time for a checkpoint, on the main worker; the control vector tells the other members."""
        return self._checkpoints is not None and self._committer.world.rank == 0 and self._checkpoints.is_due()

    def request(self) -> None:
        """Have `save_async` write a checkpoint between this step and the next: all members agreed that one is due."""
        self._requested = True

    def confirm(self) -> None:
        """Every member has committed all steps so far: a checkpoint of them may be loaded."""
        if self._checkpoints is not None:
            self._checkpoints.confirm()

    def save_async(self) -> None:
        """Write a requested checkpoint in the background. Call it between two steps."""
        requested, self._requested = self._requested, False
        if requested and self._checkpoints is not None and self.is_writer:
            self._checkpoints.save_async(self._state)
            if self._committer.world.size == 1:
                self._checkpoints.confirm()
