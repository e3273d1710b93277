"""A study's trials as this project keeps them: who is over and why, who is to be tried again; and what is told of
them."""

import math
import secrets
from collections import Counter
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from malletrain.domain.errors import InvalidInput
from malletrain.study.definition import Definition
from malletrain.study.ports import Ending, TrialEnd

#: User attributes of trials and studies, for people and dashboards to read.
ENDING, REASON, TRACEBACK = "malletrain:ending", "malletrain:reason", "malletrain:traceback"
JOBS, REPEATS, REPEATED = "malletrain:jobs", "malletrain:repeats", "malletrain:repeated"
IDENTITY = "malletrain:id"

#: System attributes by which Optuna's GridSampler marks a trial's grid point.
GRID_ATTRIBUTES = ("grid_id", "search_space")

#: Times that the same parameters are repeated after faults of nodes or Slurm; then the parameters are suspect.
MAX_REPEATS = 20


def open_study(storage: optuna.storages.BaseStorage, definition: Definition) -> tuple[optuna.Study, bool]:
    """The study, begun now or gone on with (True).
    Raises InvalidInput: it was begun with other directions."""
    known = definition.name in optuna.get_all_study_names(storage)
    study = optuna.create_study(
        storage=storage,
        sampler=definition.sampler,
        pruner=definition.pruner or optuna.pruners.NopPruner(),
        study_name=definition.name,
        directions=[StudyDirection[each.upper()] for each in definition.directions],
        load_if_exists=True,
    )
    begun = tuple(direction.name.lower() for direction in study.directions)
    if begun != definition.directions:
        raise InvalidInput(
            f"{definition.file.name}",
            f"says {', '.join(definition.directions)}, but the study was begun with {', '.join(begun)}: "
            "give another --storage",
        )
    if IDENTITY not in study.user_attrs:
        study.set_user_attr(IDENTITY, secrets.token_hex(4))
    if known:
        # With a fixed seed the sampler would begin again, and propose what it has proposed before.
        study.sampler.reseed_rng()
    return study, known


def answered(study: optuna.Study) -> int:
    """How many trials have their answer: completed or pruned."""
    return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)))


def settle(
    study: optuna.Study, trial: optuna.Trial, over: TrialEnd, facts: dict[str, float], value: Any = None
) -> bool:
    """Write down how a trial has ended, then that it has; whether its parameters are to be tried once more."""
    trial.set_user_attr(ENDING, over.ending.value)
    if over.reason:
        trial.set_user_attr(REASON, over.reason[:500])
    if over.traceback:
        trial.set_user_attr(TRACEBACK, over.traceback[-1500:])  # databases limit an attribute; the folder has it all
    for name, number in facts.items():
        trial.set_user_attr(f"malletrain:{name}", number)
    match over.ending:
        case Ending.COMPLETED:
            study.tell(trial, value, state=TrialState.COMPLETE)
        case Ending.PRUNED:
            study.tell(trial, state=TrialState.PRUNED)
        case _:
            again = over.ending.by_infrastructure and repeat(study, study.get_trials(deepcopy=False)[trial.number])
            study.tell(trial, state=TrialState.FAIL)
            return again
    return False


def repeat(study: optuna.Study, trial: FrozenTrial) -> bool:
    """Queue a trial's parameters once more, unless they are queued already; False when they were spoilt too often.

    Before the trial is recorded as failed: killed in between, the next life of the study finds both, and queues
    nothing twice.
    """
    others = study.get_trials(deepcopy=False)
    if any(other.user_attrs.get(REPEATS) == trial.number for other in others):
        return True
    times = int(trial.user_attrs.get(REPEATED, 0)) + 1
    if times > MAX_REPEATS:
        return False
    # As Optuna queues a trial (Study.enqueue_trial), but that the place in a grid stays: its sampler counts those.
    place = {name: trial.system_attrs[name] for name in GRID_ATTRIBUTES if name in trial.system_attrs}
    waiting = optuna.trial.create_trial(
        state=TrialState.WAITING,
        system_attrs={"fixed_params": trial.params, **place},
        user_attrs={REPEATS: trial.number, REPEATED: times},
    )
    study.add_trial(waiting)
    return True


def grid_is_begun(study: optuna.Study) -> bool:
    """Whether all places of a grid are tried, or being tried: its sampler would propose one of them again."""
    sampler = study.sampler
    if not isinstance(sampler, optuna.samplers.GridSampler):
        return False
    begun = {trial.system_attrs.get(GRID_ATTRIBUTES[0]) for trial in study.get_trials(deepcopy=False)} - {None}
    return len(begun) >= sampler._n_min_trials


def fail_left(study: optuna.Study, trial: FrozenTrial, reason: str) -> None:
    """End a trial that an earlier life of the study left running and whose training is gone."""
    storage, number = study._storage, trial._trial_id
    storage.set_trial_user_attr(number, ENDING, Ending.INTERRUPTED.value)
    storage.set_trial_user_attr(number, REASON, reason)
    repeat(study, trial)
    study.tell(trial.number, state=TrialState.FAIL)


def values_of(returned: Any, directions: int) -> tuple[list[float], str]:
    """What an objective returned, as Optuna wants it; and what is wrong with it, empty where nothing is."""
    numbers = list(returned) if isinstance(returned, Sequence) and not isinstance(returned, str) else [returned]
    if returned is None:
        return [], "the objective returned None: `return` is missing, or what the training gave was nan or infinite"
    if len(numbers) != directions:
        return [], f"the objective returned {len(numbers)} values for {directions} directions"
    try:
        values = [float(value) for value in numbers]
    except (TypeError, ValueError):
        return [], f"the objective returned {returned!r:.60}, which is no number"
    if any(math.isnan(value) for value in values):
        return [], "the objective returned nan"
    return values, ""


def ending_of(trial: FrozenTrial) -> str:
    """A trial's end in a word of `Ending`, or Optuna's word for one that has not ended."""
    if trial.state in (TrialState.RUNNING, TrialState.WAITING):
        return trial.state.name.lower()
    if trial.state is TrialState.COMPLETE:
        return Ending.COMPLETED.value
    if trial.state is TrialState.PRUNED:
        return Ending.PRUNED.value
    return str(trial.user_attrs.get(ENDING, Ending.INTERRUPTED.value))


def counts(study: optuna.Study) -> dict[str, int]:
    """How many trials ended how."""
    return dict(Counter(ending_of(trial) for trial in study.get_trials(deepcopy=False)).most_common())


def node_hours(trial: FrozenTrial) -> float:
    """Node-hours that a trial's trainings have used."""
    return float(trial.user_attrs.get("malletrain:node_seconds", 0.0)) / 3600


def row(trial: FrozenTrial) -> dict[str, Any]:
    """A trial in plain values; `kept` are the attributes that the objective gave it."""
    ours = {name: value for name, value in trial.user_attrs.items() if name.startswith("malletrain:")}
    return {
        "trial": trial.number,
        "ended_as": ending_of(trial),
        "values": list(trial.values or ()),
        "params": dict(trial.params),
        "reason": str(ours.get(REASON, "")),
        "traceback": str(ours.get(TRACEBACK, "")),
        "jobs": list(ours.get(JOBS, ())),
        "node_hours": node_hours(trial),
        "repeats": ours.get(REPEATS),
        "kept": {name: value for name, value in trial.user_attrs.items() if name not in ours},
    }


def best_trials(study: optuna.Study) -> list[FrozenTrial]:
    """The best trial, or the Pareto front of several directions; empty before the first that completed."""
    if len(study.directions) > 1:
        return list(study.best_trials)
    try:
        return [study.best_trial]
    except ValueError:
        return []


def quiet() -> None:
    """Leave the telling of trials to us: Optuna says warnings only."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
