"""What starting a worker and changing a world's size cost, by a daemon's journal."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median

from malletrain.domain.decision import StartPilot
from malletrain.domain.event import ActionIntent, Event, GenerationSwitched, WorkerWarm
from malletrain.domain.job import ResizeCosts


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """Medians, in seconds, and of how many they are: `activations` from the decision to start a pilot until its
    worker is warm, Slurm's part included; `grown`, `shrunk` the stalls of worlds, those after a lost node among
    `shrunk`."""

    costs: ResizeCosts
    activations: int
    grown: int
    shrunk: int


def measured_costs(events: Iterable[Event], otherwise: ResizeCosts) -> MeasuredCosts:
    """Folds a journal; what it does not show is taken from `otherwise`.

    A worker that was warm before its start was decided (clocks differ) counts as nothing; a script in restart mode
    that reports its pause twice counts once, with the later one.
    """
    decided: dict[str, float] = {}
    activations: list[float] = []
    stalls: dict[tuple[int | None, int, bool], float] = {}
    for event in events:
        pilot = event.pilot or ""
        match event.payload:
            case ActionIntent(action=StartPilot()):
                decided[pilot] = event.at
            case WorkerWarm() if pilot in decided:
                activations.append(max(0.0, event.at - decided.pop(pilot)))
            case GenerationSwitched(generation=generation, grew=grew, pause_s=seconds):
                if math.isfinite(seconds) and seconds > 0.0:  # 0: a world that begins
                    stalls[event.job, generation, grew] = seconds
    grown = [seconds for (*_, grew), seconds in stalls.items() if grew]
    shrunk = [seconds for (*_, grew), seconds in stalls.items() if not grew]
    costs = replace(
        otherwise,
        activate_s=median(activations) if activations else otherwise.activate_s,
        grow_s=median(grown) if grown else otherwise.grow_s,
        shrink_s=median(shrunk) if shrunk else otherwise.shrink_s,
    )
    return MeasuredCosts(costs, len(activations), len(grown), len(shrunk))
