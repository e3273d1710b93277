"""Slurm tasks of several nodes in a replay: which nodes come and go together (`decide.multi_node_pilots`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from malletrain.decide.multi_node_pilots import tasks_kept, unbroken_sizes
from malletrain.decide.placement import cohort_to_take

Ints = NDArray[np.int64]

#: Sums of widths that are kept.
MAX_KNOWN_SUMS = 1 << 14


class MultiNodeTasks:
    """The task of each node, -1 where no pilot holds it. A task holds nodes of one job, `width` of them at most if it
    begins now; `several`: whether any task may hold more than one node."""

    def __init__(self, nodes: int) -> None:
        self.width = 1
        #: The fewest nodes of a task that begins now.
        self.narrowest = 1
        self.several = False
        self.of: Ints = np.full(nodes, -1, np.int64)
        self._next = 0
        self._members: dict[int, list[int]] = {}
        #: How many nodes each task of a job holds, by job.
        self._widths: dict[int, dict[int, int]] = {}
        #: Sizes that each job may have where tasks that begin hold at most and at least `_masks_of` nodes, until its
        #: tasks change; None: all.
        self._masks: dict[int, NDArray[np.bool_] | None] = {}
        self._masks_of = 0, 0
        self._known: dict[tuple[tuple[int, ...], int, int, int, int], NDArray[np.bool_]] = {}
        #: By identity of such sizes, which are kept with it: the fewest nodes among them but none.
        self._fewest: dict[int, tuple[NDArray[np.bool_], int]] = {}

    def __len__(self) -> int:
        """How many tasks there are."""
        return len(self._members)

    def widen(self, width: int, held: int) -> None:
        """Tasks that begin from now on hold at most `width` nodes; those that there are hold `held` in all."""
        self.width, self.narrowest = width, 1
        self.several = width > 1 or (self.several and len(self) < held)

    def begin(self, nodes: Ints, jobs: Ints) -> None:
        """Put nodes that jobs take in tasks: those of one job together."""
        first = 0
        for job, count in _runs(jobs.tolist()):
            part = nodes[first : first + count]
            first += count
            tasks = self._next + self.groups(count)
            self.of[part] = tasks
            widths = self._widths.setdefault(job, {})
            for node, task in zip(part.tolist(), tasks.tolist(), strict=True):
                self._members.setdefault(task, []).append(node)
                widths[task] = widths.get(task, 0) + 1
            self._next += int(tasks.max() - self._next) + 1
            self._masks.pop(job, None)

    def end(self, nodes: Ints, jobs: Ints) -> None:
        """Nodes leave their tasks, and the jobs that held them."""
        for node, task, job in zip(nodes.tolist(), self.of[nodes].tolist(), jobs.tolist(), strict=True):
            members, widths = self._members[task], self._widths[job]
            members.remove(node)
            widths[task] -= 1
            if not members:
                del self._members[task], widths[task]
            self._masks.pop(job, None)
        self.of[nodes] = -1

    def groups(self, nodes: int) -> Ints:
        """For each of so many nodes, best first, the number of its task-to-be."""
        return np.arange(nodes) // self.width

    def co_allocated(self, nodes: Ints) -> Ints:
        """The other nodes of the tasks that hold `nodes`."""
        if not self.several or not len(nodes):
            return np.empty(0, np.int64)
        found = {node for task in set(self.of[nodes].tolist()) for node in self._members.get(task, ())}
        return np.array(sorted(found.difference(nodes.tolist())), dtype=np.int64)

    def allowed(self, live: Sequence[int], least: Sequence[int], most: Sequence[int]) -> dict[int, NDArray[np.bool_]]:
        """By place in `live`, of jobs that cannot take any size: which of the sizes 0..`most[job]` do not break up a
        task, growing by whole ones. `least`: the fewest nodes of each job."""
        if not self.several:
            return {}
        if self._masks_of != (self.width, self.narrowest):
            self._masks_of = self.width, self.narrowest
            self._masks.clear()
        masks = self._masks
        for job in live:
            if job not in masks:
                own = tuple(sorted(self._widths.get(job, {}).values()))
                some = self.width > 1 or (own and own[-1] > 1)
                masks[job] = self._sums(own, least[job], most[job]) if some else None
        return {place: mask for place, job in enumerate(live) if (mask := masks[job]) is not None}

    def fewest(self, may: NDArray[np.bool_]) -> int:
        """The least size but none that a job may have, by what `allowed` gives for it; 0 where there is no other."""
        known = self._fewest.get(id(may))
        if known is None:
            if len(self._fewest) > MAX_KNOWN_SUMS:
                self._fewest.clear()
            least = int(np.argmax(may[1:])) + 1 if may[1:].any() else 0
            known = self._fewest[id(may)] = may, least
        return known[1]

    def _sums(self, widths: tuple[int, ...], least: int, most: int) -> NDArray[np.bool_]:
        """Which sizes of 0..`most` are sums of some of `widths`, or all of them and more tasks."""
        key = widths, self.width, self.narrowest, least, most
        known = self._known.get(key)
        if known is None:
            known = np.zeros(most + 1, np.bool_)
            known[[0, *unbroken_sizes(widths, least, most, self.width, (), self.narrowest)]] = True
            if len(self._known) > MAX_KNOWN_SUMS:
                self._known.clear()
            self._known[key] = known
        return known

    def given_up(self, ranked: Ints, size: int) -> Ints:
        """Of a job's nodes `ranked`, best first, those that it gives up to keep at most `size` without breaking up a
        task: as few as can be. By number."""
        tasks: list[int] = self.of[ranked].tolist()
        kept = tasks_kept(tasks, size)
        return np.sort(ranked[[task not in kept for task in tasks]])


def _runs(jobs: Sequence[int]) -> list[tuple[int, int]]:
    """Each job and how often it stands there in a row."""
    return [(job, len(list(same))) for job, same in groupby(jobs)]


class Cohorts:
    """Free nodes by cohort, best first, and which of them a job takes: as `malletrain.decide.placement` does."""

    def __init__(self, nodes: Ints, cohort: Sequence[float]) -> None:
        """`cohort` of each of `nodes`."""
        self._groups: list[tuple[float, list[int]]] = []
        for node, began in zip(nodes.tolist(), cohort, strict=True):
            if not self._groups or began != self._groups[-1][0]:
                self._groups.append((began, []))
            self._groups[-1][1].append(node)

    def take(self, wanted: int, cohorts_of_job: Callable[[], set[float]]) -> list[int]:
        """Up to `wanted` nodes for a job; `cohorts_of_job()`: the cohorts that it has nodes of, a set of its own."""
        taken: list[int] = []
        own: set[float] | None = None
        reached: list[float] = []
        while len(taken) < wanted and self._groups:
            left = wanted - len(taken)
            if len(self._groups) == 1:
                group = self._groups[0]
            else:
                own = cohorts_of_job() if own is None else own
                own.update(reached)
                group = self._groups[cohort_to_take([(c, len(n)) for c, n in self._groups], own, left)]
            taken += group[1][:left]
            reached.append(group[0])
            del group[1][:left]
            if not group[1]:
                self._groups.remove(group)
        return taken
