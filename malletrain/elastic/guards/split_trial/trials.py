"""When a step is tried in parts, and what becomes of it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from malletrain.elastic.data.pieces import SHARDS, Pieces
from malletrain.elastic.guards.split_trial import system_calls
from malletrain.elastic.guards.split_trial.isolation import clocks, isolate, stop_clocks
from malletrain.elastic.guards.split_trial.memory_room import bytes_free, resident_bytes
from malletrain.elastic.guards.split_trial.trial_member import PartOfStep, Trained, TrialMember, TrialRole

log = logging.getLogger("malletrain.elastic")

#: How many times as late as the one before a step is that is tried; later on, the part of the time that trials take.
FACTOR, MAX_TIME_SHARE = 2, 0.004

#: What part of the samples the first copy has, in each trial in turn; at least so many: of one sample a deviation is
#: no number, and the step has no verdict.
PARTS, LEAST_PART = (2, 3, 8), 2

#: Parameters of more bytes than this are not tried: three processes would hold their gradients.
MAX_BYTES = 256 * 2**20

#: Seconds that a worker waits for the verdict at the end of a step that is tried, and before its state is saved or
#: sent: its peers wait meanwhile, and call a worker lost that is silent for longer.
AT_ONCE_S, BEFORE_SAVING_S = 1.0, 2.0

#: Seconds that the copies have. (Each computes with one thread, and beside the others.)
LIMIT_S = 20.0

#: Trials without a verdict after which none is made any more.
MAX_UNKNOWN = 2

#: How many times its own memory a worker must find free.
ROOM = 4


@dataclass(slots=True)
class _Trial:
    step: int
    kind: str  #: of pieces
    parts: list[tuple[int, int]]  #: pieces of the two copies that have parts, in each step
    began: float  #: monotonic
    children: list[int] = field(default_factory=list)
    verdicts: list[int] = field(default_factory=list)  #: descriptors
    lines: list[dict[str, Any]] = field(default_factory=list)
    rest: dict[int, bytes] = field(default_factory=dict)
    cost_s: float = 0.0  #: of the worker, which forks and waits, and of the copies' processors

    def has_made(self, steps: int) -> bool:
        """Whether all copies have made so many steps."""
        ends = [line for line in self.lines if "end" in line and line["made"] == steps - 1]
        return len(ends) == len(TrialRole)


class SplitTrials:
    """Tries steps of this worker whole and in two parts, in forked copies of it, two in a row: its first ones, those
    that come `FACTOR` times as late as the ones before, and as many as take `MAX_TIME_SHARE` of the time.

    Args:
        trained: returns what a step changes.
        now: monotonic seconds.

    Attributes:
        possible: whether steps can be tried.
        tried: the last steps that are, or have been.
        without_verdict: steps of which nothing has become known; for the caller to take.
    """

    def __init__(self, trained: Callable[[float], Trained], now: Callable[[], float] = time.monotonic) -> None:
        self._trained = trained
        self._now = now
        self.possible = True
        self.tried = range(0)
        self.without_verdict: list[int] = []
        self._steps, self._next = 0, 1
        self._due = float("inf")
        self._trials = 0
        self._unknown = [0, 0]  #: trials without a verdict on the first step, and on the second
        self._answers_at_once = True
        self._norm = 0.0
        self._trial: _Trial | None = None

    def cut(self, pieces: int, *, expected: bool = False) -> int:
        """Where to cut the pieces that a worker has of the step that begins; 0 if it is not tried.

        Args:
            pieces: how many the worker has.
            expected: whether it is taken to be of a kind that has not been tried, which is not put off.

        The parts are halves first, then a third and the rest, then an eighth and the rest, and so on: what looks at
        one sample of many shows in small parts.
        """
        self._steps += 1
        if not self.possible or pieces < 2 or self._trial is not None:
            return 0
        if self._steps >= self._next:
            # Odd ones and even ones in turn: powers of two never meet what happens at every sixth step.
            self._next = FACTOR * self._steps + self._trials % 2
        elif not expected and self._now() < self._due:
            return 0
        if not self._has_room():
            self._due = self._now() + LIMIT_S
            return 0
        self._trials += 1
        return max(min(LEAST_PART, pieces // 2), pieces // PARTS[(self._trials - 1) % len(PARTS)])

    def fork(
        self, step: int, cut: int, pieces: Pieces, following: Pieces | None
    ) -> tuple[TrialMember, PartOfStep] | None:
        """Fork the copies that make the step that is about to begin.

        Args:
            step: which one.
            cut: what the method of this name has returned.
            pieces: what this worker has of it.
            following: what this worker has of the next one of this epoch, if there is one.

        Returns:
            None in the worker itself; in a copy, what it does in the trial, and what loads its part of the step.
        """
        began = self._now()
        parts, sizes = [_parted(pieces, cut)], [(cut, pieces.count - cut)]
        if following is not None and self._unknown[1] < MAX_UNKNOWN and following.count >= 2:
            next_cut = max(1, cut * following.count // pieces.count)
            parts.append(_parted(following, next_cut))
            sizes.append((next_cut, following.count - next_cut))
        first, second, between = socket.socketpair(), socket.socketpair(), socket.socketpair()
        links = {TrialRole.WHOLE: [first[0], second[0]], TrialRole.FIRST: [first[1]], TrialRole.SECOND: [second[1]]}
        siblings = {TrialRole.FIRST: between[0], TrialRole.SECOND: between[1]}
        trial = _Trial(step, pieces.kind, sizes, began)
        parent, now = os.getpid(), clocks()
        for role in TrialRole:
            reads, writes = os.pipe()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the copy uses none of theirs
                child = os.fork()
            if not child:
                own = [each.fileno() for each in links[role]] + [writes]
                if role in siblings:
                    own.append(siblings[role].fileno())
                stop_clocks(now)
                next_part = parts[1][role] if len(parts) > 1 else None
                trained = self._trained(self._norm)
                return _begin(role, links[role], siblings.get(role), own, parent, trained, next_part), parts[0][role]
            os.close(writes)
            os.set_blocking(reads, False)
            trial.children.append(child)
            trial.verdicts.append(reads)
        for pair in (first, second, between):
            for each in pair:
                each.close()
        trial.cost_s = self._now() - began
        self._trial = trial
        self.tried = range(step, step + len(parts))
        return None

    def answers_at(self, step: int) -> bool:
        """Whether this is a step that is being tried whose verdict is worth waiting for as it ends."""
        return self._trial is not None and self._trial.step == step and self._answers_at_once

    def verdict(self, seconds: float, done: int) -> str:
        """What is wrong with the steps that were tried; an empty text if nothing is, or nothing is known (yet).

        Args:
            seconds: how long to wait at most for what is known of the first; nobody waits for the second.
            done: steps that the worker has made. Of one that it has not made nothing is said: rules look at it too,
                and may find that the result depends on the workers.
        """
        trial = self._trial
        if trial is None:
            return ""
        began = self._now()
        deadline = trial.began + LIMIT_S
        until = min(deadline, began + seconds)
        while trial.verdicts:
            patience = 0.0 if trial.has_made(1) else max(0.0, until - self._now())
            ready, _, _ = select.select(trial.verdicts, [], [], patience)
            if not ready:
                break
            for each in ready:
                self._read(trial, each)
        if seconds:
            trial.cost_s += self._now() - began
            self._answers_at_once = trial.has_made(1)
        wrong = next((line for line in trial.lines if "differs" in line), None)
        if wrong is not None and done <= trial.step + wrong["made"]:
            return ""
        if wrong is None and trial.verdicts and self._now() < deadline:
            return ""
        self._end(trial)
        if wrong is not None:
            return _message(wrong, trial)
        self._count(trial)
        return ""

    def end(self) -> None:
        """End a trial that is under way."""
        if self._trial is not None:
            self._end(self._trial)

    # --- inside -----------------------------------------------------------------------------------------------

    def _count(self, trial: _Trial) -> None:
        """A trial is over, and has found nothing."""
        if trial.has_made(1):
            self._norm = max([self._norm, *(line["norm"] for line in trial.lines if "norm" in line)])
        for number in range(len(trial.parts)):
            if not trial.has_made(number + 1):
                self._unknown[number] += 1
                self.without_verdict += range(trial.step + number, trial.step + len(trial.parts))
                reason = next((line["unknown"] for line in trial.lines if line.get("unknown")), "they took too long")
                log.debug("step %d could not be tried in parts: %s", trial.step + number, reason)
                break
        self.possible = self._unknown[0] < MAX_UNKNOWN

    def _has_room(self) -> bool:
        model = self._trained(0.0).tensors()
        on_host = all(each.device.type == "cpu" for _, each in model)
        used_elsewhere = torch.cuda.is_initialized() or "mpi4py.MPI" in sys.modules or not system_calls.is_possible()
        size = sum(each.numel() * each.element_size() for _, each in model)
        if not on_host or used_elsewhere or size > MAX_BYTES:
            self.possible = False
            return False
        return bytes_free() > ROOM * resident_bytes()

    def _read(self, trial: _Trial, descriptor: int) -> None:
        data = os.read(descriptor, 65536)
        if not data:
            os.close(descriptor)
            trial.verdicts.remove(descriptor)
            return
        *whole, trial.rest[descriptor] = (trial.rest.get(descriptor, b"") + data).split(b"\n")
        trial.lines += [json.loads(line) for line in whole]

    def _end(self, trial: _Trial) -> None:
        self._trial = None
        for descriptor in trial.verdicts:
            os.close(descriptor)
        for child in trial.children:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                used = os.wait4(child, 0)[2]
                trial.cost_s += used.ru_utime + used.ru_stime
        self._due = self._now() + trial.cost_s / MAX_TIME_SHARE


def _parted(pieces: Pieces, cut: int) -> dict[TrialRole, PartOfStep]:
    """What loads each copy's part of a worker's pieces."""
    return {
        TrialRole.WHOLE: partial(pieces.load, 0, pieces.count),
        TrialRole.FIRST: partial(pieces.load, 0, cut),
        TrialRole.SECOND: partial(pieces.load, cut, pieces.count),
    }


def _begin(
    role: TrialRole,
    links: list[socket.socket],
    sibling: socket.socket | None,
    own: Sequence[int],
    parent: int,
    trained: Trained,
    following: PartOfStep | None,
) -> TrialMember:
    """In a forked copy."""
    member: list[TrialMember] = []

    def refuse(event: str) -> None:
        if member:
            member[0].give_up(f"it calls {event}")
        os._exit(1)

    isolate(own, parent, int(LIMIT_S), refuse)
    os.environ["WORLD_SIZE"] = "1" if role is TrialRole.WHOLE else "2"
    os.environ["RANK"] = "1" if role is TrialRole.SECOND else "0"
    member.append(TrialMember(role, links, sibling, own[len(links)], trained, following))
    return member[0]


def _message(wrong: dict[str, Any], trial: _Trial) -> str:
    first, second = trial.parts[wrong["made"]]
    step = trial.step + wrong["made"]
    how = f"step {step} was tried with one worker and with two ({first} and {second} {trial.kind})"
    if wrong["made"]:
        how += ", as the one before had been"
    if wrong["differs"] == "number":
        old, new = wrong["values"]
        return (
            f"{how}, and {wrong['name']} came out as {old} and as {new}: what a step sets must follow from "
            "s.steps_done, s.epoch or s.batch_size, or be made one value by s.agree() after the block; not from the "
            "samples or the number of one worker"
        )
    if wrong["differs"] == "gradient" and trial.kind == SHARDS:
        return (
            f"{how}, and the gradients of {wrong['name']} lie {wrong['by']:.1%} apart: those of a shard must follow "
            "from its own samples, not from the shards that this worker has run before it. Keep what they share in "
            "s.state, and change it after the block, from s.gather() or s.agree(); with Session(..., "
            "additive_loss=False) the result may depend on the workers"
        )
    if wrong["differs"] == "gradient":
        carried = (
            ", or follows from what a worker carries from step to step and makes of its own samples (keep it in "
            "s.state, made by s.gather() or s.agree())"
        )
        return (
            f"{how}, and the gradients of {wrong['name']} lie {wrong['by']:.1%} apart: the loss is no mean (or sum, "
            f"as reduction says) of one term a sample{carried if wrong['made'] else ''}. Compute what looks at "
            "several samples from the whole data set, or by s.gather(); say s.step(weight=...) if it is a mean over "
            "something else than samples; with Session(..., virtual_shards=N) each shard has its own, at every "
            "number of workers; with Session(..., additive_loss=False) the result may depend on the workers"
        )
    return (
        f"{how}: from the same gradients, the change of {wrong['name']} came out {wrong['by']:.1%} apart. What a "
        "step changes must follow from the gradients and from s.gather(), not from a worker's own samples, nor from "
        "torch's global random numbers, which each worker draws for itself (a generator that s.steps_done seeds is "
        "alike on all)"
    )
