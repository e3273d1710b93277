"""What workers' forward passes compute with: what a newcomer lacks is found, what follows from samples may differ."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from malletrain.elastic.guards.operations.batch_watch import BatchWatch
from malletrain.elastic.guards.operations.forward_numbers import ForwardNumbers
from malletrain.elastic.guards.operations.number_table import (
    computes_otherwise,
    have_read,
    number_at,
    odd_number,
    row_of,
)
from malletrain.elastic.guards.operations.read_watch import ReadWatch

Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], Any]


def watched(loss_of: Loss, samples: int = 8, width: int = 6, earlier: ForwardNumbers | None = None) -> ForwardNumbers:
    """One worker's forward pass of so many samples."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 3))
    given, y = torch.randn(samples, width), torch.randint(3, (samples,))
    x = functional.pad(given, (0, 6 - width)) if width < 6 else given
    numbers, reads = ForwardNumbers(samples, (given, y), earlier), ReadWatch()
    reads.start()
    with BatchWatch(samples, [*model.parameters()], [x, y], list, None, numbers) as watch:
        loss = loss_of(model, x, y)
        with watch.looking_away():
            numbers.close(loss, reads=reads.reads)
    reads.stop()
    return numbers


def differ(one: ForwardNumbers, other: ForwardNumbers) -> tuple[bool, str]:
    """Whether other lines are run, and the operation in which a number differs."""
    rows = [row_of(one), row_of(other)]
    slot = odd_number(rows)
    return computes_otherwise(rows), "" if slot is None else number_at(one, slot)[0].split()[1]


def plain(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(x), y)


def scaled(model: nn.Module, x: torch.Tensor, y: torch.Tensor, count: int) -> torch.Tensor:
    return plain(model, x, y) + 0.01 * min(1.0, count / 100) * next(model.parameters()).square().sum()


def by_tensor(model: nn.Module, x: torch.Tensor, y: torch.Tensor, count: int) -> torch.Tensor:
    return plain(model, x, y) * torch.tensor(0.1 * count)


def noised(model: nn.Module, x: torch.Tensor, y: torch.Tensor, count: int) -> torch.Tensor:
    return plain(model, x * (1 - 0.001 * count), y)


def other_rate(model: nn.Module, x: torch.Tensor, y: torch.Tensor, count: int) -> torch.Tensor:
    model[2].p = 0.5 / count  # type: ignore[index]
    return plain(model, x, y)


def shorter(model: nn.Module, x: torch.Tensor, y: torch.Tensor, count: int) -> torch.Tensor:
    return plain(model, functional.pad(x[:, : 1 + count], (0, 5 - count)), y)


@pytest.mark.parametrize(
    ("loss_of", "where"),
    [
        (scaled, {"mul"}),
        (by_tensor, {"torch.tensor"}),
        (noised, {"mul"}),
        (other_rate, {"bernoulli_", "div_"}),  # dropout calls both with the rate; a hash decides which is named
        (shorter, {"slice"}),
    ],
)
def test_a_count_that_differs_is_found(loss_of: Any, where: set[str]) -> None:
    def at(count: int) -> Loss:
        return lambda model, x, y: loss_of(model, x, y, count)

    first = watched(at(2))
    veteran = watched(at(3), earlier=first)
    otherwise, operation = differ(veteran, watched(at(1)))
    assert not otherwise and operation in where
    # Of another number of samples: the number might follow from it, but has changed while that did not.
    otherwise, operation = differ(veteran, watched(at(1), samples=7))
    assert not otherwise and operation in where
    assert differ(watched(at(3)), watched(at(1), samples=7)) == (False, "")
    assert differ(veteran, watched(at(3), samples=7)) == (False, "")


@pytest.mark.parametrize("sign", [1, -1])
def test_what_is_no_number_is_left_to_the_check_of_gradients(sign: int) -> None:
    """Which names it better. An infinite number is a newcomer's `best = inf`, and counts."""

    def times(factor: float) -> Loss:
        return lambda model, x, y: plain(model, x, y) * factor + min(factor, 1.0)

    first = watched(times(1.0))
    veteran = watched(times(2.0), earlier=first)
    for pair in ((veteran, watched(times(math.nan))), (veteran, watched(times(math.nan), samples=7))):
        assert differ(*pair[::sign]) == (False, "")
    assert differ(*(veteran, watched(times(math.inf)))[::sign]) == (False, "mul")


def test_another_branch_is_found() -> None:
    def branch(count: int) -> Loss:
        def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            if count < 2:
                return functional.multi_margin_loss(model(x), y)
            return functional.cross_entropy(model(x), y)

        return loss_of

    assert differ(watched(branch(1)), watched(branch(3)))[0]
    assert differ(watched(branch(2)), watched(branch(3))) == (False, "")

    def train(mode: bool) -> Loss:
        return lambda model, x, y: plain(model.train(mode), x, y)

    assert differ(watched(train(True)), watched(train(False)))[0]


def by_length(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What follows from the number of samples."""
    each = functional.cross_entropy(model(x), y, reduction="none")
    return each.sum() / len(x) + each.mean() * len(x) / 64 + 0.0 * (each[: len(x) // 2].sum() - len(x))


def by_root_of_length(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return plain(model, x, y) / math.sqrt(len(x)) + (x[:, 1:].mean() * (len(x) // 2) / len(x))


def by_classes(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What follows from which samples there are, without reading a number."""
    return torch.stack([plain(model, x[y == c], y[y == c]) for c in torch.arange(1 + int(len(x) > 7))]).mean()


def with_figures(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Figures for messages: a share of steps in which the guess was right."""
    global STEPS
    STEPS += 1
    out = model(x)
    _ = (out.argmax(1) == y).double().mean() * 100 / STEPS, out.detach() * STEPS, x.mean() * STEPS
    return functional.cross_entropy(out, y)


STEPS = 0


def by_reading(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A number that is read from the samples."""
    return plain(model, x, y) * float(x.mean())


def by_chance(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return plain(model, random.random() * x, y)


@pytest.mark.parametrize("loss_of", [by_length, by_root_of_length, by_classes, with_figures, by_reading, by_chance])
def test_what_follows_from_samples_may_differ(loss_of: Loss) -> None:
    assert differ(watched(loss_of), watched(loss_of, samples=7)) == (False, "")
    assert differ(watched(loss_of), watched(loss_of)) == (False, "")
    assert differ(watched(loss_of, earlier=watched(loss_of)), watched(loss_of, samples=7)) == (False, "")


def test_beside_a_number_that_is_read_a_weight_is_compared_and_a_length_is_not() -> None:
    def at(count: int, loss_of: Any) -> Loss:
        def read(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = loss_of(model, x, y, count)
            loss.item()
            return loss

        return read

    for loss_of, where in ((scaled, "mul"), (noised, "mul"), (shorter, "")):
        veteran = watched(at(3, loss_of), earlier=watched(at(2, loss_of)))
        for samples in (8, 7):
            newcomer = watched(at(1, loss_of), samples=samples)
            assert differ(veteran, newcomer) == (False, where)
            assert have_read([row_of(veteran), row_of(newcomer)])


def test_a_tensor_that_was_there_before_the_step_is_compared_by_its_values() -> None:
    """As weights of classes that each worker has counted itself; not what has the samples of a step, or many values,
    and not beside a number that is read: it may decide which tensor is taken."""

    def weighed(weights: torch.Tensor, *, reads: bool = False) -> Loss:
        def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            if reads:
                y.tolist()
            return functional.cross_entropy(model(x), y, weight=weights)

        return loss_of

    def again(loss_of: Loss) -> ForwardNumbers:
        return watched(loss_of, earlier=watched(loss_of))

    counted, otherwise = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 1.0, 3.0])
    assert differ(again(weighed(counted)), again(weighed(otherwise))) == (False, "values")
    assert differ(watched(weighed(counted)), watched(weighed(otherwise))) == (False, ""), "it may be of the step"
    assert differ(again(weighed(counted)), again(weighed(counted.clone()))) == (False, "")
    assert differ(again(weighed(counted)), again(weighed(otherwise, reads=True))) == (False, "")

    def times(other: torch.Tensor) -> Loss:
        return lambda model, x, y: plain(model, x, y) * other.mean()

    for shape in ((8, 3), (70, 70)):
        one, other = [again(times(torch.full(shape, value))) for value in (0.1, 0.2)]
        assert differ(one, other) == (False, "")


def test_a_tensor_made_of_plain_numbers_is_compared_by_its_values() -> None:
    """As weights of classes in a list, by what a worker has counted in the epoch before; not what has a value for
    each sample, and not beside a number that is read, of which it may be made."""

    def weighed(weights: list[float], *, reads: bool = False) -> Loss:
        def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            if reads:
                y.tolist()
            return (functional.cross_entropy(model(x), y, reduction="none") * torch.tensor(weights)[y]).mean()

        return loss_of

    def by_place(rate: float) -> Loss:
        def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            places = torch.as_tensor([rate * place for place in range(len(x))])
            return (functional.cross_entropy(model(x), y, reduction="none") * places).mean()

        return loss_of

    counted, otherwise = [1.0, 2.0, 3.0], [2.0, 1.0, 3.0]
    assert differ(watched(weighed(counted)), watched(weighed(otherwise))) == (False, "values")
    assert differ(watched(weighed(counted)), watched(weighed(list(counted)))) == (False, "")
    assert differ(watched(weighed(counted)), watched(weighed(otherwise, reads=True))) == (False, "")
    assert differ(watched(by_place(0.1)), watched(by_place(0.2))) == (False, "")


def test_a_number_of_rows_may_differ_where_each_sample_has_another() -> None:
    """A loss over the boxes of a batch, of which each picture has its own number, divided by the step's weight."""

    def boxes(numbers: list[int]) -> ForwardNumbers:
        torch.manual_seed(0)
        model, x = nn.Linear(6, 4), torch.randn(len(numbers), 6)
        targets = [torch.randn(number, 4) for number in numbers]
        forward = ForwardNumbers(len(numbers), (x, targets), None)
        with BatchWatch(len(numbers), [*model.parameters()], [x, *targets], list, None, forward) as watch:
            pairs = zip(model(x), targets, strict=True)
            loss = sum((out - target).abs().sum() for out, target in pairs) / sum(map(len, targets))
            with watch.looking_away():
                forward.close(loss, reads=0, weighted=True)
        return forward

    assert differ(boxes([1, 2, 3, 4, 4]), boxes([1, 1, 2, 3, 4])) == (False, "")
    assert differ(boxes([1, 2, 3, 4]), boxes([1, 2, 3])) == (False, "")


def test_samples_of_other_lengths_may_differ_in_more() -> None:
    def by_width(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return plain(model, x, y) / int((x.abs().sum(0) > 0).sum())

    def by_shape(width: int) -> Loss:
        return lambda model, x, y: plain(model, x, y) / width

    assert differ(watched(by_width, width=6), watched(by_width, width=5)) == (False, "")
    assert differ(watched(by_shape(6), width=6), watched(by_shape(5), width=5)) == (False, "")


def test_numbers_are_read_as_before_once_reading_is_no_longer_counted() -> None:
    reads, another = ReadWatch(), ReadWatch()
    another.stop()
    before = vars(torch.Tensor).get("item")
    another.start()
    reads.start()
    reads.start()
    tensor = torch.tensor(2.0)
    values = [tensor.item(), float(tensor), float(bool(tensor)), tensor.tolist(), int(tensor)]
    assert values == [2.0, 2.0, 1.0, 2.0, 2]
    assert reads.reads >= 5
    another.stop()
    counted = reads.reads
    assert tensor.item() == 2.0 and reads.reads == counted + 1, "it counts on when another stops"
    reads.stop()
    reads.stop()
    assert tensor.item() == 2.0 and reads.reads == counted + 1
    assert vars(torch.Tensor).get("item") is before, "(sessions of other tests may count still)"
