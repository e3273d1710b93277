"""Optuna's samplers and pruners, conducted to the end and gone on with; trainings are scripts that say their figures
at once, so that a search of many trials takes no time."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from malletrain import study
from malletrain.study import storage, trial_records
from malletrain.study.conductor import Conductor, StudyLimits
from malletrain.study.definition import Definition
from malletrain.study.ports import Ending, Figure, StudyError, TrialEnd
from malletrain.study.trial_spec import TrialSpec
from tests.messages import naming

EPOCHS = 9


def fit(x: float, y: float) -> None:
    """What `train` is given; never called here."""


class Scripted:
    """A training that reports a curve and ends; it counts how much of the curve was asked for."""

    def __init__(self, order: TrialSpec, spoilt: bool) -> None:
        self.end = TrialEnd(Ending.NODE_FAILED, "the node failed") if spoilt else None
        x, y = order.params["x"], order.params["y"]
        self.value = 1 - (x - 0.3) ** 2 - (y - 0.6) ** 2
        self.told = 0
        self.stopped = False

    key = ""

    def next(self, wait_s: float) -> Figure | TrialEnd:
        if self.told == EPOCHS:
            return self.end or TrialEnd(Ending.COMPLETED, result={"value": self.value})
        self.told += 1
        return Figure("value", self.value * (1 - math.exp(-self.told)), 8 * self.told)

    def stop(self) -> None:
        self.stopped = True

    def trained_s(self) -> float:
        return float(self.told)

    def facts(self) -> Mapping[str, float]:
        return {"node_seconds": self.trained_s()}


class ScriptedRuns:
    """Room for three at a time; trainings of the trials `spoilt` end as node_failed."""

    def __init__(self, spoilt: Collection[int]) -> None:
        self.spoilt = spoilt
        self.runs: dict[str, Scripted] = {}

    def check(self, nodes: str) -> None: ...

    def start(self, order: TrialSpec) -> Scripted:
        order.write()
        number = int(order.name.rpartition("-")[2])
        return self.runs.setdefault(order.name, Scripted(order, number in self.spoilt))

    def find(self, order: TrialSpec, key: str) -> None:
        return None

    def has_capacity(self, active: int) -> bool:
        return active < 3

    def forget(self, prefix: str, known: Collection[str]) -> None: ...

    def close(self) -> None: ...


def one(trial: optuna.Trial) -> float:
    params = {"x": trial.suggest_float("x", 0, 1), "y": trial.suggest_float("y", 0, 1)}
    return float(study.train(trial, fit, params, watch="value", samples_per_step=8)["value"])


def two(trial: optuna.Trial) -> tuple[float, float]:
    params = {"x": trial.suggest_float("x", 0, 1), "y": trial.suggest_float("y", 0, 1)}
    return float(study.train(trial, fit, params)["value"]), params["x"]


def search(
    folder: Path,
    trials: int | None,
    sampler: optuna.samplers.BaseSampler,
    pruner: optuna.pruners.BasePruner | None = None,
    objective: Callable[[optuna.Trial], float | tuple[float, ...]] = one,
    directions: tuple[str, ...] = ("maximize",),
    spoilt: Collection[int] = (),
) -> tuple[optuna.Study, ScriptedRuns]:
    """One life of a study."""
    definition = Definition(folder / "small.py", objective, directions, sampler, pruner, "1-4")
    kept, _ = trial_records.open_study(storage.open_storage(str(folder / "small.journal")), definition)
    runs = ScriptedRuns(spoilt)
    said: list[str] = []
    Conductor(kept, definition, runs, folder / "trials", said.append, threading.Event()).run(StudyLimits(trials))
    return kept, runs


GRID = {"x": [0.0, 0.3, 0.9], "y": [0.1, 0.6]}
SAMPLERS: dict[str, Callable[[], optuna.samplers.BaseSampler]] = {
    "random": lambda: optuna.samplers.RandomSampler(seed=1),
    "tpe": lambda: optuna.samplers.TPESampler(seed=1, n_startup_trials=4, multivariate=True, constant_liar=True),
    "cma-es": lambda: optuna.samplers.CmaEsSampler(seed=1, n_startup_trials=2),
    "nsga-ii": lambda: optuna.samplers.NSGAIISampler(seed=1, population_size=4),
    "grid": lambda: optuna.samplers.GridSampler(GRID),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_goes_on_after_everything_but_the_journal_was_lost(tmp_path: Path, name: str) -> None:
    first, _ = search(tmp_path, 4, SAMPLERS[name]())
    assert trial_records.answered(first) == 4
    ends_by_itself = name == "grid"
    again, _ = search(tmp_path, None if ends_by_itself else 16, SAMPLERS[name]())
    trials = again.get_trials()
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * (6 if ends_by_itself else 16)
    if name != "nsga-ii":  # a child may be its parent again
        assert len({tuple(trial.params.values()) for trial in trials}) == len(trials), "nothing is tried twice"
    for trial in trials:
        assert trial.value == 1 - (trial.params["x"] - 0.3) ** 2 - (trial.params["y"] - 0.6) ** 2
    if ends_by_itself:
        assert again.best_params == {"x": 0.3, "y": 0.6}
        done, runs = search(tmp_path, None, SAMPLERS[name]())
        assert (len(done.get_trials()), runs.runs) == (6, {})


def test_a_place_of_a_grid_that_infrastructure_spoilt_is_tried_again_and_no_other(tmp_path: Path) -> None:
    kept, _ = search(tmp_path, None, SAMPLERS["grid"](), spoilt={1, 4, 5, 7})
    ends = [(trial.number, trial.user_attrs[trial_records.ENDING]) for trial in kept.get_trials()]
    assert [number for number, ending in ends if ending == "node_failed"] == [1, 4, 5, 7]
    done = kept.get_trials(states=(TrialState.COMPLETE,))
    assert len(kept.get_trials()) == 10
    assert len({tuple(trial.params.values()) for trial in done}) == len(done) == 6


@pytest.mark.parametrize(
    "pruner",
    [
        optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=1),
        optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
        optuna.pruners.HyperbandPruner(min_resource=1, max_resource=EPOCHS, reduction_factor=3),
    ],
    ids=lambda pruner: type(pruner).__name__,
)
def test_a_pruned_training_is_ended_at_the_figure_that_condemned_it(
    tmp_path: Path, pruner: optuna.pruners.BasePruner
) -> None:
    kept, runs = search(tmp_path, 30, optuna.samplers.RandomSampler(seed=1), pruner)
    trials = kept.get_trials()
    assert {trial.state for trial in trials} == {TrialState.COMPLETE, TrialState.PRUNED}
    assert len(trials) == 30
    for trial in trials:
        run = next(run for name, run in runs.runs.items() if name.endswith(f"-{trial.number:06d}"))
        assert run.stopped, "its nodes are given back"
        last = max(trial.intermediate_values)
        assert (run.told, trial.user_attrs[trial_records.ENDING]) == (
            (last, "pruned") if trial.state is TrialState.PRUNED else (EPOCHS, "completed")
        )
    assert sum(run.told for run in runs.runs.values()) < 30 * EPOCHS


def test_two_objectives_end_in_a_front_that_nothing_dominates(tmp_path: Path) -> None:
    """NSGA-II, in two lives of the study."""
    for wanted in (10, 24):
        kept, _ = search(tmp_path, wanted, SAMPLERS["nsga-ii"](), None, two, ("maximize", "minimize"))
        assert trial_records.answered(kept) == wanted
    trials = kept.get_trials()
    assert any(trial.system_attrs.get("NSGAIISampler:generation", 0) > 0 for trial in trials), "children were bred"
    front = kept.best_trials
    assert front
    for best in front:
        for other in trials:
            better = other.values[0] >= best.values[0] and other.values[1] <= best.values[1]
            assert not better or other.values == best.values


def test_a_pruner_for_two_objectives_is_refused_by_what_watches(tmp_path: Path) -> None:
    def watched(trial: optuna.Trial) -> tuple[float, float]:
        study.train(trial, fit, {"x": 0.0, "y": 0.0}, watch="value")
        return 0.0, 0.0

    with pytest.raises(StudyError, match=naming("watch:", "Optuna")):
        search(tmp_path, 1, SAMPLERS["nsga-ii"](), None, watched, ("maximize", "minimize"))
