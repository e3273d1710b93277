"""When and by whom the state is saved."""

from __future__ import annotations

from malletrain.elastic.comm.step_commit import StepCommitter
from malletrain.elastic.state.checkpoint_store import CheckpointStore
from malletrain.elastic.state.training_state import TrainingState


class Checkpointing:
    """One member's part in checkpoints.

    Args:
        checkpoints: where they are kept; None where none are.
        state: what is saved.
        committer: of this member.
        sharded: whether each process of a node holds a part of the model.
    """

    def __init__(
        self, checkpoints: CheckpointStore | None, state: TrainingState, committer: StepCommitter, *, sharded: bool
    ) -> None:
        self._checkpoints = checkpoints
        self._state = state
        self._committer = committer
        self._sharded = sharded
        self._agreed = False

    @property
    def is_writer(self) -> bool:
        """Whether this process writes in this world."""
        return self._committer.world.writes_checkpoints(sharded=self._sharded)

    def save(self) -> str | None:
        """Write the state now; returns where, or None when none is kept."""
        self._state.position.rounds = self._committer.rounds_done
        return str(self._checkpoints.save(self._state)) if self._checkpoints else None

    def load(self) -> bool:
        """Restore the newest checkpoint; whether there was one."""
        return self._checkpoints is not None and self._checkpoints.load(self._state) is not None

    def discard(self) -> None:
        """Training is over: nothing of it is needed any more."""
        if self._checkpoints is not None and self._committer.world.rank == 0:
            self._checkpoints.discard()

    def is_due(self) -> bool:
        """Whether the main worker finds that it is time for a checkpoint; the words of a round tell the others."""
        return self._checkpoints is not None and self._committer.world.rank == 0 and self._checkpoints.is_due()

    def request(self) -> None:
        """A round's words said that it is time."""
        self._agreed = True

    def confirm(self) -> None:
        """All that was committed so far is committed at every member: a checkpoint of it may be found by others."""
        if self._checkpoints is not None:
            self._checkpoints.confirm()

    def save_beside(self) -> None:
        """Between two steps, beside training, if that was agreed: nobody waits for it. Where each process of a node
        has a part, all of them do so after the same step."""
        agreed, self._agreed = self._agreed, False
        if agreed and self._checkpoints is not None and self.is_writer:
            self._state.position.rounds = self._committer.rounds_done
            self._checkpoints.save_beside(self._state)
            if self._committer.world.size == 1:
                self._checkpoints.confirm()
