"""The training jobs of a replay, and mixes of them by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import Curve, MalleableJob, ResizeCosts
from malletrain.replay.curves import (
    IMAGENET,
    POLLUX,
    POLLUX_SAMPLES,
)
from malletrain.sizing.problem import OnClasses

MAX_JOBS = 100_000


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A malleable job and what changing its size costs. `job.submitted_at` is Unix seconds, or seconds from the
    replay's start where the workload's file has no dates (see `shifted`); its `given_curve` is always set.

    `batches`: where a policy may choose the batch, samples/s over nodes by samples a step; `noise_scale`: its
    gradient noise scale in samples, by which a sample of a larger batch is worth less. Then samples count as those
    of the smallest batch do, and `given_curve` is that of the job's own batch. `on_classes`: how it runs on nodes of
    several classes; None: as the classes' speeds say.
    """

    job: MalleableJob
    costs: ResizeCosts
    batches: tuple[tuple[int, Curve], ...] = ()
    noise_scale: float | None = None
    on_classes: OnClasses | None = None

    @property
    def curve(self) -> Curve:
        return self.job.given_curve or Curve.linear(self.job.max_nodes)


def training_job(
    number: int, name: str, curve: Curve, costs: ResizeCosts, *, submitted_at: float = 0.0, min_nodes: int = 1,
    max_nodes: int = 64, total_samples: float | None = None, weight: float = 1.0, sizes: tuple[int, ...] = (),
    deadline_s: float | None = None, account: str = "", batches: tuple[tuple[int, Curve], ...] = (),
    noise_scale: float | None = None, on_classes: OnClasses | None = None, user: str = "",
) -> TrainingJob:  # fmt: skip
    """A job of a replay; `number` counts from 1. `deadline_s`: so many seconds after its submission its samples are
    to be trained."""
    job = MalleableJob(
        id=number, name=name, user=user or "replay", uid=0, account=account, min_nodes=min_nodes, max_nodes=max_nodes,
        submitted_at=submitted_at, sizes=sizes, weight=weight, given_curve=curve, total_samples=total_samples,
        deadline=None if deadline_s is None else submitted_at + deadline_s,
    )  # fmt: skip
    return TrainingJob(job, costs, batches, noise_scale, on_classes)


def at_batch(batches: tuple[tuple[int, Curve], ...], batch: int, noise_scale: float | None) -> Curve:
    """Progress over nodes at a fixed batch: samples/s times what a sample is worth, over one of the smallest batch
    (Pollux, OSDI 2021, eq. 7)."""
    least = batches[0][0]
    worth = 1.0 if noise_scale is None else (noise_scale + least) / (noise_scale + batch)
    return Curve(tuple((n, rate * worth) for n, rate in dict(batches)[batch].points))


# -- mixes -----------------------------------------------------------------------------------------------------------


def mix(text: str, costs: ResizeCosts, seed: int = 0) -> list[TrainingJob]:
    """Jobs of `NAME:COUNT[,NAME:COUNT...]`, all there from the start.

    Raises:
        InvalidInput: no such mix, or no sound count.
    """
    jobs: list[TrainingJob] = []
    for part in text.split(","):
        name, _, count = part.strip().partition(":")
        maker = MIXES.get(name)
        if maker is None:
            raise InvalidInput("--mix", f"{name!r} is not known; known are {', '.join(sorted(MIXES))}")
        if count and not (count.isascii() and count.isdecimal() and 0 < int(count) <= MAX_JOBS):
            raise InvalidInput("--mix", f"{part.strip()!r}: the count must be a number from 1 to {MAX_JOBS:,}")
        rng = np.random.default_rng([seed, len(jobs)])
        for i in range(int(count or 1)):
            jobs.append(maker(len(jobs) + 1, i, costs, rng))
    if len(jobs) > MAX_JOBS:
        raise InvalidInput("--mix", f"{len(jobs):,} jobs are more than {MAX_JOBS:,}")
    return jobs


def _endless_imagenet(number: int, i: int, costs: ResizeCosts, rng: np.random.Generator) -> TrainingJob:
    name = sorted(IMAGENET, key=str.lower)[i % len(IMAGENET)]
    return training_job(number, f"{name}-{number}", IMAGENET[name], costs)


def _endless_linear(number: int, i: int, costs: ResizeCosts, rng: np.random.Generator) -> TrainingJob:
    return training_job(number, f"linear-{number}", Curve.linear(64), costs)


def _pollux(number: int, i: int, costs: ResizeCosts, rng: np.random.Generator) -> TrainingJob:
    name = sorted(POLLUX)[i % len(POLLUX)]
    return training_job(
        number, f"{name}-{number}", POLLUX[name], costs, max_nodes=16, total_samples=POLLUX_SAMPLES[name]
    )


def _hpo(number: int, i: int, costs: ResizeCosts, rng: np.random.Generator) -> TrainingJob:
    # BFTrainer's search: trials of one model, 130 million samples each.
    curve = IMAGENET["shufflenet"]
    return training_job(number, f"trial-{number}", curve, costs, total_samples=130e6)


def _nas(number: int, i: int, costs: ResizeCosts, rng: np.random.Generator) -> TrainingJob:
    # Architectures differ in speed and in what communication costs them: n / (a + b log2 n), b/a from 2 to 25 %,
    # trained for one to six hours of one node.
    rate, share = float(rng.uniform(500, 8000)), float(rng.uniform(0.02, 0.25))
    points = tuple((n, rate * n / (1 + share * math.log2(n))) for n in (1, 2, 4, 8, 16))
    work = rate * float(rng.uniform(1, 6)) * 3600
    return training_job(number, f"architecture-{number}", Curve(points), costs, max_nodes=16, total_samples=work)


MIXES: Mapping[str, Callable[[int, int, ResizeCosts, np.random.Generator], TrainingJob]] = {
    "imagenet": _endless_imagenet,
    "endless": _endless_linear,
    "pollux": _pollux,
    "hpo": _hpo,
    "nas": _nas,
}


def shifted(jobs: Iterable[TrainingJob], start: float) -> list[TrainingJob]:
    """The jobs on a trace's clock: submit times below 10^9 count from `start`; earlier ones are there at `start`."""
    moved = []
    for each in jobs:
        at = each.job.submitted_at
        due = each.job.deadline
        due = due + start if due is not None and at < 1e9 else due
        at = start + at if at < 1e9 else max(at, start)
        moved.append(replace(each, job=replace(each.job, submitted_at=at, deadline=due)))
    return moved
