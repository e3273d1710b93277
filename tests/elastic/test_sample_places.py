"""Where samples lie in the tensors of a step: steps in which they meet are noticed, and those in which each is alone,
however its tensors are turned, merged and chosen, are called equal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from malletrain.elastic.session import Session
from tests.elastic.test_quiet_habits import Body, each, equality, equality_of_inputs

Tensor = torch.Tensor


# --- samples meet -------------------------------------------------------------------------------------------------


def rolled(model: Any, x: Tensor, y: Tensor) -> Any:
    return each(model, 0.8 * x + 0.2 * x.roll(1, 0), y).mean()


def smooth(model: Any, x: Tensor, y: Tensor) -> Any:
    out = model(x)
    return functional.cross_entropy(out, y) + (out[1:] - out[:-1]).square().mean()


def nearest_by_numpy(model: Any, x: Tensor, y: Tensor) -> Any:
    out = model(x)
    rows = out.detach().numpy()
    nearest = ((rows[:, None] - rows[None]) ** 2).sum(-1).argsort(1)[:, 1]
    return each(model, x, y).mean() + (out - out[torch.from_numpy(nearest)]).square().sum(1).mean()


def other_of_the_batch(model: Any, x: Tensor, y: Tensor) -> Any:
    item = torch.eye(3)[y]
    wrong = item[torch.arange(len(x) - 1, -1, -1)]
    out = model(x)
    return functional.softplus((out * wrong).sum(1) - (out * item).sum(1)).mean()


def targets_of_neighbours(model: Any, x: Tensor, y: Tensor) -> Any:
    nearest = (x[:, None] - x[None]).square().sum(2).topk(3, dim=1, largest=False).indices
    return functional.cross_entropy(model(x), torch.eye(3)[y][nearest].mean(1))


def broadcast_by_mistake(model: Any, x: Tensor, y: Tensor) -> Any:
    return (model(x)[:, :1] - y).square().mean()


def attending_to_each_other(model: Any, x: Tensor, y: Tensor) -> Any:
    hidden = model[0](x)[None]
    return functional.cross_entropy(model[2](functional.scaled_dot_product_attention(hidden, hidden, hidden)[0]), y)


def rows_taken_for_time(model: Any, x: Tensor, y: Tensor) -> Any:
    hidden, out = torch.zeros(8), []
    for row in model[0](x):
        hidden = torch.tanh(row + hidden)
        out.append(model[2](hidden))
    return functional.cross_entropy(torch.stack(out), y)


def convolved_over_samples(model: Any, x: Tensor, y: Tensor) -> Any:
    out = model(x)
    weights = model[2].weight[:, :3, None]
    return functional.cross_entropy(out + functional.conv1d(out.T[None], weights, padding=0)[0].T, y)


def balanced_by_transposed(model: Any, x: Tensor, y: Tensor) -> Any:
    out = model(x)
    with torch.no_grad():
        shares = out.exp().t()
        shares /= shares.sum(1, keepdim=True)
        shares /= shares.sum(0, keepdim=True)
    return -(shares.t() * functional.log_softmax(out, 1)).sum(1).mean()


def weights_by_unique(model: Any, x: Tensor, y: Tensor) -> Any:
    _, where, counts = torch.unique(y, return_inverse=True, return_counts=True)
    return (each(model, x, y) / counts[where]).mean()


def centres_by_index_add(model: Any, x: Tensor, y: Tensor) -> Any:
    out = model(x)
    centres = torch.zeros(3, 3).index_add(0, y, out.detach())
    return functional.cross_entropy(out, y) + (out - centres[y]).square().mean()


def centres_by_scatter(model: Any, x: Tensor, y: Tensor) -> Any:
    out = model(x)
    centres = torch.zeros(3, 3).scatter_add(0, y[:, None].expand(-1, 3), out)
    return functional.cross_entropy(out - centres[y], y)


def prototypes(model: Any, x: Tensor, y: Tensor) -> Any:
    out = model(x)
    centres = functional.one_hot(y, 3).float().T @ out
    return functional.cross_entropy(-(out[:, None] - centres).square().sum(2), y)


def decorrelated(model: Any, x: Tensor, y: Tensor) -> Any:
    out = model(x)
    return functional.cross_entropy(out, y) + (out.T @ out / len(x)).square().sum()


def centred(model: Any, x: Tensor, y: Tensor) -> Any:
    out = model(x)
    return functional.cross_entropy(out - out.mean(0), y)


def neighbours_by_view(model: Any, x: Tensor, y: Tensor) -> Any:
    pairs = model(x).view(-1, 2, 3)
    return each(model, x, y).mean() + (pairs[:, 0] - pairs[:, 1]).square().mean()


def advantages_in_groups(model: Any, x: Tensor, y: Tensor) -> Any:
    groups = model(x).view(-1, 2, 3)
    return functional.cross_entropy((groups - groups.mean(1, keepdim=True)).view(-1, 3), y)


def spectrum_over_samples(model: Any, x: Tensor, y: Tensor) -> Any:
    out = model(x)
    return functional.cross_entropy(out, y) + torch.fft.fft(out, dim=0).abs().square().mean()


def singular_values(model: Any, x: Tensor, y: Tensor) -> Any:
    out = model(x)
    return functional.cross_entropy(out, y) + 0.1 * torch.linalg.svdvals(out).sum()


def largest(model: Any, x: Tensor, y: Tensor) -> Any:
    return each(model, x, y).max()


def soft_largest(model: Any, x: Tensor, y: Tensor) -> Any:
    return each(model, x, y).logsumexp(0)


def median(model: Any, x: Tensor, y: Tensor) -> Any:
    return each(model, x, y).median() + model(x).square().mean()


def norm_of_all(model: Any, x: Tensor, y: Tensor) -> Any:
    return model(x).norm() + each(model, x, y).mean()


def risk_sets(model: Any, x: Tensor, y: Tensor) -> Any:
    """Cox's partial likelihood: rows that live longer."""
    hazards = model(x)[:, 0][y.argsort(descending=True)]
    return (torch.logcumsumexp(hazards, 0) - hazards).mean()


def discounted(model: Any, x: Tensor, y: Tensor) -> Any:
    out = model(x)
    return functional.cross_entropy(out, y) + out.sigmoid().cumprod(0).mean()


def extremes_so_far(model: Any, x: Tensor, y: Tensor) -> Any:
    out = model(x)
    return functional.cross_entropy(out - out.cummax(0).values, y)


def within_capacity(model: Any, x: Tensor, y: Tensor) -> Any:
    """Of a mixture of experts: who comes after so many is dropped."""
    out = model(x)
    chosen = functional.one_hot(out.argmax(1), 3)
    queued = (chosen.cumsum(0) * chosen).sum(1)
    return functional.cross_entropy(out * (queued <= 3)[:, None], y)


def averaged_over_neighbours(model: Any, x: Tensor, y: Tensor) -> Any:
    out = model(x)
    trend = functional.avg_pool1d(out.T[None], 3, stride=1, padding=1)[0].T
    return functional.cross_entropy(out, y) + (out - trend).square().mean()


def pooled_over_samples(model: Any, x: Tensor, y: Tensor) -> Any:
    return each(model, x, y).mean() + functional.max_pool1d(model(x).T, 2).mean()


def sliding_windows(model: Any, x: Tensor, y: Tensor) -> Any:
    out = model(x)
    return functional.cross_entropy(out, y) + out.unfold(0, 3, 1).var(2).sum() / (3 * len(x))


def all_distances(model: Any, x: Tensor, y: Tensor) -> Any:
    out = model(x)
    return functional.cross_entropy(out, y) + torch.pdist(out).sum() / len(x)


def distance_of_all(model: Any, x: Tensor, y: Tensor) -> Any:
    return torch.dist(model(x), torch.eye(3)[y])


def normalised_by_function(model: Any, x: Tensor, y: Tensor) -> Any:
    hidden = functional.batch_norm(model[0](x), None, None, training=True)
    return functional.cross_entropy(model[2](hidden), y)


MEETING: list[Body] = [
    risk_sets,
    discounted,
    extremes_so_far,
    within_capacity,
    averaged_over_neighbours,
    pooled_over_samples,
    sliding_windows,
    all_distances,
    distance_of_all,
    normalised_by_function,
    neighbours_by_view,
    advantages_in_groups,
    spectrum_over_samples,
    singular_values,
    largest,
    soft_largest,
    median,
    norm_of_all,
    rolled,
    smooth,
    nearest_by_numpy,
    other_of_the_batch,
    targets_of_neighbours,
    broadcast_by_mistake,
    attending_to_each_other,
    rows_taken_for_time,
    convolved_over_samples,
    balanced_by_transposed,
    weights_by_unique,
    centres_by_index_add,
    centres_by_scatter,
    prototypes,
    decorrelated,
    centred,
]


@pytest.mark.parametrize("body", MEETING)
def test_samples_that_meet_are_not_called_equal(body: Body) -> None:
    said = equality(body)
    assert said.startswith("statistical"), said
    assert "a comparison of the samples" in said or "a statistic over the samples" in said
    assert "(test_sample_places.py:" in said


def test_features_first_before_the_block() -> None:
    def standardised(x: Tensor) -> Any:
        columns = x[:, :4].T
        columns = (columns - columns.mean(1, keepdim=True)) / columns.std(1, keepdim=True)
        return functional.pad(columns.T, (1, 1))

    assert "a statistic over the samples" in equality_of_inputs(standardised)


# --- each sample alone --------------------------------------------------------------------------------------------


def figures_of_pairs(model: Any, x: Tensor, y: Tensor) -> Any:
    out = model(x)
    (out[1:] - out[:-1]).square().mean(), out.mean(0).norm(), (out @ out.T).detach().max()
    return functional.cross_entropy(out, y)


def two_views(model: Any, x: Tensor, y: Tensor) -> Any:
    one, other = model(torch.cat([x, x + 0.1])).chunk(2)
    stacked = model(torch.stack([x, 2 * x], 1).flatten(0, 1)).view(len(x), 2, 3)
    apart = (one - other).square().sum(1) + (stacked[:, 0] - stacked[:, 1]).square().sum(1)
    return apart.mean() + functional.cross_entropy(one, y)


def ensemble(model: Any, x: Tensor, y: Tensor) -> Any:
    weights = torch.stack([model[0].weight, 2 * model[0].weight])
    out = model[2](torch.bmm(x.expand(2, -1, -1), weights.transpose(1, 2)))
    return functional.cross_entropy(out.mean(0), y) + functional.cross_entropy(out.flatten(0, 1), y.repeat(2))


def permuted(model: Any, x: Tensor, y: Tensor) -> Any:
    order = torch.arange(len(x) - 1, -1, -1)
    out = model(x[order])
    back = torch.empty_like(order)
    back[order] = torch.arange(len(x))
    return functional.cross_entropy(out, y[order]) + functional.cross_entropy(out[back], y)


def routed(model: Any, x: Tensor, y: Tensor) -> Any:
    weights = model[0](x)[:, :2].softmax(1)
    best, out, masked = weights.argmax(1), torch.zeros(len(x), 3), x.new_zeros(len(x), 3)
    for expert in range(2):
        here = torch.where(best == expert)[0]
        out.index_add_(0, here, weights[here, expert, None] * model(x[here]))
        masked[best == expert] = model(x[best == expert])
    return functional.cross_entropy(out + masked, y)


def tokens(model: Any, x: Tensor, y: Tensor) -> Any:
    rows = x[:, :, None] * model[0].weight.T
    attended = functional.scaled_dot_product_attention(rows, rows, rows)
    by_hand = torch.softmax(rows @ rows.transpose(1, 2), -1) @ rows
    out = model[2](attended + by_hand)
    targets = y[:, None].expand(-1, 6)
    return functional.cross_entropy(out.reshape(-1, 3), targets.reshape(-1))


def heads_over_as_many_places(model: Any, x: Tensor, y: Tensor) -> Any:
    places = model[0](x)  # as many hidden units as samples
    rows = places[:, None, :, None] * model[0].weight[:2, None, :3]
    attended = torch.softmax(rows @ rows.transpose(-2, -1), -1) @ rows
    return functional.cross_entropy(attended.sum((1, 2)) + model(x), y)


def means_with_a_dimension(model: Any, x: Tensor, y: Tensor) -> Any:
    one, other = functional.cross_entropy(model(x), y).unsqueeze(0), model[0](x).square().mean().unsqueeze(0)
    return functional.cross_entropy(model(x), y) + 0.25 * (one + 2 * other).mean()


def time_first(model: Any, x: Tensor, y: Tensor) -> Any:
    steps, hidden = x.T[:, :, None] * model[0].weight[:, 0], torch.zeros(len(x), 8)
    for step in steps:
        hidden = torch.tanh(step + hidden)
    return functional.cross_entropy(model[2](hidden), y) + (steps[1:] - steps[:-1]).square().mean()


def row_by_row(model: Any, x: Tensor, y: Tensor) -> Any:
    filled = torch.empty(len(x), 3)
    for place, row in enumerate(x):
        filled[place] = model(row)
    stacked = torch.stack([model(row) for row in x])
    parts = torch.cat([each(model, *part) for part in zip(x.split(3), y.split(3), strict=True)])
    return functional.cross_entropy(filled, y) + functional.cross_entropy(stacked, y) + parts.mean()


def chosen_by_targets(model: Any, x: Tensor, y: Tensor) -> Any:
    out = functional.log_softmax(model(x), 1)
    written = torch.zeros(len(x), 3)
    written[torch.arange(len(x)), y] = 1
    scattered = torch.zeros(len(x), 3).scatter_(1, y[:, None], 1.0)
    picked = out.gather(1, y[:, None])[:, 0] + out[torch.arange(len(x)), y]
    return -((written + scattered) * out).sum(1).mean() - picked.mean()


def codebook(model: Any, x: Tensor, y: Tensor) -> Any:
    codes, out = model[0].weight[:, :3], model(x)
    quantised = codes[torch.cdist(out, codes).argmin(1)]
    return (quantised - out.detach()).square().mean() + each(model, x, y).mean()


def by_features(model: Any, x: Tensor, y: Tensor) -> Any:
    turned = x[:, [5, 4, 3, 2, 1, 0]].cumsum(1).roll(1, 1).flip(1).sort(1).values
    return each(model, functional.layer_norm(turned, (6,)), y).mean()


def in_groups_and_back(model: Any, x: Tensor, y: Tensor) -> Any:
    groups = 2 * model(x).view(2, -1, 3)
    return functional.cross_entropy(groups.reshape(-1, 3), y) + groups.square().mean()


def matrices_of_each(model: Any, x: Tensor, y: Tensor) -> Any:
    matrices = (model[0](x)[:, :4] / 10).view(-1, 2, 2) + torch.eye(2)
    spectrum = torch.fft.rfft(model(x), dim=1).abs().mean()
    return torch.linalg.det(matrices).mean() + torch.linalg.inv(matrices).mean() + each(model, x, y).mean() + spectrum


def extremes_of_each(model: Any, x: Tensor, y: Tensor) -> Any:
    out = model(x)
    out.detach().norm(), out.max(), out.abs().amax()  # figures
    return functional.cross_entropy(out, y) + (out.amax(1) + out.norm(dim=1) + out.logsumexp(1)).mean()


def pooled_over_places(model: Any, x: Tensor, y: Tensor) -> Any:
    images = model[0](x)[:, :, None] * x[:, None, :]
    small = functional.avg_pool1d(functional.pad(images, (1, 1), "replicate"), 2)
    small = functional.interpolate(functional.max_pool1d(small, 2), size=3)
    return (
        functional.cross_entropy(functional.adaptive_avg_pool1d(small, 1)[:, :3, 0], y) + small.unfold(2, 2, 1).mean()
    )


def norm_of_each(model: Any, x: Tensor, y: Tensor) -> Any:
    images = model[0](x)[:, :, None] * x[:, None, :]
    frozen = functional.batch_norm(model[0](x), torch.zeros(8), torch.ones(8), training=False)
    return functional.cross_entropy(model[2](functional.instance_norm(images).square().mean(2) + frozen), y)


def running_sums_of_each(model: Any, x: Tensor, y: Tensor) -> Any:
    out = model(x)
    return functional.cross_entropy(out.logcumsumexp(1) + out.cummax(1).values + out.sigmoid().cumprod(1), y)


def offsets_by_lengths(model: Any, x: Tensor, y: Tensor) -> Any:
    lengths = 1 + y
    begins = lengths.cumsum(0) - lengths
    rows = torch.repeat_interleave(x, lengths, dim=0)
    means = functional.embedding_bag(torch.arange(len(rows)) % 8, model[0].weight, begins)
    return functional.cross_entropy(model(x) + 0 * means.sum(1, keepdim=True), y)


def gradients_of_inputs(model: Any, x: Tensor, y: Tensor) -> Any:
    """R1, and steps along signs and directions."""
    x = x.detach().requires_grad_()
    out = model(x)
    (gradient,) = torch.autograd.grad(out.gather(1, y[:, None]).sum(), x, create_graph=True)
    (of_mean,) = torch.autograd.grad(functional.cross_entropy(out, y), x, retain_graph=True)
    adversarial = x + 0.1 * of_mean.sign() + 0.1 * functional.normalize(of_mean, dim=1)
    return functional.cross_entropy(model(adversarial), y) + gradient.square().sum(1).mean()


ALONE: list[Body] = [
    pooled_over_places,
    norm_of_each,
    running_sums_of_each,
    offsets_by_lengths,
    gradients_of_inputs,
    in_groups_and_back,
    matrices_of_each,
    extremes_of_each,
    figures_of_pairs,
    two_views,
    ensemble,
    permuted,
    routed,
    tokens,
    heads_over_as_many_places,
    means_with_a_dimension,
    time_first,
    row_by_row,
    chosen_by_targets,
    codebook,
    by_features,
]


@pytest.mark.parametrize("samples", [6, 8], ids=["as many features", "as many hidden units"])
@pytest.mark.parametrize("body", ALONE)
def test_samples_that_stay_alone_are_called_equal(body: Body, samples: int) -> None:
    assert equality(body, batch_size=samples).startswith("additive")


class Sequences(nn.Module):
    """A row of six numbers as a sequence of three."""

    def __init__(self, kind: Any, first: bool) -> None:
        super().__init__()
        self.layer, self.out, self.first = kind(2, 4, batch_first=first), nn.Linear(4, 3), first

    def forward(self, x: Tensor) -> Any:
        rows = x.view(-1, 3, 2)
        hidden, _ = self.layer(rows if self.first else rows.transpose(0, 1))
        return self.out(hidden[:, -1] if self.first else hidden[-1])


class Unbatched(Sequences):
    """Takes the batch for one sequence."""

    def forward(self, x: Tensor) -> Any:
        return self.out(self.layer(x[:, :2])[0])


def claim(model: nn.Module) -> str:
    """What a session claims after an epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    s = Session(model, optimizer, TensorDataset(torch.randn(64, 6), torch.arange(64) % 3), batch_size=8)
    for x, y in s.batches():
        with s.step():
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return s.equality


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_sequence_of_samples_is_told_from_samples_that_are_sequences(kind: Any) -> None:
    for first in (True, False):
        assert claim(Sequences(kind, first)).startswith("additive")
        assert "a comparison of the samples" in claim(Unbatched(kind, first))


# --- lists of losses ----------------------------------------------------------------------------------------------


def mean_of_a_list(model: Any, x: Tensor, y: Tensor) -> Any:
    out = model(x)
    losses = [functional.cross_entropy(out, y), out.square().mean(), functional.cross_entropy(out, (y + 1) % 3)]
    return torch.stack(losses).mean() + torch.cat([loss[None] for loss in losses[:2]]).mean()


def mean_of_means_of_classes(model: Any, x: Tensor, y: Tensor) -> Any:
    wanted = functional.one_hot(y, 3).float()
    losses = functional.binary_cross_entropy_with_logits(model(x), wanted, reduction="none")
    return losses.mean(0).mean() + (torch.tensor([1.0, 2.0, 0.5]) * losses.mean(0)).sum()


def sum_of_a_list_of_parts(model: Any, x: Tensor, y: Tensor) -> Any:
    parts = zip(x.split(3), y.split(3), strict=True)
    return torch.stack([each(model, *part).mean() * len(part[0]) / len(x) for part in parts]).sum()


@pytest.mark.parametrize("body", [mean_of_a_list, mean_of_means_of_classes, sum_of_a_list_of_parts])
def test_losses_of_several_tasks_are_no_mean_over_few_samples(body: Body) -> None:
    assert equality(body).startswith("additive")
