"""Habits whose result depends on how a batch lies on workers, and that nothing but a guard shows: each is noticed by
one worker alone in its first steps, with its line; what is equal at every size is not."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._C import _len_torch_dispatch_stack
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset, default_collate
from torch.utils.flop_counter import FlopCounterMode

from malletrain.elastic.data.batch_size import PerWorker
from malletrain.elastic.data.sample_loader import SampleLoader
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.guards.data_sets.sample_examination import Fingerprint, examine
from malletrain.elastic.session import Session

Body = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def session(dataset: Any = None, **options: Any) -> tuple[Session, torch.optim.Optimizer]:
    """Of a small classifier; of 64 samples in eight batches without a data set."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if dataset is None:
        dataset = TensorDataset(torch.randn(64, 6), torch.arange(64) % 3)
    return Session(model, optimizer, dataset, **{"batch_size": 8, **options}), optimizer


def equality(body: Body, *, weight: Callable[[torch.Tensor], Any] | None = None, **options: Any) -> str:
    """What the session claims after three steps."""
    s, optimizer = session(**options)
    for x, y in s.batches():
        with s.step(weight=None if weight is None else weight(y)):
            optimizer.zero_grad()
            body(s.model, x, y).backward()
            optimizer.step()
        if s.steps_done == 3:
            break
    return s.equality


def each(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(x), y, reduction="none")


# --- the loss -----------------------------------------------------------------------------------------------------


def weights_by_count(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    counts = torch.bincount(y, minlength=3).clamp(min=1)
    return ((1 / counts.float())[y] * each(model, x, y)).mean()


def positive_weight(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    ones = (y == 1).float()
    weight = (1 - ones).sum() / ones.sum().clamp(min=1)
    return functional.binary_cross_entropy_with_logits(model(x)[:, 0], ones, pos_weight=weight)


def scaled_input(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return each(model, x / x.abs().max(), y).mean()


def normalised_weights(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    losses = each(model, x, y)
    return (losses * losses.detach() / losses.detach().mean()).mean()


def weights_without_gradients(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    losses = each(model, x, y)
    with torch.no_grad():
        weights = losses / losses.mean()
    return (weights * losses).mean()


def above_threshold(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    losses = each(model, x, y)
    threshold = losses.detach().kthvalue(len(losses) // 2).values
    return (losses * (losses >= threshold)).mean()


def between_extremes(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    low, high = torch.aminmax(x)
    return each(model, (x - low) / (high - low), y).mean()


class Quantised(torch.autograd.Function):
    """By the largest of all samples."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().max() / 7
        return (x / scale).round() * scale

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def quantised(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(Quantised.apply(model(x)), y)  # type: ignore[no-untyped-call]


STATISTICS: list[Body] = [
    above_threshold,
    between_extremes,
    quantised,
    weights_by_count,
    positive_weight,
    scaled_input,
    normalised_weights,
    weights_without_gradients,
]


def flooded(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (each(model, x, y).mean() - 0.8).abs() + 0.8


def doubled_where_large(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = each(model, x, y).mean()
    return torch.where(loss > 1.0, 2 * loss, loss)


def root_of_mean(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = each(model, x, y).mean().sqrt() + 0.1 * model(x).square().mean()
    return loss


def weighed_by_other_loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    one, other = each(model, x, y).mean(), model(x).square().mean()
    loss: torch.Tensor = one + (one / other).detach() * other
    return loss


STATISTIC = "a statistic over the samples that a worker has"
BENT = "a function of a worker's loss that is not linear (a root, a ratio of sums)"
CERTAIN = [(body, STATISTIC) for body in STATISTICS]
CERTAIN += [(body, BENT) for body in (flooded, doubled_where_large, root_of_mean, weighed_by_other_loss)]


@pytest.mark.parametrize(("body", "what"), CERTAIN)
def test_what_parts_of_a_batch_certainly_change_is_an_error_with_its_line(body: Body, what: str) -> None:
    line = re.escape(what)
    with pytest.raises(ElasticError, match=rf"^test_quiet_habits.py:\d+: the loss is made with {line}\. Parts of a"):
        equality(body)
    assert what in equality(body, check="warn")
    declared = equality(body, additive_loss=False)
    assert declared.startswith("statistical") and "additive_loss=False" in declared
    few = equality(body, batch_size=3, check="warn")
    assert few.startswith("additive"), "of so few samples a size may be theirs by accident"


Made = Callable[[torch.Tensor], torch.Tensor]


def equality_of_inputs(made: Made, batch_size: int = 8) -> str:
    """What the session claims after three steps with inputs that the loop makes before the block."""
    s, optimizer = session(batch_size=batch_size)
    for x, y in s.batches():
        inputs = made(x)
        with s.step():
            optimizer.zero_grad()
            each(s.model, inputs, y).mean().backward()
            optimizer.step()
        if s.steps_done == 3:
            break
    return s.equality


def test_a_statistic_of_the_batch_that_is_used_before_the_block_is_an_error() -> None:
    for made in (lambda x: x / x.max(), lambda x: (x - x.mean()) / x.std(), lambda x: x - x.mean(0)):
        with pytest.raises(ElasticError, match=r"^test_quiet_habits.py:\d+: the loss is made with a statistic"):
            equality_of_inputs(made)


def test_what_is_made_of_each_sample_before_the_block_is_called_equal() -> None:
    figures: list[float] = []

    def with_figures(x: torch.Tensor) -> torch.Tensor:
        figures.append(float(x.max()))
        return x

    for made in (lambda x: x.double().float(), lambda x: x.flip(1) / 2, lambda x: x / x.norm(dim=1)[:, None]):
        assert equality_of_inputs(made).startswith("additive")
    assert equality_of_inputs(with_figures).startswith("additive") and len(figures) == 3


def test_what_is_carried_from_batch_to_batch_is_not_called_equal() -> None:
    """The samples at one place of two batches have nothing to do with each other, and workers have other places."""
    carried = [torch.zeros(8, 6)]

    def with_the_last(x: torch.Tensor) -> torch.Tensor:
        last, carried[0] = carried[0], x
        return x + 0.1 * last

    assert "a tensor from outside that is neither of the batch" in equality_of_inputs(with_the_last)


def test_a_mode_of_the_script_around_its_step_stays_whole() -> None:
    s, optimizer = session()
    for x, y in s.batches():
        with FlopCounterMode(display=False) as counter:
            with s.step():
                optimizer.zero_grad()
                each(s.model, x, y).mean().backward()
                optimizer.step()
            assert counter.get_total_flops()
    assert s.steps_done == 8
    assert not _len_torch_dispatch_stack()


@pytest.mark.parametrize("around", ["block", "loop"])
def test_a_mode_of_the_script_hides_nothing_and_sees_its_backward_passes(around: str) -> None:
    def flops(dataset: Any, check: str) -> int:
        s, optimizer = session(dataset, check=check)
        counter: Any = FlopCounterMode(display=False)
        with counter if around == "loop" else nullcontext():
            for x, y in s.batches():
                with counter if around == "block" else nullcontext(), s.step():
                    optimizer.zero_grad()
                    each(s.model, x - x.mean(0), y).mean().backward()
                    optimizer.step()
        return int(counter.get_total_flops())

    with pytest.raises(ElasticError, match="the loss is made with a statistic"):
        flops(None, "error")
    assert flops(None, "warn") == flops(None, "off")
    assert not _len_torch_dispatch_stack()


def weights_by_numpy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    losses = each(model, x, y)
    weights = losses.detach().numpy()
    return (torch.from_numpy(weights / weights.mean()) * losses).mean()


def weights_by_counter(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    counts = Counter(y.tolist())
    return (torch.tensor([1.0 / counts[int(label)] for label in y]) * each(model, x, y)).mean()


def input_by_numpy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    pixels = x.numpy()
    return each(model, torch.as_tensor(pixels / pixels.max()), y).mean()


@pytest.mark.parametrize("body", [weights_by_numpy, weights_by_counter, input_by_numpy])
def test_what_numpy_makes_of_the_samples_is_not_called_equal(body: Body) -> None:
    said = equality(body)
    assert said.startswith("statistical") and "values that numpy or Python has computed" in said
    assert "(test_quiet_habits.py:" in said


def with_numpy_figures(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    losses = each(model, x, y)
    np.percentile(losses.detach().numpy(), 90)
    torch.from_numpy(y.numpy() == 1)
    return losses.mean()


@pytest.mark.parametrize("samples", [6, 8], ids=["as many features", "as many hidden units"])
def test_an_error_alone_as_on_more_workers_where_sizes_are_alike(samples: int) -> None:
    """A batch may be as long as a layer is wide, with one worker and not with two."""

    def normalised(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = model(x / 2)
        return functional.cross_entropy(out / out.detach().abs().mean(), y)

    with pytest.raises(ElasticError, match="the loss is made with a statistic"):
        equality(normalised, batch_size=samples)

    def by_columns(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        norms = x.t().norm(dim=0)  # of each sample, over its features
        return each(model, x / norms[:, None], y).mean()

    assert equality(by_columns, batch_size=samples)


def test_a_statistic_over_as_many_rows_as_there_are_samples_is_no_error() -> None:
    """Twelve classes, and a batch of twelve: this is a constant, not of the batch."""
    weights = torch.rand(12)

    def normalised(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((weights / weights.sum())[y] * each(model, x, y)).mean()

    assert equality(normalised, batch_size=12)


def test_noise_from_a_generator_of_the_script_is_noticed() -> None:
    def noisy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        chance = torch.Generator().manual_seed(7)
        return each(model, x + torch.randn(x.shape, generator=chance), y).mean()

    assert "a step draws random numbers" in equality(noisy)


def penalised_gradients(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    loss = functional.cross_entropy(model(x), y)
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    penalised: torch.Tensor = loss + gradient.norm(dim=1).mean()
    return penalised


def step_along_gradients(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(functional.cross_entropy(model(x), y), x)
    return functional.cross_entropy(model(x + 5 * gradient), y)


@pytest.mark.parametrize("body", [penalised_gradients, step_along_gradients])
def test_gradients_of_a_mean_by_its_inputs_are_not_called_equal(body: Body) -> None:
    """A sample's is the larger the fewer samples a worker has."""
    assert "gradients of a mean by its inputs" in equality(body)


def test_a_hook_on_the_gradients_of_a_hidden_layer_is_not_called_equal() -> None:
    def clipped(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = model[0](x)
        hidden.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        return functional.cross_entropy(model[2](hidden), y)

    assert re.search(r"a hook on gradients.*\(test_quiet_habits.py:\d+\)", equality(clipped))


class Texts(Dataset[Any]):
    """64 texts of two to eight numbers."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        row = torch.randn(2 + index * 7 % 32 // 4, generator=torch.Generator().manual_seed(index))
        return row, index % 3


def padded(texts: list[Any]) -> Any:
    rows, labels = zip(*texts, strict=True)
    wide = nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    return wide, torch.tensor([len(row) for row in rows]), torch.tensor(labels)


def cut_to_six(texts: list[Any]) -> Any:
    wide, lengths, labels = padded(texts)
    return functional.pad(wide, (0, 9))[:, :6], lengths, labels


def pooled(model: Any, rows: torch.Tensor, lengths: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    hidden = rows[:, :, None] * model[0].weight[:, 0]
    return functional.cross_entropy(model[2](hidden.mean(1)), y)


def of_all_places(model: Any, rows: torch.Tensor, lengths: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    hidden = model[2](rows[:, :, None] * model[0].weight[:, 0])
    targets = y[:, None].expand(rows.shape)
    return functional.cross_entropy(hidden.flatten(0, 1), targets.reshape(-1))


def pooled_by_lengths(model: Any, rows: torch.Tensor, lengths: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    hidden = rows[:, :, None] * model[0].weight[:, 0]
    return functional.cross_entropy(model[2](hidden.sum(1) / lengths[:, None]), y)


@pytest.mark.parametrize(
    ("body", "collate", "wrong"),
    [
        (pooled, padded, True),
        (of_all_places, padded, True),
        (pooled_by_lengths, padded, False),
        (pooled, cut_to_six, False),
        (of_all_places, cut_to_six, False),
    ],
)
def test_means_over_places_that_only_the_longest_sample_has_are_not_called_equal(
    body: Any, collate: Any, wrong: bool
) -> None:
    s, optimizer = session(Texts(), collate=collate)
    for rows, lengths, y in s.batches():
        with s.step():
            optimizer.zero_grad()
            body(s.model, rows, lengths, y).backward()
            optimizer.step()
    assert s.equality.startswith("statistical" if wrong else "additive"), s.equality
    assert bool(re.search(r"collate has filled up.*\(test_quiet_habits.py:\d+\)", s.equality)) is wrong


def cut_to_shortest(texts: list[Any]) -> Any:
    shortest = min(len(row) for row, _ in texts)
    wide, lengths, labels = padded([(row[:shortest], label) for row, label in texts])
    return wide, lengths, labels


@pytest.mark.parametrize(("collate", "wrong"), [(cut_to_shortest, True), (cut_to_six, False), (padded, False)])
def test_samples_that_collate_cuts_to_the_shortest_of_a_batch_are_not_called_equal(collate: Any, wrong: bool) -> None:
    s, _ = session(Texts(), collate=collate)
    next(s.epochs(1))
    assert s.equality.startswith("statistical" if wrong else "additive"), s.equality
    assert bool(re.search(r"samples that collate cuts.*\(test_quiet_habits.py:\d+\)", s.equality)) is wrong


class Graphs(Dataset[Any]):
    """64 graphs of three to six nodes."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        nodes = torch.randn(3 + index % 4, 6, generator=torch.Generator().manual_seed(index))
        return nodes, index % 3


def joined(graphs: list[Any]) -> Any:
    """Nodes below each other, with the number of the graph of each."""
    counts = torch.tensor([len(nodes) for nodes, _ in graphs])
    numbers = torch.repeat_interleave(torch.arange(len(graphs)), counts)
    return torch.cat([nodes for nodes, _ in graphs]), numbers, torch.tensor([label for _, label in graphs])


@pytest.mark.parametrize("normalised", [True, False])
def test_statistics_over_the_nodes_of_several_graphs_are_not_called_equal(normalised: bool) -> None:
    s, optimizer = session(Graphs(), collate=joined)
    model: Any = s.model
    for nodes, numbers, y in s.batches():
        with s.step():
            optimizer.zero_grad()
            hidden = model[0](nodes)
            if normalised:
                hidden = (hidden - hidden.mean(0)) / (hidden.std(0) + 0.1)
            pooled = torch.zeros(len(y), 8).index_add(0, numbers, hidden.relu())
            sizes = torch.zeros(len(y)).index_add(0, numbers, torch.ones(len(nodes)))
            functional.cross_entropy(model[2](pooled / sizes[:, None]), y).backward()
            optimizer.step()
    assert s.equality.startswith("statistical" if normalised else "additive"), s.equality
    assert ("a statistic over the samples" in s.equality) is normalised


def test_a_memory_that_numpy_changes_is_noticed() -> None:
    """Of predictions by index, as in temporal ensembling: torch does not see that it changes."""
    memory = np.zeros((64, 3), dtype=np.float32)
    shared = torch.from_numpy(memory)
    rows = TensorDataset(torch.randn(64, 6), torch.arange(64) % 3, torch.arange(64))
    s, optimizer = session(rows)
    for x, y, index in s.batches():
        with s.step():
            optimizer.zero_grad()
            out = s.model(x)
            (functional.cross_entropy(out, y) + (out - shared[index]).square().mean()).backward()
            optimizer.step()
        memory[index.numpy()] = out.detach().numpy()
    assert "a tensor from outside" in s.equality


def test_observers_of_quantisation_make_it_statistical() -> None:
    quantised = pytest.importorskip("torch.ao.quantization")
    layer = nn.Linear(6, 3)
    model = nn.Sequential(quantised.PerChannelMinMaxObserver(), layer)
    rows = TensorDataset(torch.randn(64, 6), torch.arange(64) % 3)
    s = Session(model, torch.optim.SGD(layer.parameters(), lr=0.05), rows, batch_size=8)
    assert "0 (PerChannelMinMaxObserver) look at the part of the batch" in s.equality


class Normalised(torch.autograd.Function):
    """Gradients of length 1."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        length: torch.Tensor = gradient.norm()
        return gradient / length


class Reversed(torch.autograd.Function):
    """Of the other sign, and none where the input is small."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        passed: torch.Tensor = -0.5 * gradient * (x.abs() > 0.1)
        return passed


@pytest.mark.parametrize(("function", "wrong"), [(Normalised, True), (Reversed, False)])
def test_a_function_that_bends_gradients_is_not_called_equal(function: Any, wrong: bool) -> None:
    said = equality(lambda model, x, y: functional.cross_entropy(function.apply(model(x)), y))
    assert bool(re.search(r"backward\(\) is not linear.*\(test_quiet_habits.py:\d+\)", said)) is wrong
    assert wrong or said.startswith("additive")


def in_words(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return sum(functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]) for i in range(len(x)))  # type: ignore[return-value]


def test_sums_in_other_words_are_an_error() -> None:
    with pytest.raises(ElasticError, match=r"loss \(test_quiet_habits.py:\d+\) is a sum over samples: say so"):
        equality(in_words)
    assert equality(lambda model, x, y: in_words(model, x, y) / len(x)).startswith("additive")
    assert equality(in_words, reduction="sum").startswith("additive")
    in_parts = "was tried with one worker and with two"
    for weight, wrong, steps in (
        (1.0, "is a sum over samples", 0),
        (None, "", 8),
        (1 / 8, in_parts, 1),
        (1 / 16, in_parts, 1),
    ):
        s, optimizer = session()
        with pytest.raises(ElasticError, match=wrong) if wrong else nullcontext():
            for x, y in s.batches():
                with s.step():
                    optimizer.zero_grad()
                    losses = each(s.model, x, y)
                    losses.backward(torch.full_like(losses, weight or 1 / len(x)))
                    optimizer.step()
        assert s.steps_done == steps


def by_fixed_weights(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (torch.tensor([1.0, 2.0, 0.5])[y] * each(model, x, y)).mean()


def with_figures(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    logits = model(x)
    accuracy = (logits.argmax(1) == y).float().mean()
    torch.stack([accuracy, torch.bincount(y).max().float()])
    loss = functional.cross_entropy(logits, y)
    torch.exp(loss), torch.exp(loss.detach()), loss / (loss + 1)  # a perplexity, with and without gradients
    (logits > logits.detach().mean()).float().mean()
    return loss


def by_lengths(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    order = torch.argsort(1 + y, descending=True)  # as pack_padded_sequence does
    return functional.cross_entropy(model(x[order]), y[order])


def masked_rows(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    logits = model(x) * (x.amax(1, keepdim=True) > -9)
    return functional.cross_entropy(logits, y)


def floor_of_each(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((each(model, x, y) - 0.1).abs() + 0.1).mean()


class Fused(torch.autograd.Function):
    """A mean whose operations see no gradients, as in a fused loss."""

    @staticmethod
    def forward(ctx: Any, losses: torch.Tensor) -> torch.Tensor:
        ctx.samples = len(losses)
        return losses.mean()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient.expand(ctx.samples) / ctx.samples


def fused(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = Fused.apply(each(model, x, y))  # type: ignore[no-untyped-call]
    total: torch.Tensor = 2 * loss + 0.1 * model(x).square().mean()
    return total


EQUAL: list[Body] = [
    by_fixed_weights,
    with_figures,
    with_numpy_figures,
    by_lengths,
    masked_rows,
    floor_of_each,
    fused,
]


@pytest.mark.parametrize("body", EQUAL)
def test_a_loss_of_single_samples_stays_additive(body: Body) -> None:
    assert equality(body).startswith("additive")


def over_some(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    counts = y != 0
    return (each(model, x, y) * counts).sum() / counts.sum()


def test_the_norm_of_gradients_between_two_passes_is_no_statistic() -> None:
    """As in SAM; the hidden layer is as wide as the batch is long."""
    s, optimizer = session()
    for x, y in s.batches():
        with s.step(backwards=2):
            optimizer.zero_grad()
            each(s.model, x, y).mean().backward()
            with torch.no_grad():
                parameters = list(s.model.parameters())
                norm = torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm()
                moves = [p.grad * 0.05 / norm for p in parameters if p.grad is not None]
                for parameter, move in zip(parameters, moves, strict=True):
                    parameter.add_(move)
            optimizer.zero_grad()
            each(s.model, x, y).mean().backward()
            with torch.no_grad():
                for parameter, move in zip(parameters, moves, strict=True):
                    parameter.sub_(move)
            optimizer.step()
    assert s.equality.startswith("additive")


def test_a_count_that_the_session_was_given_is_right() -> None:
    assert equality(over_some, weight=lambda y: (y != 0).sum()).startswith("additive")


def test_gradients_divided_by_the_number_of_workers_are_an_error() -> None:
    s, optimizer = session()
    with pytest.raises(
        ElasticError, match=r"quiet_habits.py:\d+: gradients are multiplied or divided by the number of"
    ):
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                each(s.model, x, y).mean().backward()
                for parameter in s.model.parameters():
                    parameter.grad /= s.size  # type: ignore[assignment, operator]
                optimizer.step()


def test_a_rate_that_follows_the_workers_needs_a_batch_that_does() -> None:
    for batch, refused in ((8, True), (PerWorker(8, limit=64), False)):
        s, optimizer = session(batch_size=batch)
        with pytest.raises(ElasticError, match="the learning rate follows") if refused else nullcontext():
            for x, y in s.batches():
                optimizer.param_groups[0]["lr"] = 0.05 * s.size
                with s.step():
                    optimizer.zero_grad()
                    each(s.model, x, y).mean().backward()
                    optimizer.step()


# --- gradients of earlier steps -----------------------------------------------------------------------------------


def make_steps(s: Session, one: Callable[[torch.Tensor], None]) -> None:
    for x, y in s.batches():
        with s.step():
            one(each(s.model, x, y).mean())


Weigh = Callable[[torch.Tensor, int, int, int], torch.Tensor]


def train_in_parts(
    weigh: Weigh, *, batch_size: int, in_part: int, reduction: str = "mean", check: str = "error"
) -> Session:
    """One epoch, each step in parts of so many samples.

    Args:
        weigh: of a part's loss, its number of samples, the step's, and the number of parts.
    """
    s, optimizer = session(batch_size=batch_size, check=check)
    for x, y in s.batches():
        with s.step():
            optimizer.zero_grad()
            parts = list(zip(x.split(in_part), y.split(in_part), strict=True))
            for number, (some, labels) in enumerate(parts, 1):
                loss = functional.cross_entropy(s.model(some), labels, reduction=reduction)
                with s.accumulate() if number < len(parts) else nullcontext():
                    weigh(loss, len(some), len(x), len(parts)).backward()
            optimizer.step()
    return s


def test_parts_of_unlike_sizes_that_count_alike_are_an_error() -> None:
    """As `x.chunk(4)` gives them to a worker that has 21 of 64 samples."""
    for weigh in (lambda loss, own, all_, parts: loss / parts, lambda loss, own, all_, parts: 0.5 * loss):
        with pytest.raises(
            ElasticError, match=r"loss \(test_quiet_habits.py:\d+\) is a mean over 6 values in one part"
        ):
            train_in_parts(weigh, batch_size=21, in_part=6)
    with pytest.raises(
        ElasticError, match=r"mean over 6 values in one part of the step and over 3 in another, and both"
    ):
        train_in_parts(lambda loss, own, all_, parts: loss / own / parts, batch_size=21, in_part=6, reduction="sum")


def test_a_fixed_divisor_for_a_number_of_parts_that_changes_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """The half of a batch has two parts, one of four samples; the last batch has 16 samples, two parts."""
    with pytest.raises(ElasticError, match=r"was tried with one worker and with two \(12 and 12 samples\)"):
        train_in_parts(lambda loss, own, all_, parts: loss / 3, batch_size=24, in_part=8)
    train_in_parts(lambda loss, own, all_, parts: loss / 3, batch_size=24, in_part=8, check="warn")
    assert "is one of 2 means over parts of the step, of which an earlier step had 3" in caplog.text


def test_parts_that_are_weighed_by_their_samples_are_right() -> None:
    by_share: Weigh = lambda loss, own, all_, parts: loss * own / all_  # noqa: E731
    assert train_in_parts(by_share, batch_size=21, in_part=6).steps_done == 4
    assert train_in_parts(by_share, batch_size=24, in_part=8).steps_done == 3
    by_number: Weigh = lambda loss, own, all_, parts: loss / parts  # noqa: E731
    with pytest.raises(ElasticError, match=r"was tried with one worker and with two \(12 and 12 samples\)"):
        train_in_parts(by_number, batch_size=24, in_part=8)
    summed: Weigh = lambda loss, own, all_, parts: loss / all_  # noqa: E731
    assert train_in_parts(summed, batch_size=21, in_part=6, reduction="sum").steps_done == 4


def test_losses_of_the_same_samples_may_be_accumulated_with_weights_that_change() -> None:
    s, optimizer = session(batch_size=24)
    for x, y in s.batches():
        with s.step():
            optimizer.zero_grad()
            with s.accumulate():
                functional.cross_entropy(s.model(x), y).backward()
                if s.steps_done % 2:
                    (0.1 * s.steps_done * s.model(x).square().mean(1).mean()).backward()
            functional.mse_loss(s.model(x)[:, 0], y.float()).backward()
            optimizer.step()
    assert s.steps_done == 3


def test_gradients_added_up_over_steps_are_an_error() -> None:
    s, optimizer = session()

    def every_second(loss: torch.Tensor) -> None:
        (loss / 2).backward()
        if s.steps_done % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()

    with pytest.raises(
        ElasticError, match=r"step\(\) \(test_quiet_habits.py:\d+\) has gradients that were added to those"
    ):
        make_steps(s, every_second)
    assert s.steps_done == 2


@pytest.mark.parametrize("clear", ["none", "zeros", "after", "by hand"])
def test_gradients_that_each_step_clears_are_right(clear: str) -> None:
    s, optimizer = session()

    def one(loss: torch.Tensor) -> None:
        if clear == "by hand":
            for parameter in s.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.data.zero_()
        elif clear != "after":
            optimizer.zero_grad(set_to_none=clear == "none")
        with s.accumulate():
            (loss / 2).backward(retain_graph=True)
        (loss / 2).backward()
        optimizer.step()
        if clear == "after":
            optimizer.zero_grad()

    make_steps(s, one)
    assert s.steps_done == 8


def test_parts_of_a_model_that_are_trained_in_turn_are_right() -> None:
    s, _ = session()
    layers = list(s.model.children())
    parts = [torch.optim.SGD(layer.parameters(), lr=0.05) for layer in (layers[0], layers[2])]

    def one(loss: torch.Tensor) -> None:
        optimizer = parts[s.steps_done % 2]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    make_steps(s, one)
    assert s.steps_done == 8


# --- samples ------------------------------------------------------------------------------------------------------


class Rows(Dataset[Any]):
    """64 samples, of which a function makes what `__getitem__` returns."""

    def __init__(self, made: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
        self.rows = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
        self.made = made
        self.reads = 0
        self.kept: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return self.made(self.rows[index], index), index % 3


def counted() -> Rows:
    """Warms up by its number of reads."""

    def made(row: torch.Tensor, index: int) -> torch.Tensor:
        rows.reads += 1
        return row * min(1.0, 0.5 + rows.reads / 5000)

    rows = Rows(made)
    return rows


def after_the_last() -> Rows:
    """Mixes a sample with the one that was read before."""
    last = torch.zeros(6)

    def made(row: torch.Tensor, index: int) -> torch.Tensor:
        nonlocal last
        before, last = last, row
        return 0.8 * row + 0.2 * before

    return Rows(made)


def by_the_system() -> Rows:
    return Rows(lambda row, index: row + torch.from_numpy(np.random.default_rng().standard_normal(6)).float())


@pytest.mark.parametrize("data", [counted, after_the_last, by_the_system])
def test_samples_that_depend_on_what_was_loaded_before_are_an_error(data: Callable[[], Rows]) -> None:
    s, _ = session(data())
    with pytest.raises(
        ElasticError, match=r"sample 0 of the data set \(test_quiet_habits.py:\d+\) is another when it is"
    ):
        next(s.epochs(1))


def cached() -> Rows:
    rows = Rows(lambda row, index: rows.kept.setdefault(index, row * 2))
    return rows


def augmented() -> Rows:
    return Rows(lambda row, index: row + torch.randn(6) * random.random() * np.random.rand())


@pytest.mark.parametrize("data", [cached, augmented])
def test_caches_and_augmentation_are_right(data: Callable[[], Rows]) -> None:
    s, _ = session(data())
    next(s.epochs(1))
    assert s.equality.startswith("additive")


def test_a_generator_within_the_data_set_makes_it_statistical() -> None:
    """As albumentations has one."""
    rows = Rows(lambda row, index: row + rows.chance.gauss(0, 1))  # type: ignore[attr-defined]
    rows.chance = random.Random()  # type: ignore[attr-defined]
    s, _ = session(rows)
    next(s.epochs(1))
    assert "a generator of its own" in s.equality


@pytest.mark.parametrize("options", [{}, {"noise_scale": True}])
def test_what_no_rule_knows_is_an_error_in_the_first_step(options: dict[str, Any]) -> None:
    s, optimizer = session(**options)
    with pytest.raises(ElasticError, match=r"step 0 was tried with one worker and with two \(4 and 4 samples\)"):
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                functional.cross_entropy(s.model(x) * math.log(1 + x.shape[0]), y).backward()
                optimizer.step()


class Centred(nn.Module):
    """A model that may look at all samples of a part."""

    def __init__(self, *, over_samples: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.dim = 0 if over_samples else 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        out: torch.Tensor = self.last(torch.tanh(hidden - hidden.mean(self.dim, keepdim=True)))
        return out


@pytest.mark.parametrize("over_samples", [True, False])
def test_a_step_with_a_compiled_model_is_tried_as_it_is_written(*, over_samples: bool) -> None:
    """No rule looks into it."""
    torch.manual_seed(0)
    model: Any = torch.compile(Centred(over_samples=over_samples), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    s = Session(model, optimizer, TensorDataset(torch.randn(64, 6), torch.arange(64) % 3), batch_size=8)
    with pytest.raises(ElasticError, match="step 0 was tried with") if over_samples else nullcontext():
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
    if not over_samples:
        s.finish()
        assert s.equality.startswith("additive")
        assert s._runtime.trials.tried
        assert s._runtime.trials._unknown[0] == 0


def test_a_term_of_the_loss_without_a_gradient_is_right() -> None:
    teacher = nn.Linear(6, 8)

    def hint(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            far = (1 - functional.cosine_similarity(model[0](x), teacher(x), dim=1)).mean()
        return functional.cross_entropy(model(x), y) + 0.1 * far

    assert equality(hint).startswith("additive")


def noisy(row: torch.Tensor, index: int) -> torch.Tensor:
    return row + torch.randn(row.shape)


@pytest.mark.parametrize("kept", [True, False])
def test_a_data_set_that_keeps_what_it_has_drawn_is_an_error(kept: bool) -> None:
    def made(row: torch.Tensor, index: int) -> torch.Tensor:
        if not kept:
            return noisy(row, index)
        if index not in rows.kept:
            rows.kept[index] = noisy(row, index)
        return rows.kept[index]

    rows = Rows(made)
    s, _ = session(rows)
    if kept:
        said = r"made with random numbers when loaded first, and kept: .* the index alone"
        with pytest.raises(ElasticError, match=said):
            next(s.epochs(1))
    else:
        next(s.epochs(1))


def test_a_collate_that_counts_is_an_error() -> None:
    calls = itertools.count()

    def collate(rows: list[Any]) -> Any:
        x, y = default_collate(rows)
        return x * min(1.0, 0.5 + next(calls) / 100), y

    s, _ = session(collate=collate)
    with pytest.raises(
        ElasticError, match=r"collate \(test_quiet_habits.py:\d+\) gives another batch for the same samples"
    ):
        next(s.epochs(1))


def mixing(rows: list[Any]) -> Any:
    x, y = default_collate(rows)
    return 0.7 * x + 0.3 * x.flip(0), y


def drawing(rows: list[Any]) -> Any:
    x, y = default_collate(rows)
    return x * (torch.rand(x.shape) > 0.1), y


def sorting(rows: list[Any]) -> Any:
    rows.sort(key=lambda row: -float(row[0][0]))
    return default_collate(rows)


@pytest.mark.parametrize(
    ("collate", "said"),
    [(mixing, r"samples that meet in collate"), (drawing, "draws random numbers"), (sorting, "additive")],
)
def test_a_collate_in_which_samples_meet_is_noticed(collate: Any, said: str) -> None:
    s, _ = session(collate=collate)
    next(s.epochs(1))
    assert said in s.equality


@pytest.mark.parametrize("seed", range(50))
def test_one_vector_added_to_all_samples_is_seen(seed: int) -> None:
    """A vector may leave any one fingerprint of all samples as it was."""
    rows, labels = torch.randn(64, 64, generator=torch.Generator().manual_seed(1)), torch.arange(64)

    def prints(seed: int) -> dict[str, Fingerprint]:
        noise = 0.2 * torch.rand(64, generator=torch.Generator().manual_seed(seed))
        return examine(SampleLoader(TensorDataset(rows + noise, labels), 0, None), 64).fingerprints

    one, other = prints(2 * seed), prints(2 * seed + 1)
    assert any(Fingerprint.differ(one[name], other[name]) for name in one)


def test_data_sets_of_other_numbers_have_other_fingerprints() -> None:
    def prints(**change: float) -> dict[str, Fingerprint]:
        rows = torch.randn(64, 6, generator=torch.Generator().manual_seed(0)) * (1 + change.get("rounding", 0.0))
        rows += change.get("noise", 0.0) * torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
        labels = (torch.arange(64) + int(change.get("label", 0.0))) % 3
        return examine(SampleLoader(TensorDataset(rows, labels), 0, None), 64).fingerprints

    first = prints()
    for change, differs in (({"rounding": 1e-6}, False), ({"noise": 0.1}, True), ({"label": 1.0}, True)):
        other = prints(**change)
        assert any(Fingerprint.differ(first[name], other[name]) for name in first) is differs, change
