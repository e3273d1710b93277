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
from typing import Any

import torch

from malletrain.elastic.guards.split_trial.isolation import isolate
from malletrain.elastic.guards.split_trial.memory_room import bytes_free, resident_bytes
from malletrain.elastic.guards.split_trial.trial_member import Trained, TrialMember, TrialRole

log = logging.getLogger("malletrain.elastic")

#: How many times as late as the one before a step is that is tried.
FACTOR = 8

#: What part of the samples the first copy has, in each trial in turn.
PARTS = (2, 3, 8)

#: Parameters of more bytes than this are not tried: three processes would hold their gradients.
MAX_BYTES = 256 * 2**20

#: Seconds that a worker waits for the verdict at the end of the step that is tried, and before its state is saved or
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
    parts: tuple[int, int]
    deadline: float  #: monotonic
    children: list[int] = field(default_factory=list)
    verdicts: list[int] = field(default_factory=list)  #: descriptors
    lines: list[dict[str, Any]] = field(default_factory=list)
    rest: dict[int, bytes] = field(default_factory=dict)


class SplitTrials:
    """Tries steps of this worker whole and in two parts, in forked copies of it: its first one, and each that comes
    `FACTOR` times as late as the one before.

    Args:
        trained: returns what a step changes.

    Attributes:
        possible: whether steps can be tried.
    """

    def __init__(self, trained: Callable[[float], Trained]) -> None:
        self._trained = trained
        self.possible = True
        self._steps, self._next = 0, 1
        self._trials = 0
        self._unknown = 0
        self._norm = 0.0
        self._trial: _Trial | None = None

    def cut(self, samples: int) -> int:
        """Where to cut a worker's samples of the step that begins; 0 if it is not tried.

        The parts are halves first, then a third and the rest, then an eighth and the rest, and so on: what looks at
        one sample of many shows in small parts.
        """
        self._steps += 1
        if self._steps < self._next or not self.possible or samples < 2 or self._trial is not None:
            return 0
        self._next = FACTOR * self._steps
        if not self._has_room():
            return 0
        self._trials += 1
        return max(1, samples // PARTS[(self._trials - 1) % len(PARTS)])

    def fork(self, step: int, parts: tuple[int, int]) -> TrialMember | None:
        """Fork the copies that make the step that is about to begin. Returns None in the worker itself."""
        first, second, between = socket.socketpair(), socket.socketpair(), socket.socketpair()
        links = {TrialRole.WHOLE: [first[0], second[0]], TrialRole.FIRST: [first[1]], TrialRole.SECOND: [second[1]]}
        siblings = {TrialRole.FIRST: between[0], TrialRole.SECOND: between[1]}
        trial = _Trial(step, parts, time.monotonic() + LIMIT_S)
        parent = os.getpid()
        for role in TrialRole:
            reads, writes = os.pipe()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the copy uses none of theirs
                child = os.fork()
            if not child:
                own = [each.fileno() for each in links[role]] + [writes]
                if role in siblings:
                    own.append(siblings[role].fileno())
                return _begin(role, links[role], siblings.get(role), own, parent, self._trained(self._norm))
            os.close(writes)
            os.set_blocking(reads, False)
            trial.children.append(child)
            trial.verdicts.append(reads)
        for pair in (first, second, between):
            for each in pair:
                each.close()
        self._trial = trial
        return None

    def began_at(self, step: int) -> bool:
        """Whether this is the step that is being tried."""
        return self._trial is not None and self._trial.step == step

    def verdict(self, seconds: float) -> str:
        """What is wrong with the step that was tried; an empty text if nothing is, or nothing is known (yet).

        Args:
            seconds: how long to wait for it at most.
        """
        trial = self._trial
        if trial is None:
            return ""
        until = min(trial.deadline, time.monotonic() + seconds)
        while trial.verdicts:
            ready, _, _ = select.select(trial.verdicts, [], [], max(0.0, until - time.monotonic()))
            if not ready:
                break
            for each in ready:
                self._read(trial, each)
        wrong = next((line for line in trial.lines if "differs" in line), None)
        if wrong is None and trial.verdicts and time.monotonic() < trial.deadline:
            return ""
        self._end(trial)
        if wrong is not None:
            return _message(wrong, trial)
        if sum("end" in line for line in trial.lines) == len(TrialRole):
            self._norm = max([self._norm, *(line["norm"] for line in trial.lines if "norm" in line)])
            return ""
        self._unknown += 1
        reason = next((line["unknown"] for line in trial.lines if line.get("unknown")), "they took too long")
        log.debug("step %d could not be tried in parts: %s", trial.step, reason)
        self.possible = self._unknown < MAX_UNKNOWN
        return ""

    def end(self) -> None:
        """End a trial that is under way."""
        if self._trial is not None:
            self._end(self._trial)

    # --- inside -----------------------------------------------------------------------------------------------

    def _has_room(self) -> bool:
        model = self._trained(0.0).tensors()
        on_host = all(each.device.type == "cpu" for _, each in model)
        used_elsewhere = torch.cuda.is_initialized() or "mpi4py.MPI" in sys.modules
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
                os.waitpid(child, 0)


def _begin(
    role: TrialRole,
    links: list[socket.socket],
    sibling: socket.socket | None,
    own: Sequence[int],
    parent: int,
    trained: Trained,
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
    member.append(TrialMember(role, links, sibling, own[len(links)], trained))
    return member[0]


def _message(wrong: dict[str, Any], trial: _Trial) -> str:
    first, second = trial.parts
    how = f"step {trial.step} was tried with one worker and with two ({first} and {second} samples)"
    if wrong["differs"] == "number":
        old, new = wrong["values"]
        return (
            f"{how}, and {wrong['name']} came out as {old} and as {new}: what a step sets must follow from "
            "s.steps_done, s.epoch or s.batch_size, or be made one value by s.agree() after the block; not from the "
            "samples or the number of one worker"
        )
    if wrong["differs"] == "gradient":
        return (
            f"{how}, and the gradients of {wrong['name']} lie {wrong['by']:.1%} apart: the loss is no mean (or sum, "
            "as reduction says) of one term a sample. Compute what looks at several samples from the whole data set, "
            "or by s.gather(); say s.step(weight=...) if it is a mean over something else than samples; with "
            "Session(..., virtual_shards=N) each shard has its own, at every number of workers; with "
            "Session(..., additive_loss=False) the result may depend on the workers"
        )
    return (
        f"{how}: from the same gradients, the change of {wrong['name']} came out {wrong['by']:.1%} apart. What a "
        "step changes must follow from the gradients and from s.gather(), not from a worker's own samples"
    )
