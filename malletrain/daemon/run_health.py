"""Which of the daemon's recurring tasks fail, and whether Slurm answers: for /v1/health, which names no user."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


class RunHealth:
    """Counts failures in a row. Safe to call from any thread, one for each task.

    `failed` is called with the task's name at each failure, `answers` after each look whether Slurm answered it."""

    def __init__(self, failed: Callable[[str], None], answers: Callable[[bool], None] = lambda _: None) -> None:
        self._failed = failed
        self._answers = answers
        self._failing: dict[str, tuple[int, str]] = {}
        self._missed = 0

    @contextmanager
    def run(self, task: str) -> Iterator[None]:
        """One run of a task; an error goes on to the caller."""
        try:
            yield
        except Exception as error:
            self._failing[task] = (self._failing.get(task, (0, ""))[0] + 1, type(error).__name__)
            self._failed(task)
            raise
        self._failing.pop(task, None)

    def looked(self, *, answered: bool) -> None:
        """Slurm was asked."""
        self._missed = 0 if answered else self._missed + 1
        self._answers(answered)

    def ailments(self) -> Sequence[str]:
        """What is wrong, a line each."""
        found = [
            f"{task} failed {count} times in a row, last with {error}: the log says more"
            for task, (count, error) in sorted(self._failing.items())
        ]
        if self._missed:
            looks = "look" if self._missed == 1 else f"{self._missed} looks"
            found.append(f"Slurm did not answer the last {looks}: `scontrol ping` tells more")
        return found
