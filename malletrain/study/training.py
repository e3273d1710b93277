"""`train`: the training inside an objective, wherever it runs."""

import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from typing import Any

import optuna

from malletrain.domain.errors import InvalidInput
from malletrain.study.local_runs import LocalRuns
from malletrain.study.ports import Ending, Figure, Run, TrainingEnded, TrialContext, TrialEnd, current
from malletrain.study.trial_spec import TrialSpec

#: Seconds of one wait for a figure; a stop of the study is noticed within that time.
POLL_INTERVAL_S = 1.0


def train(
    trial: optuna.Trial,
    what: Callable[..., object] | str | os.PathLike[str],
    params: Mapping[str, Any] | None = None,
    *,
    nodes: str | None = None,
    watch: str | None = None,
    samples_per_step: int = 1,
    timeout_s: float | None = None,
) -> dict[str, Any]:
    """Run one elastic training with these parameters, and wait for its result.

    Under `malletrain study run` it is a malleable job; with `--local`, or called by plain Optuna, a process of this
    machine. `what` is a function of a file's top level, called with `params` as keywords, or a script, which gets
    them as `--name=value`. Either trains with `elastic.Session` and ends with `s.finish({...})`.

    Args:
        trial: Optuna's, as the objective got it.
        params: numbers, text, lists and dicts of them.
        nodes: the node range, as `1-8`; by default the study file's `nodes`, or 1-4.
        watch: name of a figure of `s.report()`, for the study's pruner. Its step is the number of samples trained
            with, divided by `samples_per_step` (the data set's size: then steps are epochs).
        timeout_s: seconds of training, counted while it holds nodes, after which the trial is given up.

    Returns:
        The dict that the script passed to `s.finish()`.

    Raises:
        optuna.TrialPruned: the pruner ended it.
        TrainingEnded: it ended without a result. Do not catch it: the study records why.
        InvalidInput: an argument cannot be used; the message says why.
    """
    bench = current.get() or _own_bench(trial)
    if watch is not None and len(trial.study.directions) > 1:
        raise InvalidInput("watch", "Optuna prunes studies of one objective only: leave watch out")
    if samples_per_step < 1:
        raise InvalidInput("samples_per_step", f"must be at least 1, not {samples_per_step}")
    file, function = _place(what, bench.file.parent)
    number = len(bench.done)
    folder = bench.folder if number == 0 else bench.folder / str(number)
    name = bench.name if number == 0 else f"{bench.name}-{number}"
    spec = TrialSpec(name, str(folder), file, function, dict(params or {}), nodes or bench.nodes)
    if bench.stopping.is_set():
        raise TrainingEnded(TrialEnd(Ending.INTERRUPTED, "the study was stopped"))
    run = _begin(bench, spec, number)
    bench.done.append(run)
    # A training that went on from its last save, or is followed again, reports some figures twice: the first counts.
    reported = set(trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values)
    seen = False
    try:
        while True:
            if bench.stopping.is_set():
                raise TrainingEnded(TrialEnd(Ending.INTERRUPTED, "the study was stopped"))
            said = run.next(POLL_INTERVAL_S)
            if isinstance(said, TrialEnd):
                break
            if isinstance(said, Figure) and said.name == watch:
                seen = True
                step = said.samples // samples_per_step
                if step not in reported:
                    reported.add(step)
                    trial.report(said.value, step)
                    if trial.should_prune():
                        raise optuna.TrialPruned(f"at step {step}: {watch} {said.value:g}")
            if timeout_s is not None and run.trained_s() > timeout_s:
                raise TrainingEnded(TrialEnd(Ending.TIMED_OUT, f"it has trained for {timeout_s:g} s without an end"))
    finally:
        run.stop()
    if said.ending is not Ending.COMPLETED:
        raise TrainingEnded(said)
    if watch is not None and not seen:
        bench.say(
            f"trial {trial.number} never reported {watch!r}, so nothing could be pruned: "
            f"call s.report({watch}=...) once an epoch"
        )
    return dict(said.result)


def _begin(bench: TrialContext, spec: TrialSpec, number: int) -> Run:
    """Follow the training that an earlier run of the study started, or start it."""
    if number < len(bench.keys):
        found = bench.runs.find(spec, bench.keys[number])
        if found is None:
            raise TrainingEnded(TrialEnd(Ending.LOST, f"its job {bench.keys[number]} is not known any more"))
        return found
    run = bench.runs.start(spec)
    if run.key:
        try:
            bench.note((*(each.key for each in bench.done), run.key))
        except BaseException:
            run.stop()
            raise
    return run


def _place(what: Callable[..., object] | str | os.PathLike[str], folder: Path) -> tuple[str, str]:
    """File and function name.
    Raises InvalidInput: another process could not import it by file and name."""
    if isinstance(what, (str, os.PathLike)):
        path = (folder / what).resolve()
        if not path.is_file():
            raise InvalidInput("train", f"there is no script {path}")
        return str(path), ""
    name = getattr(what, "__qualname__", "")
    file = inspect.getsourcefile(what) if inspect.isfunction(what) else None
    if not name.isidentifier() or file is None or not Path(file).is_file():
        raise InvalidInput(
            "train", f"{name or what!r} must be a function at the top level of a file: other processes call it, too"
        )
    return str(Path(file).resolve()), name


def _own_bench(trial: optuna.Trial) -> TrialContext:
    """The context under plain Optuna: local processes, one for each thread."""
    folder = Path(tempfile.mkdtemp(prefix="malletrain-trial-"))
    return TrialContext(
        runs=LocalRuns(most=1),
        file=Path.cwd() / "study.py",
        folder=folder,
        name=f"{trial.study.study_name}-{trial.number}",
        stopping=Event(),
        say=lambda words: print(words, file=sys.stderr),
    )
