"""The training jobs of a replay, and mixes of them by name, with published throughputs small enough to ship.

IMAGENET: training throughput in images/s of seven ImageNet models on 1-64 nodes of OLCF Summit (6 V100 each), as
measured for Liu et al., BFTrainer (arXiv 2106.12091); figures of github.com/BFTrainer/Replayer.
POLLUX: samples/s at the best batch size a GPU on 1-16 nodes of 4 T4 each, and the samples of a whole training
(progress at the smallest batch times that batch), as measured for Qiao et al., Pollux (OSDI 2021);
github.com/petuum/adaptdl, branch osdi21-artifact, Apache-2.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import Curve, MalleableJob, ResizeCosts
from malletrain.sizing.problem import OnClasses

_IMAGENET_NODES = (1, 2, 4, 8, 16, 32, 64)
_IMAGENET = {
    "AlexNet": (7115.3, 13071.7, 21066.1, 40484.9, 74002.9, 130762.0, 202135.4),
    "DenseNet": (989.9, 1952.5, 3849.8, 7608.1, 14993.2, 28812.2, 57773.9),
    "mnasnet1": (3245.7, 6001.9, 11489.3, 23075.6, 43899.7, 83474.2, 160493.6),
    "mobilenet": (3039.9, 5893.0, 11386.0, 22024.8, 42488.4, 82268.3, 155213.8),
    "resnet18": (5218.8, 10582.5, 20436.0, 39584.0, 78023.8, 144762.5, 262723.0),
    "shufflenet": (2831.0, 5259.0, 9988.0, 20379.2, 38895.3, 74125.1, 145081.5),
    "vgg16": (1193.3, 2389.2, 4691.7, 9257.9, 18348.9, 36208.5, 70151.7),
}

_POLLUX_NODES = (1, 2, 3, 4, 6, 8, 12, 16)
_POLLUX = {
    "bert": (50.151, 37.811, 82.172, 101.684, 151.994, 187.795, 294.290, 344.160),
    "cifar10": (5214.936, 9710.670, 14669.872, 19193.895, 28558.211, 37007.703, 44310.025, 35168.567),
    "deepspeech2": (129.774, 238.255, 359.128, 441.801, 568.145, 764.800, 605.168, 650.797),
    "imagenet": (795.999, 1576.528, 2351.096, 3082.672, 4540.153, 6053.115, 9009.986, 11776.628),
    "ncf": (1848945.636, 762752.781, 1223214.497, 1066221.356, 991587.126, 854462.616, 669246.0, 739234.51),
    "yolov3": (84.174, 69.606, 139.225, 174.859, 150.008, 165.520, 262.013, 345.299),
}

#: Samples of a whole training of each Pollux application.
POLLUX_SAMPLES: Mapping[str, float] = {
    "bert": 14774 * 12.0,
    "cifar10": 39063 * 128.0,
    "deepspeech2": 28536 * 20.0,
    "imagenet": 576526 * 200.0,
    "ncf": 194174 * 256.0,
    "yolov3": 103444 * 8.0,
}

IMAGENET: Mapping[str, Curve] = {
    name: Curve(tuple(zip(_IMAGENET_NODES, rates, strict=True))) for name, rates in _IMAGENET.items()
}
POLLUX: Mapping[str, Curve] = {
    name: Curve(tuple(zip(_POLLUX_NODES, rates, strict=True))) for name, rates in _POLLUX.items()
}


def curve_named(model: str) -> Curve | None:
    """The published curve of a model, whatever its case; ImageNet models first."""
    return {name.lower(): curve for name, curve in (*POLLUX.items(), *IMAGENET.items())}.get(model.lower())


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
    number: int,
    name: str,
    curve: Curve,
    costs: ResizeCosts,
    deadline_s: float | None = None,
    batches: tuple[tuple[int, Curve], ...] = (),
    noise_scale: float | None = None,
    on_classes: OnClasses | None = None,
    **more: Any,
) -> TrainingJob:
    """A job of a replay; `number` counts from 1. `deadline_s`: so many seconds after its submission its samples are
    to be trained; `more`: other fields of `MalleableJob`, as of one that may have 1 to 64 nodes from the begin on."""
    usual: dict[str, Any] = {
        "user": "replay",
        "uid": 0,
        "account": "",
        "min_nodes": 1,
        "max_nodes": 64,
        "submitted_at": 0.0,
    }
    job = MalleableJob(id=number, name=name, given_curve=curve, **(usual | more))
    if deadline_s is not None:
        job = replace(job, deadline=job.submitted_at + deadline_s)
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
    Raises InvalidInput: no such mix, or no sound count."""
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
    "endless": lambda number, _i, costs, _rng: training_job(number, f"linear-{number}", Curve.linear(64), costs),
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
