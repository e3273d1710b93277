"""Conducting a study: trials are begun as there is room, each in a thread of its own, until so many have an answer.

Optuna decides what to try and what to prune; here is only when, and what becomes of a trial that got no answer.
"""

import queue
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from malletrain.domain.errors import MalletrainError
from malletrain.study import trial_records
from malletrain.study.definition import Definition
from malletrain.study.ports import Ending, Runs, StudyError, TrainingEnded, TrialContext, TrialEnd, current
from malletrain.wire.errors import WireError

#: Consecutive trials with user errors after which the study ends.
MAX_FAILURES = 5

#: Seconds of one wait for a trial's end.
POLL_INTERVAL_S = 0.5

#: Seconds that trials have to end when the study is stopped.
STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class StudyLimits:
    """When a study is done: `trials` with an answer, or `seconds` gone by. `concurrent`: at most so many at a time;
    None leaves it to where trainings run."""

    trials: int | None = None
    seconds: float | None = None
    concurrent: int | None = None


class Conductor:
    """One run of a study. Each trial gets a folder below `folder`; `stopping` is set (Ctrl-C) to end in order."""

    def __init__(
        self,
        study: optuna.Study,
        definition: Definition,
        runs: Runs,
        folder: Path,
        say: Callable[[str], None],
        stopping: threading.Event,
    ) -> None:
        self._study, self._definition, self._runs = study, definition, runs
        self._folder, self._say, self._stopping = folder, say, stopping
        #: Trials that have ended: number, how, and whether their parameters are tried again.
        self._ended: queue.Queue[tuple[int, TrialEnd, bool]] = queue.Queue()
        self._threads: dict[int, threading.Thread] = {}
        self._asking = threading.Lock()
        self._exhausted = threading.Event()
        self._failures = 0
        self._last_failure = ""
        # Samplers that have tried everything say so this way; it is meant for Optuna's own loop.
        study.stop = self._exhausted.set  # type: ignore[method-assign]

    @property
    def prefix(self) -> str:
        """The prefix of the names of this study's trainings, and of no other's."""
        return f"{self._definition.name[:40]}-{self._study.user_attrs[trial_records.IDENTITY]}-"

    def run(self, limits: StudyLimits) -> None:
        """Conduct until a limit is reached; then nothing of it runs any more.
        Raises StudyError: trial after trial fails by its own fault."""
        began = time.monotonic()
        self._go_on()
        done = trial_records.answered(self._study)
        try:
            while True:
                while self._may_begin(limits, done):
                    self._begin(self._ask())
                is_done = limits.trials is not None and done >= limits.trials
                if not self._threads and (is_done or self._is_exhausted()):
                    return
                done += self._take_end()
                if self._failures >= MAX_FAILURES:
                    raise StudyError(
                        f"{self._failures} trials in a row failed by their own fault, the last with: "
                        f"{self._last_failure}; correct the study, and run it again"
                    )
                if self._stopping.is_set():
                    return
                if limits.seconds is not None and time.monotonic() - began > limits.seconds:
                    self._say(f"{limits.seconds / 3600:g} hours are over: ending what runs")
                    return
        finally:
            self._stopping.set()
            self._end_all()

    # -- parts -------------------------------------------------------------------------------------------------

    def _may_begin(self, limits: StudyLimits, done: int) -> bool:
        active = len(self._threads)
        return (
            not self._stopping.is_set()
            and not self._is_exhausted()
            and (limits.trials is None or done + active < limits.trials)
            and (active < limits.concurrent if limits.concurrent is not None else self._runs.has_capacity(active))
        )

    def _is_exhausted(self) -> bool:
        """Whether the sampler has tried everything, and nothing waits to be tried again."""
        if self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            return False
        return self._exhausted.is_set() or trial_records.grid_is_begun(self._study)

    def _ask(self) -> optuna.Trial:
        with self._asking:
            return self._study.ask()

    def _go_on(self) -> None:
        """Take up what an earlier life of the study left: trainings that go on are followed, others tried again."""
        left = [t for t in self._study.get_trials(deepcopy=False) if t.state is TrialState.RUNNING]
        known = {key for trial in left for key in trial.user_attrs.get(trial_records.JOBS, ())}
        self._runs.forget(self.prefix, known)
        for trial in left:
            if trial.user_attrs.get(trial_records.JOBS):
                self._say(f"trial {trial.number}: going on with job {trial.user_attrs[trial_records.JOBS][-1]}")
                self._begin(optuna.Trial(self._study, trial._trial_id), trial)
            else:
                self._say(f"trial {trial.number}: its process is gone; its parameters are tried again")
                trial_records.fail_left(self._study, trial, "the study was killed while it ran")

    def _begin(self, trial: optuna.Trial, left: FrozenTrial | None = None) -> None:
        thread = threading.Thread(target=self._conduct, args=(trial, left), name=f"trial-{trial.number}", daemon=True)
        self._threads[trial.number] = thread
        thread.start()

    def _conduct(self, trial: optuna.Trial, left: FrozenTrial | None) -> None:
        """The life of a trial, in its thread."""
        bench = TrialContext(
            runs=self._runs,
            file=self._definition.file,
            folder=self._folder / f"{trial.number:06d}",
            name=f"{self.prefix}{trial.number:06d}",
            stopping=self._stopping,
            say=self._say,
            nodes=self._definition.nodes,
            keys=tuple(left.user_attrs.get(trial_records.JOBS, ())) if left is not None else (),
            note=lambda keys: trial.set_user_attr(trial_records.JOBS, list(keys)),
        )
        current.set(bench)
        value: Any = None
        try:
            over, value = self._objective(trial)
            facts: dict[str, float] = {}
            for run in bench.done:
                for name, number in run.facts().items():
                    facts[name] = facts.get(name, 0.0) + number
            with self._asking:
                again = trial_records.settle(self._study, trial, over, facts, value)
        except BaseException as error:  # noqa: BLE001 - the end of a thread: the main one must hear of it
            over, again = (
                TrialEnd(Ending.LOST, f"it could not be written down: {type(error).__name__}: {error}"),
                False,
            )
        self._ended.put((trial.number, over, again))

    def _objective(self, trial: optuna.Trial) -> tuple[TrialEnd, Any]:
        """Call the user's objective; how it ended, and its value."""
        try:
            returned = self._definition.objective(trial)
        except optuna.TrialPruned as pruned:
            return TrialEnd(Ending.PRUNED, str(pruned)), None
        except TrainingEnded as ended:
            return ended.over, None
        except MalletrainError as error:
            return TrialEnd(Ending.USER_ERROR, str(error)), None
        except WireError as error:  # the daemon refuses what it must not: nothing that the parameters did
            return TrialEnd(Ending.LOST, str(error)), None
        except MemoryError as error:
            return TrialEnd(Ending.OUT_OF_MEMORY, str(error), traceback=traceback.format_exc()), None
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code raises anything
            what = f"{type(error).__name__}: {error}"
            return TrialEnd(Ending.USER_ERROR, what, traceback=traceback.format_exc()), None
        values, fault = trial_records.values_of(returned, len(self._study.directions))
        return (TrialEnd(Ending.USER_ERROR, fault), None) if fault else (TrialEnd(Ending.COMPLETED), values)

    def _take_end(self) -> int:
        """Wait for a trial to end; 1 when it has an answer."""
        try:
            number, over, again = self._ended.get(timeout=POLL_INTERVAL_S)
        except queue.Empty:
            return 0
        self._threads.pop(number).join()
        if over.ending in (Ending.COMPLETED, Ending.PRUNED):
            self._failures = 0
            trial = self._study.get_trials(deepcopy=False)[number]
            words = over.reason if over.ending is Ending.PRUNED else ", ".join(f"{v:g}" for v in trial.values or ())
            self._say(f"trial {number} {over.ending.value}: {words}")
            return 1
        if not again:  # its own fault, or spoilt too often
            self._failures += 1
            self._last_failure = over.reason
        follows = "; its parameters are tried again" if again else ""
        self._say(f"trial {number} {over.ending.value.replace('_', ' ')}: {over.reason}{follows}")
        return 0

    def _end_all(self) -> None:
        """Let all trials end, and be written down as what they are."""
        end = time.monotonic() + STOP_TIMEOUT_S
        while self._threads and time.monotonic() < end:
            self._take_end()
        if self._threads:
            numbers = ", ".join(map(str, sorted(self._threads)))
            self._say(f"trials {numbers} do not end; the next `malletrain study run` takes care of them")
