"""One forked copy of a training process, which makes the step under way and compares it with another copy's."""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn

import torch
from torch.amp import autocast_mode

from malletrain.elastic.comm.group import Group, SoloGroup
from malletrain.elastic.data.sampler import Share
from malletrain.elastic.errors import PeerLost
from malletrain.elastic.guards.script_guards import LAYOUT
from malletrain.elastic.guards.split_trial.socket_group import (
    SocketGroup,
    receive_bytes,
    receive_tensor,
    send_bytes,
    send_tensor,
)

#: How far gradients may lie apart, as a part of their norm, by the narrowest type that they are computed in: parts of
#: a batch are rounded differently, and some sums cancel.
TOLERANCES = {torch.float64: 1e-7, torch.float32: 2e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}

#: Likewise for numbers that are no whole ones.
NUMBER_TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}

#: Gradients of a smaller norm are not compared: they are what rounding leaves of terms that cancel.
NOISE = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}

#: A tensor whose gradient is a smaller part of all is not looked at by itself.
SMALLEST_PART = 1e-3

#: Gradients that have become smaller than this part of the largest ones so far are compared with that: what is left
#: of them near a minimum is rounding.
SMALLEST_NORM = 1e-2


class TrialRole(Enum):
    """What a copy makes of the worker's samples."""

    WHOLE = "whole"  #: all of them, alone
    FIRST = "first"  #: the first part, as the first worker of two
    SECOND = "second"  #: the second part, as the second


@dataclass(frozen=True, slots=True)
class Trained:
    """What a step changes.

    Attributes:
        gradients: name and parameter of those whose gradients are summed, in one order.
        tensors: returns name and tensor of all parameters, and of what else the training state holds.
        numbers: returns by name the numbers that optimizers learn with, and those that the training state holds.
        norm: the largest norm of the gradients of steps tried before; 0 if there is none.
    """

    gradients: list[tuple[str, torch.nn.Parameter]]
    tensors: Callable[[], list[tuple[str, torch.Tensor]]]
    numbers: Callable[[], dict[str, Any]]
    norm: float


#: Loads what a copy has of a step: its share, and the batch.
PartOfStep = Callable[[], tuple[Share, Any]]


class Unmonitored:
    """The monitor (`comm.step_commit.WorldMonitor`) of a world that only such copies know."""

    def check(self, generation: int) -> None:
        """It always stands."""

    def fault(self, generation: int, how: str, detail: str) -> None:
        """Nobody would hear of it."""

    def ready_for(self) -> int:
        """Nothing follows."""
        return 0

    def is_ending(self) -> bool:
        """Not by request."""
        return False


class TrialMember:
    """What a copy does in the step, and in the one that follows it.

    Args:
        role: of this process.
        links: to the copies that have a part, in the one with the whole; in those, to that one.
        sibling: to the other copy that has a part; None in the one with the whole.
        verdict: descriptor of a pipe that takes lines of JSON: `{"norm": ...}`, `{"differs": ...}` or
            `{"unknown": ...}`, and `{"end": true}` after each step, with how many steps were `made` before.
        trained: of this process.
        following: loads what the copy has of the next step; None if there is none in this epoch.

    Attributes:
        role: of this process.
        group: that the copy sums its gradients in.
    """

    def __init__(
        self,
        role: TrialRole,
        links: list[socket.socket],
        sibling: socket.socket | None,
        verdict: int,
        trained: Trained,
        following: PartOfStep | None,
    ) -> None:
        self.role = role
        self._following = following
        self._made = 0
        self._links = links
        self._verdict = verdict
        self._trained = trained
        self.group: Group = SoloGroup() if sibling is None else SocketGroup(sibling, int(role is TrialRole.SECOND))
        self._before: dict[str, torch.Tensor] = {}
        self._begin()
        self._narrowest = _narrowest(each.dtype for _, each in trained.gradients)
        if torch.get_float32_matmul_precision() != "highest" and not multiplies_exactly():
            self._narrowest = torch.bfloat16
        _call_at_autocast(self._note_autocast)

    def next_part(self) -> PartOfStep:
        """Loads what this copy has of the step that follows the one that it has made."""
        part, self._following = self._following, None
        if part is None or not self._made:
            self.give_up("its step needs another batch")
        self._begin()
        return part

    def sum(self, table: torch.Tensor) -> torch.Tensor:
        """Sum a table, between two steps, over the copies that have a part."""
        try:
            self.group.all_reduce(table)
        except PeerLost as lost:
            self.give_up(str(lost))
        return table

    def pass_made(self) -> None:
        """A backward pass is complete: compare its gradients, and go on with those of the whole."""
        parameters = [each for _, each in self._trained.gradients]
        try:
            if self.role is TrialRole.WHOLE:
                used = torch.tensor([each.grad is not None for each in parameters])
                for link in self._links:
                    send_tensor(link, used)
                    for each in parameters:
                        if each.grad is not None:
                            send_tensor(link, each.grad)
                self._say(norm=_norm(each.grad for each in parameters if each.grad is not None))
            else:
                self._compare_gradients(parameters)
        except PeerLost as lost:
            self.give_up(str(lost))

    def block_ended(self, error: BaseException | None) -> None:
        """The step's block is over: compare what it has made of the parameters. Returns if another step follows."""
        if error is not None:
            self.give_up(f"{type(error).__name__}: {error}")
        try:
            if self.role is TrialRole.WHOLE:
                for link in self._links:
                    send_bytes(link, self._figures())
                    for _, each in self._trained.tensors():
                        send_tensor(link, each)
            else:
                self._compare_ends()
        except PeerLost as lost:
            self.give_up(str(lost))
        self._say(end=True)
        self._made += 1
        if self._following is None:
            os._exit(0)

    def give_up(self, why: str) -> NoReturn:
        """End without a verdict."""
        self._say(unknown=why)
        os._exit(0)

    # --- inside -----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self.role is not TrialRole.WHOLE:
            self._before = {name: each.detach().clone() for name, each in self._trained.tensors()}

    def _say(self, **what: Any) -> None:
        os.write(self._verdict, json.dumps(what | {"made": self._made}).encode() + b"\n")

    def _figures(self) -> bytes:
        """Numbers, and shapes of the tensors that follow them, as JSON."""
        shapes = {f"the shape of {name}": list(each.shape) for name, each in self._trained.tensors()}
        return json.dumps(self._trained.numbers() | shapes, default=str).encode()

    def _note_autocast(self, dtype: torch.dtype) -> None:
        self._narrowest = _narrowest([self._narrowest, dtype])

    def _compare_gradients(self, parameters: list[torch.nn.Parameter]) -> None:
        link = self._links[0]
        used = torch.empty(len(parameters), dtype=torch.bool)
        receive_tensor(link, used)
        pairs: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        for (name, parameter), is_used in zip(self._trained.gradients, used.tolist(), strict=True):
            whole = torch.zeros_like(parameter, memory_format=torch.contiguous_format).detach()
            if is_used:
                receive_tensor(link, whole)
            mine = torch.zeros_like(whole) if parameter.grad is None else parameter.grad
            pairs.append((name, mine.clone(), whole))
            if not is_used:
                parameter.grad = None
            elif parameter.grad is None:
                parameter.grad = whole.clone()
            else:
                parameter.grad.copy_(whole)
        least = max(SMALLEST_NORM * self._trained.norm, NOISE[self._narrowest])
        found = farthest(pairs, TOLERANCES[self._narrowest], least)
        if found is not None:
            self._say(differs="gradient", name=found[0], by=found[1])
            self.give_up("")

    def _compare_ends(self) -> None:
        link = self._links[0]
        of_whole = json.loads(receive_bytes(link))
        own = json.loads(self._figures())
        if of_whole.get(LAYOUT) != own.get(LAYOUT):
            self.give_up("other parameters are trained from here on, which workers agree about first")
        for name, number in own.items():
            if not _same(of_whole.get(name), number, NUMBER_TOLERANCES[self._narrowest]):
                self._say(differs="number", name=name, values=[of_whole.get(name), number])
                self.give_up("")
        pairs = []
        for name, mine in self._trained.tensors():
            whole = torch.empty_like(mine, memory_format=torch.contiguous_format).detach()
            receive_tensor(link, whole)
            before = self._before.get(name)
            if before is not None and before.shape == mine.shape and mine.is_floating_point():
                pairs.append((name, mine.detach() - before, whole - before))
            mine.data.copy_(whole)  # what rounding has left apart does not grow in the next step
        found = farthest(pairs, TOLERANCES[self._narrowest], NOISE[self._narrowest])
        if found is not None:
            self._say(differs="tensor", name=found[0], by=found[1])
            self.give_up("")


def multiplies_exactly() -> bool:
    """Whether products of matrices of float32 have its precision here: settings allow others, processors may not."""
    one = torch.linspace(0.1, 1.9, 256 * 256, dtype=torch.float32).reshape(256, 256)
    exact = one.double() @ one.double()
    return float((one @ one - exact).norm() / exact.norm()) < 1e-5


def farthest(
    pairs: Iterable[tuple[str, torch.Tensor, torch.Tensor]], tolerance: float, least: float
) -> tuple[str, float] | None:
    """The tensor whose two versions lie farthest apart, and how far as a part of its norm; None if all of them agree
    within `tolerance`.

    Args:
        pairs: name, the one version, the other.
        tolerance: relative to the norm of a tensor, or to a part of that of all tensors where that is more.
        least: a norm that is smaller counts as this.
    """
    rows = [(name, _norm([mine - whole]), max(_norm([mine]), _norm([whole]))) for name, mine, whole in pairs]
    total = sum(norm**2 for _, _, norm in rows) ** 0.5
    if not 0.0 < total < float("inf"):
        return None
    apart = [(name, distance / max(norm, SMALLEST_PART * total, least)) for name, distance, norm in rows]
    name, by = max(apart, key=lambda each: each[1])
    return (name, by) if by > tolerance and total > least else None


def _same(one: object, other: object, tolerance: float) -> bool:
    """Whether two numbers are the same up to rounding."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=tolerance, abs_tol=1e-12)
    return one == other


def _norm(tensors: Iterable[torch.Tensor]) -> float:
    return float(sum(float(each.detach().double().norm()) ** 2 for each in tensors) ** 0.5)


def _narrowest(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """The one with the widest tolerance."""
    return max((each for each in dtypes if each in TOLERANCES), key=TOLERANCES.__getitem__, default=torch.float32)


def _call_at_autocast(note: Callable[[torch.dtype], None]) -> None:
    """Call `note` with the type of each autocast context that this process enters from now on."""
    enter: Callable[[Any], Any] = autocast_mode.autocast.__enter__

    def entered(context: Any) -> Any:
        if context._enabled:
            note(context.fast_dtype)
        return enter(context)

    autocast_mode.autocast.__enter__ = entered  # type: ignore[method-assign]
