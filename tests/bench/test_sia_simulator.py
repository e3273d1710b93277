"""Jobs as Sia's simulator has them, as demands by class, and our sizes placed on its GPUs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from scripts.bench.sia_simulator import Sizing

CONFIGS = {"t4": (np.array([1, 1, 1, 2]), np.array([1, 2, 4, 8])), "a100": (np.array([1, 1]), np.array([1, 2]))}
NODES = {
    name: {i: SimpleNamespace(resources={"nvidia.com/gpu": gpus}) for i in range(count)}
    for name, gpus, count in (("t4", 4, 2), ("a100", 2, 1))
}


class Theirs:
    """What our sizing asks of Sia's policy."""

    cluster_ordering = ("t4", "a100")
    configs = CONFIGS
    cluster_ngpus_per_node = {"t4": 4, "a100": 2}  # noqa: RUF012

    def _compute_goodputs_v2(self, info: Any, cluster: str, nodes: object, gpus: np.ndarray[Any, Any]) -> object:
        return info.speed[cluster] * gpus**0.8

    def alloc_to_placement(
        self, cluster: str, shapes: dict[str, tuple[int, int]], before: object, free: object
    ) -> dict[str, list[int]]:
        return {name: [0] * gpus for name, (_, gpus) in shapes.items()}


def info(t4: float, a100: float, *, measured: bool = True, underway: bool = False) -> SimpleNamespace:
    known = object() if measured else None
    return SimpleNamespace(
        speed={"t4": t4, "a100": a100}, speedup_fn={"t4": known, "a100": None}, max_replicas={"t4": 8, "a100": 2},
        scaling_underway=underway, age=0.0, num_restarts=0,
    )  # fmt: skip


def sizing() -> Sizing:
    return Sizing(1.5, 900.0, Theirs(), lambda name: 30)


def test_who_gains_most_by_the_fast_class_gets_it() -> None:
    jobs = {"slow": info(10.0, 12.0), "fast": info(1.0, 6.0)}
    found = sizing().optimize(jobs, NODES, {})
    assert found["fast"][0] == "a100" and found["slow"][0] == "t4"
    assert len(found["slow"][1]) == 8 and len(found["fast"][1]) == 2


def test_goodputs_count_over_one_gpu_of_the_slowest_class() -> None:
    demand = sizing().demand("job", info(10.0, 30.0), (None, ()))
    assert demand.on_classes is not None
    assert demand.curve.throughput(1) == 1.0 and demand.on_classes.curves["a100"].throughput(1) == 3.0
    assert demand.sizes == (1, 2, 4, 8) and demand.activate_s == 30.0


def test_before_a_measurement_a_job_has_one_gpu_of_any_class() -> None:
    demand = sizing().demand("job", info(10.0, 30.0, measured=False), (None, ()))
    assert demand.on_classes is not None
    assert demand.sizes == (1,) and set(demand.on_classes.curves) == {"t4", "a100"}


def test_who_restarts_is_left_alone() -> None:
    found = sizing().optimize({"job": info(1.0, 9.0, underway=True)}, NODES, {"job": ("t4", [0, 0])})
    assert found["job"][0] == "t4" and len(found["job"][1]) == 2
