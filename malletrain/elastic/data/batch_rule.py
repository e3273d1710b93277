"""How many samples a step has, whatever the number of workers, or by it.

- `Fixed`: the same at every size. What a script that gives a plain number has.
- `PerWorker`: each worker has the same, up to a limit for all together (Or, Zhang, Freedman: Resource Elasticity in
  Distributed Deep Learning, MLSys 2020).
- `Chosen`: by the daemon, with the number of nodes, within a range that the training bears (Saxena et al.: Effective
  Elastic Scaling of Deep Learning Workloads, MASCOTS 2020).

A batch changes with the world, and only then. Each rule has a `reference`: the batch that learning rate, momentum and
schedules were tuned for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from malletrain.elastic.errors import ElasticError


@runtime_checkable
class BatchRule(Protocol):
    """Samples of one step, over all workers."""

    @property
    def reference(self) -> int:
        """The batch that the script's learning rate is meant for."""
        ...

    def batch(self, workers: int, chosen: int, present: int) -> int:
        """Samples of a step of `workers` workers; `chosen` by the daemon (0: it has said nothing), `present` until
        now."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """`samples` at every size."""

    samples: int

    def __post_init__(self) -> None:
        _at_least_one("batch_size", self.samples)

    @property
    def reference(self) -> int:
        return self.samples

    def batch(self, workers: int, chosen: int, present: int) -> int:
        return self.samples


@dataclass(frozen=True, slots=True)
class PerWorker:
    """`samples` for each worker, at most `limit` for all; beyond that, shares become smaller.

    `tuned_for`: the batch of all workers that the learning rate is meant for; by default that of one worker.
    """

    samples: int
    limit: int
    tuned_for: int | None = None

    def __post_init__(self) -> None:
        _at_least_one("PerWorker: samples", self.samples)
        if self.limit < self.samples:
            raise ElasticError(f"PerWorker: limit={self.limit} is below the {self.samples} samples of one worker")
        if self.tuned_for is not None:
            _at_least_one("PerWorker: tuned_for", self.tuned_for)

    @property
    def reference(self) -> int:
        return self.tuned_for or self.samples

    def batch(self, workers: int, chosen: int, present: int) -> int:
        return min(self.samples * workers, self.limit)


@dataclass(frozen=True, slots=True)
class Chosen:
    """As the daemon chooses (`mtbatch --batch-min --batch-max`), within `low` and `high` where they are given;
    `reference` where it has not chosen, and on a laptop."""

    reference: int
    low: int | None = None
    high: int | None = None

    def __post_init__(self) -> None:
        _at_least_one("Chosen: reference", self.reference)
        low, high = self.low or 1, self.high or max(self.reference, self.low or 1)
        if not 1 <= low <= high:
            raise ElasticError(f"Chosen: low={self.low} and high={self.high} make no range")
        if not low <= self.reference <= high:
            raise ElasticError(f"Chosen: reference={self.reference} is not within {low} to {high}")

    def batch(self, workers: int, chosen: int, present: int) -> int:
        wanted = max(chosen or present, self.low or 1)
        return wanted if self.high is None else min(wanted, self.high)


def as_rule(batch_size: int | BatchRule) -> BatchRule:
    """What `Session(batch_size=...)` was given, as a rule."""
    if isinstance(batch_size, int) and not isinstance(batch_size, bool):
        return Fixed(batch_size)
    if isinstance(batch_size, BatchRule):
        return batch_size
    raise ElasticError(f"batch_size must be a number, PerWorker(...) or Chosen(...), not {batch_size!r}")


def _at_least_one(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ElasticError(f"{name} must be a whole number of at least 1, not {value!r}")
