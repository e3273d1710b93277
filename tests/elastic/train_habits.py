"""Small training loops, each with one habit that real scripts have. `train_habits.py HABIT` trains with it.

In float64, so that equality with a static run shows.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import logging
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate, random_split

from malletrain import elastic
from malletrain.elastic.step import Step

HOME = Path(os.environ.get("MALLETRAIN_TEST_DIR", "."))
ME = os.environ.get("SLURM_ARRAY_TASK_ID") or os.environ.get("RANK", "x")
EPOCHS, BATCH, LR = 3, 64, 0.05

#: Steps of meta-learning, which take long.
MOST_META_STEPS = 3


def data(times: int) -> TensorDataset:
    """640 digits, so many times over."""
    digits = load_digits()
    inputs, targets = torch.tensor(digits.data[:640]).double() / 16, torch.tensor(digits.target[:640])
    return TensorDataset(inputs.repeat(times, 1), targets.repeat(times))


def net(wide: int = 16, inputs: int = 64, outputs: int = 10) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, wide), nn.ReLU(), nn.Linear(wide, outputs)).double()


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tick() -> None:
    """A line for each step, and a slow one until the test says go."""
    with (HOME / f"steps-{ME}").open("a") as file:
        file.write(f"{s.steps_done}\n")
    if "MALLETRAIN_URL" in os.environ and not (HOME / "go").exists():
        time.sleep(0.1 if s.steps_done < 12 else 0.5)  # longer than a worker takes to start on a busy machine


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    """All of all epochs, a line for each."""
    for _ in s.epochs(EPOCHS):
        for batch in s.batches():
            yield batch
            tick()


def learn(loss: Any) -> Tensor:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    found: Tensor = loss.detach()
    return found


def plain(x: Tensor, y: Tensor) -> Tensor:
    return learn(cross_entropy(model(x), y))


#: The one under way, in loops by `loop`.
step: Step


def loop(body: Callable[[Tensor, Tensor], Any] = plain) -> None:
    global step
    for x, y in batches():
        with s.step() as step:
            body(x, y)


def steps() -> Iterator[None]:
    """Comes to each plain step's end."""
    for x, y in batches():
        with s.step():
            plain(x, y)
        yield


def one_epoch() -> None:
    for x, y in s.batches():
        with s.step():
            plain(x, y)
        tick()


def by_loop(body: Callable[[Tensor, Tensor], Any]) -> Callable[[], None]:
    """A habit that lies in the body of a step alone."""
    return lambda: loop(body)


# --- refused ------------------------------------------------------------------------------------------------------


def counter_sets_rate() -> None:
    iter_num = 0
    for x, y in batches():
        for group in optimizer.param_groups:
            group["lr"] = LR / (1 + iter_num)
        with s.step():
            plain(x, y)
        iter_num += 1  # noqa: SIM113 - a worker that joins begins it anew


def index_of_batch() -> None:
    for _ in s.epochs(EPOCHS):
        for i, (x, y) in enumerate(s.batches()):
            with s.step():
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                if (i + 1) % 2 == 0:
                    optimizer.step()
            tick()


def adds_up_over_steps() -> None:
    for _ in s.epochs(EPOCHS):
        for i, (x, y) in enumerate(s.batches()):
            with s.step():
                cross_entropy(model(x), y).backward()
                if (i + 1) % 2 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
            tick()


def shuffles_in_place() -> None:
    for _ in steps():
        random.shuffle(dataset)  # type: ignore[arg-type]  # a list


def relabels() -> None:
    for _ in steps():
        if s.steps_done == 2:
            dataset.tensors[1][:64] = (dataset.tensors[1][:64] + 1) % 10  # type: ignore[attr-defined]


def renews_teacher() -> None:
    """A teacher that only a closure has, made anew from the model at the second epoch."""
    teacher = copy.deepcopy(model).requires_grad_(False)
    distils(lambda x: teacher(x).softmax(1), lambda: teacher.load_state_dict(model.state_dict()))


def distils(soft: Callable[[Tensor], Tensor], renew: Callable[[], Any]) -> None:
    for epoch in s.epochs(EPOCHS):
        if epoch == 1:
            renew()
        for x, y in s.batches():
            with s.step():
                out = model(x)
                learn(cross_entropy(out, soft(x)) + cross_entropy(out, y))
            tick()


shown_pixels = [8]


def crop(samples: list[Any]) -> Any:
    return default_collate([(x[: shown_pixels[0]], y) for x, y in samples])


def crops_less() -> None:
    """A curriculum in collate: each step shows one pixel more."""
    for x, y in batches():
        with s.step():
            plain(functional.pad(x, (0, 64 - x.shape[1])), y)
        shown_pixels[0] = min(64, shown_pixels[0] + 1)


def rewrites_labels() -> None:
    """A worker that was not there when they were written has them as they were: they are the same."""
    for _ in steps():
        if s.steps_done == 2:
            dataset.tensors[1][5] = dataset.tensors[1][5].clone()  # type: ignore[attr-defined]


def best_score() -> None:
    best = 0.0
    for _ in steps():
        if best < 2:
            best = float(s.steps_done)


class Trainer:
    def __init__(self) -> None:
        self.done = 0

    def one(self, x: Tensor, y: Tensor) -> None:
        plain(x, y)
        self.done += 1
        if self.done % 7 == 0:
            optimizer.param_groups[0]["weight_decay"] = 0.01


def annealed_in_closure() -> None:
    """The weight of a penalty is counted where no variable of the loop is."""
    weights = itertools.count(1)
    for x, y in batches():
        with s.step():
            penalty = sum(each.square().sum() for each in model.parameters())
            learn(cross_entropy(model(x), y) + 1e-5 * next(weights) * penalty)


def left_in_eval() -> None:
    """The main worker alone goes on in eval() after it has looked at its figures."""
    model.insert(1, nn.Dropout(0.1))
    for _ in steps():
        if s.is_main and s.steps_done == 2:
            model.eval()


def counter_in_trainer() -> None:
    loop(Trainer().one)


def lambda_over_global() -> None:
    count = {"steps": 0}
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1 / (1 + count["steps"]))
    s.track(scheduler=scheduler)
    for x, y in batches():
        with s.step():
            plain(x, y)
            count["steps"] += 1
            scheduler.step()


def local_break() -> None:
    for _ in s.epochs(EPOCHS):
        for x, y in s.batches():
            with s.step():
                plain(x, y)
            if s.steps_done > 4 and not s.is_main:
                break


def local_plateau() -> None:
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    s.track(scheduler=scheduler)
    for x, y in batches():
        with s.step():
            loss = plain(x, y)
        scheduler.step(float(loss) if s.is_main else s.steps_done)


def main_evaluates() -> None:
    for _ in s.epochs(EPOCHS):
        one_epoch()
        if s.is_main:
            s.evaluate(lambda batch: {"loss": cross_entropy(model(batch[0]), batch[1], reduction="sum")})


class FirstBatch(nn.Module):
    """Centres by the mean of the first batch that it is called with, as ActNorm does."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(64).double())
        self.is_set = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_set:
            self.shift.data.copy_(-x.detach().mean(0))
            self.is_set = True
        return x + self.shift


class Pixels(nn.Embedding):
    """A row for each brightness of each pixel, none longer than 1: some are in few samples."""

    def __init__(self) -> None:
        super().__init__(64 * 17, 4, max_norm=1.0, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward((16 * x).long() + 17 * torch.arange(64)).flatten(1)


def meddles_on_main() -> None:
    for _ in steps():
        if s.is_main and s.steps_done == 3:
            with torch.no_grad():
                next(model.parameters()).mul_(1.01)


def meddles_at_the_end() -> None:
    loop()
    if s.is_main:
        with torch.no_grad():
            next(model.parameters()).mul_(1.01)


@by_loop
def meddles_in_the_last_step(x: Tensor, y: Tensor) -> None:
    plain(x, y)
    if s.is_main and s.steps_done == EPOCHS * 10:
        with torch.no_grad():
            next(model.parameters()).mul_(1.01)


@by_loop
def second_backward(x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    out = model(x)
    cross_entropy(out, y).backward(retain_graph=True)
    out.square().mean().backward()
    optimizer.step()


@by_loop
def gan_by_accumulate(x: Tensor, y: Tensor) -> None:
    with step.accumulate():
        cross_entropy(model(x), y).backward()
    optimizer.step()
    learn(cross_entropy(model(x), y))


def class_weights() -> None:
    weights = torch.linspace(0.1, 2, 10).double()
    for x, y in batches():
        with s.step():
            learn(cross_entropy(model(x), y, weights))


def weighs_by_own_counts() -> None:
    """Classes are weighed by how often this worker has met them in the first epoch."""
    counts = torch.zeros(10).double()
    for epoch in s.epochs(EPOCHS):
        weights = counts.sum() / counts if epoch else torch.ones(10).double()
        for x, y in s.batches():
            with s.step(weight=weights[y].sum()):
                learn(cross_entropy(model(x), y, weight=weights))
            if not epoch:
                counts += torch.bincount(y, minlength=10)
            tick()


@by_loop
def ignored_targets(x: Tensor, y: Tensor) -> None:
    learn(cross_entropy(model(x), y.masked_fill(y < 3, -100)))


@by_loop
def sum_taken_for_a_mean(x: Tensor, y: Tensor) -> None:
    learn(cross_entropy(model(x), y, reduction="sum") + 0.01 * next(model.parameters()).square().sum())


def other_model() -> None:
    head = net(4, 10, 10)
    other = torch.optim.SGD(head.parameters(), lr=LR)
    for x, y in batches():
        with s.step():
            optimizer.zero_grad()
            other.zero_grad()
            cross_entropy(head(model(x)), y).backward()
            optimizer.step()
            other.step()


def _meta_learns(
    inner_loop: Callable[[], AbstractContextManager[None]],
    learner_of: Callable[[nn.Module], nn.Module] = copy.deepcopy,
    samples: int = 1,
) -> None:
    """Reptile: copies of the model adapt to so many samples each, and the model moves towards them."""

    def body(x: Tensor, y: Tensor) -> Any:
        if s.steps_done > MOST_META_STEPS:
            return plain(x, y)
        optimizer.zero_grad()
        parameters = list(model.parameters())
        ways = [torch.zeros_like(each) for each in parameters]
        for some_x, some_y in zip(x.split(samples), y.split(samples), strict=True):
            with inner_loop():
                learner = learner_of(model)
                inner = torch.optim.SGD(learner.parameters(), lr=LR)
                for _ in range(2):
                    inner.zero_grad()
                    cross_entropy(learner(some_x), some_y).backward()
                    inner.step()
            for way, here, there in zip(ways, parameters, learner.parameters(), strict=True):
                way += (here.detach() - there.detach()) * len(some_x) / len(x)
        torch.autograd.backward(parameters, ways)
        return optimizer.step()

    loop(body)


def meta_learns() -> None:
    _meta_learns(lambda: step.inner_loop())


def meta_learns_without_a_word() -> None:
    _meta_learns(nullcontext)


def meta_learns_in_parts() -> None:
    _meta_learns(nullcontext, samples=BATCH)


def meta_learns_in_the_model() -> None:
    _meta_learns(lambda: step.inner_loop(), lambda given: given)


def meta_learns_from_several() -> None:
    _meta_learns(lambda: step.inner_loop(), samples=8)


def means_of_tasks() -> None:
    """Second-order MAML with a sum over tasks, each of which has a mean of its own."""

    def adapted(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        fast: dict[str, Tensor] = dict(model.named_parameters())
        loss = cross_entropy(functional_call(model, fast, (x,)), y)
        gradients = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
        return {name: each - LR * g for (name, each), g in zip(fast.items(), gradients, strict=True)}

    def body(x: Tensor, y: Tensor) -> Any:
        if s.steps_done > MOST_META_STEPS:
            return plain(x, y)
        losses = []
        for one_x, one_y in zip(x.unsqueeze(1), y.unsqueeze(1), strict=True):
            with step.inner_loop():
                fast = adapted(one_x, one_y)
            losses.append(cross_entropy(functional_call(model, fast, (one_x.repeat(3, 1),)), one_y.repeat(3)))
        return learn(sum(losses, start=torch.zeros(())) / len(losses))

    loop(body)


def frozen_average() -> None:
    average = copy.deepcopy(model).requires_grad_(False)
    for x, y in batches():
        with s.step():
            plain(x, y)
            for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs.detach(), 0.1)


class Average:
    def __init__(self) -> None:
        self.shadow = {name: each.detach().clone() for name, each in model.named_parameters()}

    def update(self) -> None:
        for name, each in model.named_parameters():
            self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * each.detach()


def average_in_a_class() -> None:
    average = Average()
    for x, y in batches():
        with s.step():
            plain(x, y)
            average.update()


def epochs_by_range() -> None:
    for _ in range(EPOCHS):
        one_epoch()


@by_loop
def agrees_inside(x: Tensor, y: Tensor) -> None:
    plain(x, y)
    s.agree(1.0)


# --- equal to a static run ----------------------------------------------------------------------------------------


def gan() -> None:
    """Two models, two optimizers, two passes a step."""
    noise = torch.linspace(-1, 1, 8).double()
    for x, y in batches():
        with s.step(backwards=2):
            seeds = noise * (1 + y.double())[:, None]
            optimizers["d"].zero_grad()
            real = functional.softplus(-models["d"](x)).mean()
            false = functional.softplus(models["d"](models["g"](seeds).detach())).mean()
            (real + false).backward()
            optimizers["d"].step()
            optimizers["g"].zero_grad()
            functional.softplus(-models["d"](models["g"](seeds))).mean().backward()
            optimizers["g"].step()


def _errors(x: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The discriminator's error for real and for false samples, which are parts of one loss; the false ones."""
    false = models["g"](seeds)
    real = functional.softplus(-models["d"](x)).mean()
    return real, functional.softplus(models["d"](false.detach())).mean(), false


def gan_norm() -> None:
    """The same with BatchNorm over all workers, the discriminator's called three times a step."""
    noise = torch.linspace(-1, 1, 8).double()
    for x, y in batches():
        with s.step(backwards=2) as step:
            optimizers["d"].zero_grad()
            real, wrong, false = _errors(x, noise * (1 + y.double())[:, None] + x[:, 18:26])
            with step.accumulate():
                real.backward()
            wrong.backward()
            optimizers["d"].step()
            optimizers["g"].zero_grad()
            functional.softplus(-models["d"](false)).mean().backward()
            optimizers["g"].step()


def gan_shards() -> None:
    """The same in virtual shards, with BatchNorm and dropout: a loop over the shards for each pass."""
    noise = torch.linspace(-1, 1, 8).double()
    for _ in s.epochs(EPOCHS):
        for batch in s.batches():
            with s.step(backwards=2) as step:
                optimizers["d"].zero_grad()
                for x, y in batch:
                    real, wrong, _ = _errors(x, noise * (1 + y.double())[:, None] + x[:, 18:26])
                    with step.accumulate():
                        real.backward()
                    wrong.backward()
                optimizers["d"].step()
                optimizers["g"].zero_grad()
                for x, y in batch:
                    seeds = noise * (1 + y.double())[:, None] + x[:, 18:26]
                    functional.softplus(-models["d"](models["g"](seeds))).mean().backward()
                optimizers["g"].step()
            tick()


@by_loop
def contrastive(x: Tensor, y: Tensor) -> None:
    """InfoNCE over a worker's own part of the batch."""
    first, second = functional.normalize(model(x)), functional.normalize(model(x.flip(1)))
    learn(cross_entropy(first @ second.T / 0.1, torch.arange(len(x))))


@by_loop
def gathered(x: Tensor, y: Tensor) -> None:
    """InfoNCE over the batch of all workers, with a temperature that is learnt, and a statistic over the batch."""
    first = s.gather(functional.normalize(model(x)))
    second = s.gather(functional.normalize(model(x.flip(1))))
    likeness = first @ second.T * dict(model.named_parameters())["scale"].exp()
    spread = (first - first.mean(0)).square().sum().sqrt()
    classes = cross_entropy(first, s.gather(y))
    pairs = cross_entropy(likeness, torch.arange(len(likeness)))
    learn(pairs + classes + 0.1 * spread)


def decays_after_block() -> None:
    """What a script does to parameters, buffers and values after the block counts once for each step."""
    s.state["count"] = 0
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    s.track(scheduler=scheduler)
    for epoch in s.epochs(EPOCHS):
        model[0].weight.requires_grad_(epoch != 1)  # the step in which this is found is repeated
        for x, y in s.batches():
            with s.step():
                plain(x, y)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.99)
                model.get_buffer("seen").add_(1)
            scheduler.step()
            s.state["count"] += 1
            tick()
    assert s.state["count"] == int(model.get_buffer("seen")) == s.steps_done


@by_loop
def sum_by_hand(x: Tensor, y: Tensor) -> None:
    learn(0.001 * cross_entropy(model(x), y, reduction="none").sum())


@by_loop
def temperature_of_batch(x: Tensor, y: Tensor) -> None:
    """By how far a worker's own outputs are spread."""
    z = model(x)
    spread = z.detach().std().item()
    learn(cross_entropy(z / max(spread, 0.1), y))


def keeps_own_centre() -> None:
    """A running mean of what this worker has seen, in the training state."""
    s.state["centre"] = torch.zeros(10)
    for x, y in batches():
        with s.step():
            z = model(x)
            learn(cross_entropy(z, y) + 0.1 * (z - s.state["centre"]).square().mean())
            s.state["centre"] = 0.9 * s.state["centre"] + 0.1 * z.detach().mean(0)


class OwnFigures:
    """What a worker's own samples were like so far; numbers in a list."""

    def __init__(self) -> None:
        self.sums = [0.0, 0.0]

    def saw(self, x: Tensor) -> None:
        for value in x.flatten().tolist():
            self.sums[0] += value * value
            self.sums[1] += 1.0

    def scale(self) -> float:
        return (self.sums[0] / self.sums[1]) ** 0.5 if self.sums[1] else 1.0


def scaled_by_own_figures() -> None:
    """Between steps, and after the first ones alone: no step by itself shows it."""
    figures = OwnFigures()
    for x, y in batches():
        with s.step():
            learn(cross_entropy(model(x / figures.scale()), y))
        figures.saw(x)


def writes_in_step() -> None:
    """A line for each step, printed and written to a file that is open, and a place in a file that is read."""
    there = HOME / "lines"
    source = HOME / "source"
    source.write_text("".join(f"{number:04}\n" for number in range(1000)))
    with there.open("w") as lines, source.open("rb", buffering=0) as numbers:
        for x, y in batches():
            with s.step():
                loss = cross_entropy(model(x), y)
                print("a step", flush=True)
                lines.write(numbers.read(5).decode())
                lines.flush()
                learn(loss)


@by_loop
def constant_divisor(x: Tensor, y: Tensor) -> None:
    """Divided by the batch of all workers, on each of them."""
    learn(cross_entropy(model(x), y, reduction="none").sum() / BATCH)


@by_loop
def times_length(x: Tensor, y: Tensor) -> None:
    learn(cross_entropy(model(x), y) * len(x) / BATCH)


def mean_of_chunks() -> None:
    """Parts of a worker's part, each weighed by its length: right."""
    for x, y in batches():
        with s.step():
            parts = zip(x.split(9), y.split(9), strict=True)
            losses = [cross_entropy(model(a), b) * len(a) / len(x) for a, b in parts]
            learn(torch.stack(losses).sum())


def clips_in_hooks() -> None:
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    loop()


def own_generator() -> None:
    """Decides by a generator of its own, which a newcomer begins anew."""
    chance = random.Random(1)
    for x, y in batches():
        factor = 0.0 if chance.random() < 0.3 else 1.0
        with s.step():
            plain(factor * x, y)


class Stages(Dataset[Any]):
    """Noise that the script makes less from stage to stage."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples
        self.noise, self.reads = 1.0, 0

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        self.reads += 1  # a count of its own, which workers have by right
        x, y = self.samples[index]
        return x + self.noise * torch.randn_like(x), y


def stage_by_steps() -> None:
    assert isinstance(dataset, Stages)
    for _ in steps():
        dataset.noise *= 0.9


def stage_by_epoch() -> None:
    assert isinstance(dataset, Stages)
    for epoch in s.epochs(EPOCHS):
        dataset.noise = 1 / (1 + epoch)
        one_epoch()


def _with_centres(rows_of: Callable[[Tensor], Tensor]) -> None:
    centres = model.get_buffer("centres")
    for x, y in batches():
        with s.step():
            hidden = model[1](model[0](x))
            rows, labels = rows_of(hidden.detach()), rows_of(y)
            learn(cross_entropy(model[2](hidden), y) + 0.1 * (hidden - centres[y]).square().sum(1).mean())
            centres.index_add_(0, labels, 0.01 * (rows - centres[labels]))


def own_centres() -> None:
    """A buffer that follows a worker's own samples."""
    _with_centres(lambda rows: rows)


def gathered_centres() -> None:
    _with_centres(s.gather)


def catches_exceptions() -> None:
    for _ in s.epochs(EPOCHS):
        for x, y in s.batches():
            try:
                with s.step():
                    if s.steps_done == 3:
                        raise RuntimeError("out of memory")  # noqa: TRY301 - as scripts do
                    plain(x, y)
            except RuntimeError:
                continue


def average_by_epoch() -> None:
    swa = torch.optim.swa_utils.AveragedModel(model)
    for _ in s.epochs(EPOCHS):
        one_epoch()
        swa.update_parameters(model)


@by_loop
def own_against_gathered(x: Tensor, y: Tensor) -> None:
    """A worker's own rows against those of all."""
    own = functional.normalize(model(x))
    likeness = own @ s.gather(own).T * dict(model.named_parameters())["scale"].exp()
    same = (y[:, None] == s.gather(y)[None, :]).double()
    learn(cross_entropy(likeness, same / same.sum(1, keepdim=True)))


@by_loop
def gathered_views(x: Tensor, y: Tensor) -> None:
    """Two views in one tensor: rows of workers would lie between them."""
    s.gather(model(torch.cat([x, x.flip(1)]))).sum().backward()


@by_loop
def gathered_in_parts(x: Tensor, y: Tensor) -> None:
    with step.accumulate():
        s.gather(model(x)).mean().backward()


def mean_of_weighted() -> None:
    for _ in s.epochs(1):
        for x, y in s.batches():
            with s.step(weight=(y + 1).sum()):
                s.mean(cross_entropy(model(x), y, reduction="none"), over=len(y)).backward()


@by_loop
def mean_in_parts(x: Tensor, y: Tensor) -> None:
    with step.accumulate():
        s.mean(cross_entropy(model(x), y, reduction="none"), over=len(y)).backward()


def own_negatives() -> None:
    """Each worker draws its own, between two epochs."""
    for _ in s.epochs(EPOCHS):
        dataset.negatives = torch.randint(64, (640,), generator=seeded(int(ME)))  # type: ignore[attr-defined]
        one_epoch()


@by_loop
def means_on_main(x: Tensor, y: Tensor) -> None:
    out = model(x)
    loss = cross_entropy(out, y)
    if s.is_main:
        loss = loss + s.mean(out.square(), over=len(out))
    loss.backward()


@by_loop
def gathered_too_late(x: Tensor, y: Tensor) -> None:
    plain(x, y)
    s.gather(x)


@by_loop
def gathered_and_own(x: Tensor, y: Tensor) -> None:
    """The samples of a worker's part are compared with each other, beside gathered ones."""
    out = model(x)
    learn(cross_entropy(s.gather(out), s.gather(y)) + (out @ out.T).tril(-1).square().mean())


@by_loop
def gathers_on_main(x: Tensor, y: Tensor) -> None:
    out = model(x)
    optimizer.zero_grad()
    cross_entropy(out, y).backward() if not s.is_main else s.gather(out).square().mean().backward()
    optimizer.step()


@by_loop
def partner_first(x: Tensor, y: Tensor) -> None:
    """SimCLR's form: the similarity to the partner comes first."""
    out = functional.normalize(model(x))
    others = (out @ out.T)[~torch.eye(len(x), dtype=torch.bool)].view(len(x), -1)
    learn(cross_entropy(others, torch.zeros(len(x), dtype=torch.long)))


@by_loop
def norm_in_parts(x: Tensor, y: Tensor) -> None:
    """BatchNorm over all workers, and a batch in two parts."""
    optimizer.zero_grad()
    with step.accumulate():
        cross_entropy(model(x[:2]), y[:2]).backward()
    cross_entropy(model(x[2:]), y[2:]).backward()
    optimizer.step()


@by_loop
def norm_after_backward(x: Tensor, y: Tensor) -> None:
    """BatchNorm over all workers that sees the batch once more after the step is committed."""
    plain(x, y)
    model(x)


def sam() -> None:
    """Sharpness-aware minimisation: two passes, the second at disturbed parameters."""
    for x, y in batches():
        with s.step(backwards=2):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            moves = [0.05 * p.grad for p in model.parameters() if p.grad is not None]
            with torch.no_grad():
                for p, move in zip(model.parameters(), moves, strict=True):
                    p.add_(move)
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for p, move in zip(model.parameters(), moves, strict=True):
                    p.sub_(move)
            optimizer.step()


def weighted() -> None:
    """A mean over class weights, of which the session is told."""
    weights = torch.linspace(0.1, 2, 10).double()
    for x, y in batches():
        with s.step(weight=weights[y].sum()):
            learn(cross_entropy(model(x), y, weights))


def unfreezes() -> None:
    """The first layer is trained from the second epoch on, with a rate of its own."""
    model[0].requires_grad_(False)
    for epoch in s.epochs(EPOCHS):
        if epoch == 1:
            model[0].requires_grad_(True)
            if len(optimizer.param_groups) == 1:
                optimizer.add_param_group({"params": list(model[0].parameters()), "lr": LR / 2})
        one_epoch()


def shared_values() -> None:
    """A counter, an average and a generator of the script's own, in the session's state."""
    s.state["done"] = 0
    s.state["average"] = {name: each.detach().clone() for name, each in model.named_parameters()}
    s.state["chance"] = torch.Generator().manual_seed(1)
    for x, y in batches():
        with s.step():
            plain(x, y)
            s.state["done"] += 1
            optimizer.param_groups[0]["lr"] = LR / (1 + 0.1 * s.state["done"])
            for name, each in model.named_parameters():
                s.state["average"][name].lerp_(each.detach(), 0.1)
            with torch.no_grad():
                list(model.parameters())[3].add_(0.01 * torch.rand(10, generator=s.state["chance"]).double())
    with torch.no_grad():
        for name, each in model.named_parameters():
            each.copy_(s.state["average"][name])


def agrees() -> None:
    """Early stopping on the loss of all workers, and a rate by all workers' mean of it."""
    for _ in s.epochs(EPOCHS):
        total = torch.zeros(2, dtype=torch.float64)
        for x, y in s.batches():
            with s.step():
                loss = plain(x, y)
                if s.info.share:
                    total += torch.stack([loss * len(y), torch.tensor(float(len(y)))]).double()
            tick()
        if s.agree(s.epoch > 0, "all"):
            break


def sums_in_words() -> None:
    """Accumulation inside a step, progress by `enumerate`, a worker's own running loss: all of it harmless."""
    running = 0.0
    for _ in s.epochs(EPOCHS):
        for i, (x, y) in enumerate(s.batches()):
            half = len(y) // 2
            with s.step() as step:
                optimizer.zero_grad()
                with step.accumulate():
                    (cross_entropy(model(x[:half]), y[:half], reduction="sum") / len(y)).backward()
                loss = cross_entropy(model(x[half:]), y[half:], reduction="sum") / len(y)
                loss.backward()
                optimizer.step()
            running += loss.item()
            if i % 2 == 0:
                print(f"step {i}: {running / (i + 1)}")
            tick()


#: These lie in what the session is given: see `main`.
set_by_first_batch = shortened_rows = own_order = own_batches = orders_that_differ = joins = loop


def lengths(epoch: int) -> list[int]:
    """Batches of samples with similar sums, in another order each epoch."""
    sums = dataset.tensors[0].sum(1)  # type: ignore[attr-defined]
    order = torch.argsort(sums, stable=True).reshape(-1, BATCH)
    found: list[int] = order[torch.randperm(len(order), generator=seeded(epoch))].flatten().tolist()
    return found


def buckets(epoch: int) -> list[list[int]]:
    """Batches of 48, 64 and fewer samples with similar sums, in another order each epoch."""
    order = torch.argsort(dataset.tensors[0].sum(1), stable=True).tolist()  # type: ignore[attr-defined]
    batches: list[list[int]] = []
    while order:
        size = (48, BATCH, 21)[len(batches) % 3]
        batches.append(order[:size])
        order = order[size:]
    random.Random(epoch).shuffle(batches)
    return batches


def trains_before() -> None:
    """Something else is trained before the session is used."""
    teacher = net()
    other = torch.optim.SGD(teacher.parameters(), lr=LR)
    x, y = dataset.tensors  # type: ignore[attr-defined]
    for _ in range(30):
        other.zero_grad()
        cross_entropy(teacher(x), y).backward()
        other.step()
    loop()


# --- and their results --------------------------------------------------------------------------------------------


@by_loop
def draws(x: Tensor, y: Tensor) -> None:
    """Noise in the step: the same in distribution only."""
    plain(x + 0.1 * torch.randn_like(x), y)


STREAMS = 5


class Skipping:
    """A stream that passes over samples without reading them."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = data(1).tensors
        for row in self.rows:
            yield x[row] + 0.01 * torch.randn(64).double(), y[row]

    def skip(self, count: int) -> Skipping:
        return Skipping(self.rows[count:])


def open_stream(number: int, epoch: int) -> Iterable[tuple[Tensor, Tensor]]:
    """Streams of unequal lengths, each epoch in another order; every other one can pass over samples."""
    lengths = [60, 130, 1, 200, 249]
    first = sum(lengths[:number])
    rows = list(range(first, first + lengths[number]))
    random.Random(epoch).shuffle(rows)
    return Skipping(rows) if number % 2 else iter(Skipping(rows))


def streams() -> None:
    for epoch in s.epochs(EPOCHS):
        one_epoch()
        assert s.info.samples_done == 640 * (epoch + 1), (s.info.samples_done, epoch)


@by_loop
def masked_mean(x: Tensor, y: Tensor) -> None:
    mask = x[:, 20] > 0.5
    learn((cross_entropy(model(x), y, reduction="none") * mask).sum().div(mask.sum()))


@by_loop
def rows_left_out(x: Tensor, y: Tensor) -> None:
    kept = x[:, 20] > 0.5
    learn(cross_entropy(model(x[kept]), y[kept]))


@by_loop
def hardest(x: Tensor, y: Tensor) -> None:
    learn(cross_entropy(model(x), y, reduction="none").topk(len(x) // 4).values.mean())


@by_loop
def statistic(x: Tensor, y: Tensor) -> None:
    """The entropy of the mean prediction."""
    out = model(x)
    mean = out.softmax(1).mean(0)
    learn(cross_entropy(out, y) + (mean * mean.log()).sum())


@by_loop
def whitened(x: Tensor, y: Tensor) -> None:
    learn(cross_entropy(model((x - x.mean(0)) / (x.std(0) + 0.1)), y))


@by_loop
def root_of_mean(x: Tensor, y: Tensor) -> None:
    learn(functional.mse_loss(model(x)[:, 0], y.double()).sqrt())


@by_loop
def inner_gradients(x: Tensor, y: Tensor) -> None:
    """Meta-learning: an inner step with the gradients of this worker's samples."""
    given: dict[str, Tensor] = dict(model.named_parameters())
    call = torch.func.functional_call
    inner = cross_entropy(call(model, given, x), y)
    gradients = torch.autograd.grad(inner, list(given.values()), create_graph=True)
    moved = {name: p - 0.1 * g for (name, p), g in zip(given.items(), gradients, strict=True)}
    learn(cross_entropy(call(model, moved, x), y))


def other_loader() -> None:
    """Each worker reads another loader by itself."""
    loader = torch.utils.data.DataLoader(dataset, batch_size=50, shuffle=True, generator=torch.Generator())
    other = iter(itertools.cycle(loader))
    for x, y in batches():
        also = next(other)[0][:, :32]
        with s.step():
            wide = functional.pad(also, (0, 32))
            learn(cross_entropy(model(x), y) + model(wide).square().mean())


def running_mean() -> None:
    center = torch.zeros(10).double()
    for x, y in batches():
        with s.step():
            out = model(x)
            learn(cross_entropy(out - center, y))
        center = 0.9 * center + 0.1 * out.detach().mean(0)


@by_loop
def loss_weight_by_item(x: Tensor, y: Tensor) -> None:
    """Two losses, brought to one size by numbers."""
    out = model(x)
    first, second = cross_entropy(out, y), out.square().mean()
    weight = first.item() / second.item()
    learn(first + weight * second)


def replays() -> None:
    """What was learned from earlier is learned from again."""
    buffer: list[tuple[Tensor, Tensor]] = []
    for x, y in batches():
        buffer.extend(zip(x, y, strict=True))
        with s.step():
            rows = buffer[-2 * len(x) :]
            again, target = torch.stack([row for row, _ in rows]), torch.stack([t for _, t in rows])
            learn(cross_entropy(model(again), target))


def tokens() -> Iterator[list[Tensor]]:
    """Another loader, of whole numbers."""
    numbers = TensorDataset(torch.arange(6400).reshape(640, 10) % 64)
    return iter(itertools.cycle(torch.utils.data.DataLoader(numbers, batch_size=50)))


def loader_inside() -> None:
    """It is read inside the block."""
    other, table = tokens(), torch.eye(64).double()
    for x, y in batches():
        with s.step():
            learn(cross_entropy(model(x), y) + model(table[next(other)[0]].mean(1)).square().mean())


def tokens_between() -> None:
    """It is read before the block."""
    other, table = tokens(), torch.eye(64).double()
    for x, y in batches():
        (also,) = next(other)
        with s.step():
            learn(cross_entropy(model(x), y) + model(table[also].mean(1)).square().mean())


def draws_between() -> None:
    """Noise that is drawn before the block."""
    for x, y in batches():
        x = x + 0.1 * torch.randn_like(x)
        with s.step():
            plain(x, y)


def decides_by_random() -> None:
    """A size for each batch, chosen by Python's generator before the block, and a rate after it."""
    drawn = 0.0  # a worker's first block may be given up before it is drawn
    for x, y in batches():
        scale = random.choice([0.5, 1.0, 1.5])
        with s.step():
            plain(scale * x, y)
            drawn = random.random()  # of this worker
        optimizer.param_groups[0]["weight_decay"] = 0.01 * random.random()
        assert 0 <= drawn < 1


def by_the_system() -> None:
    """Every run of this script is another one."""
    chance = random.SystemRandom()
    loop(lambda x, y: plain((0.5 + chance.random()) * x, y))


def penalised() -> None:
    """Nothing of this depends on how samples lie on workers."""
    teacher = net(64)
    for x, y in batches():
        with s.step():
            penalty = sum(p.square().sum() for p in model.parameters())
            distance = torch.cat([p.flatten() for p in model.parameters()]).norm()
            each = cross_entropy(model(x), y, reduction="none")
            with torch.no_grad():
                known = teacher(x).sum(1)  # whose layers are as wide as a batch is long
            each = each + 0.0 * known
            learn(each.sum() / len(x) + 0.01 * penalty / 2 + 0.01 * distance + 0.1 * each.square().mean())


def scheduler_outside() -> None:
    """The scheduler counts steps after the block, which is run again where a step is repeated."""
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    s.track(scheduler=scheduler)
    s.state["seen"] = 0
    for _ in steps():
        scheduler.step()
        s.state["seen"] += 1
    assert s.state["seen"] == s.steps_done, (s.state["seen"], s.steps_done)


def _exits(end: Callable[[int], Any]) -> None:
    for _ in steps():
        if s.steps_done == 3:
            end(0)


def exits() -> None:
    """Ends where a worker's own loss is low enough."""
    _exits(sys.exit)


def exits_at_once() -> None:
    """The same without Python's own end, as some do to be rid of threads that hang."""
    _exits(os._exit)


def all_reduces() -> None:
    for _ in s.epochs(1):
        for x, y in s.batches():
            with s.step():
                plain(x, y)
        seen = s.agree(torch.ones(2), "sum")
        assert seen.tolist() == [s.size, s.size]
        assert s.agree(float(s.is_main), "sum") == 1.0
        squares, samples = s.agree(torch.tensor([len(x) ** 2, len(x)], dtype=torch.float64), "sum").tolist()
        assert abs(s.agree(float(len(x))) - squares / samples) < 1e-9
        assert s.agree(s.is_main, "any") and (s.size == 1 or not s.agree(s.is_main, "all"))
        assert s.agree(5.0 if s.is_main else 7.0, "main") == 5.0


class OwnAverage:
    """As libraries make them: a list of shadow tensors with state_dict and load_state_dict, told to the session."""

    def __init__(self, parameters: Iterable[Tensor], decay: float) -> None:
        self.parameters, self.decay = list(parameters), decay
        self.shadow = [each.detach().clone() for each in self.parameters]

    def update(self) -> None:
        with torch.no_grad():
            for mine, each in zip(self.shadow, self.parameters, strict=True):
                mine.lerp_(each, 1 - self.decay)

    def state_dict(self) -> dict[str, Any]:
        return {"decay": self.decay, "shadow": self.shadow}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.decay, self.shadow = state["decay"], [each.clone() for each in state["shadow"]]


class Bookkeeper:
    """What a worker writes down of its own steps, which decides nothing."""

    def __init__(self) -> None:
        self.global_step, self.last_beat = 0, time.monotonic()
        self.pictures: list[int] = []
        self.beats: list[str] = []

    def note(self, x: Tensor) -> None:
        self.global_step += 1
        if self.global_step % 7 == 0:
            self.pictures.append(int(x[0].argmax()))
        if time.monotonic() - self.last_beat > 0.05:
            self.last_beat = time.monotonic()
            self.beats.append(f"alive at {self.last_beat:.0f}")


def keeps_books() -> None:
    """A best score on the main worker, a curve with every fifth step, a profiler from the tenth step of a process on,
    a heartbeat by the clock, pictures by a counter, and an average of its own that is tracked."""
    average, books = OwnAverage(model.parameters(), 0.9), Bookkeeper()
    s.track(average=average)
    best, curve, made = 0.0, dict[int, float](), 0
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    for _ in s.epochs(EPOCHS):
        for x, y in s.batches():
            made += 1
            if made == 10:
                profiler.start()
            if made == 12:
                profiler.stop()
            with s.step():
                loss = plain(x, y)
                average.update()
            books.note(x)
            if made % 5 == 0:
                curve[made] = loss.item()
            tick()
        if s.is_main and (score := -loss.item()) > best - 9:
            best = score
    with torch.no_grad():
        for mine, each in zip(average.shadow, model.parameters(), strict=True):
            each.copy_(mine)


@by_loop
def two_denominators(x: Tensor, y: Tensor) -> None:
    """A mean over samples and one over bright pixels, each over its own count of the whole batch."""
    out, bright = model(x), (x > 0.5).sum(1).double()
    counts = s.gather(bright)
    of_pixels = (out[:, 0].square() * bright).sum() / counts.sum() * (len(counts) / len(x))
    learn(cross_entropy(out, y) + of_pixels)


@by_loop
def several_means(x: Tensor, y: Tensor) -> None:
    """Energies a sample and forces a bright pixel, of which most samples have none: each over its own count."""
    out, bright = model(x), (x > 0.9).sum(1).double() * (y == 3)
    errors = cross_entropy(out, y, reduction="none")
    learn(s.mean(errors, over=len(errors)) + s.mean(out[:, 0].square() * bright, over=bright.sum()))


def several_sums() -> None:
    """The same in a session of sums."""
    several_means()


@by_loop
def sum_gathered(x: Tensor, y: Tensor) -> None:
    """A sum over a worker's own samples, each against those of all."""
    out = model(x)
    apart = torch.cdist(out, s.gather(out)).square()
    learn(0.01 * cross_entropy(out, y, reduction="sum") + 1e-5 * apart.sum())


def one_infinite_element() -> None:
    """Of one gradient of one worker."""
    far = torch.zeros(10).double()
    for x, y in batches():
        if s.steps_done == 2 and ME == "1":
            far[9] = float("inf")
            model.get_parameter("2.bias").register_hook(lambda gradient: gradient + far)
        with s.step():
            plain(x, y)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("habit")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--times", type=int, default=1, help="an epoch has the data so many times over")
    parser.add_argument("--split", action="store_true", help="train on a part chosen at random, without a seed")
    options = parser.parse_args()
    EPOCHS = options.epochs
    logging.basicConfig(level=logging.INFO)
    torch.manual_seed(0)
    model = net()
    dataset: Dataset[Any] = data(options.times)
    if options.habit == "decays_after_block":
        model.register_buffer("seen", torch.zeros(()))
    if options.habit.endswith("_centres"):
        model.register_buffer("centres", torch.zeros(10, 16).double())
    if options.habit == "set_by_first_batch":
        model = nn.Sequential(FirstBatch(), *net())
    if options.habit == "shortened_rows":
        model = nn.Sequential(Pixels(), *net(inputs=256))
    if options.habit == "shuffles_in_place":
        each_sample = data(options.times)
        dataset = [each_sample[index] for index in range(len(each_sample))]  # type: ignore[assignment]
    if options.habit.startswith("stage_"):
        dataset = Stages(dataset)
    if "gathered" in options.habit:
        model.register_parameter("scale", nn.Parameter(torch.tensor(1.0).double()))
    if options.habit.startswith("norm_"):
        model[1] = nn.Sequential(elastic.sync_batchnorm(nn.BatchNorm1d(16).double()), nn.Tanh())
    trained = model[2] if options.habit == "unfreezes" else model
    optimizer = torch.optim.SGD(trained.parameters(), lr=LR, momentum=0.9)
    given: Any = model
    stepped: Any = optimizer
    if options.habit in ("gan", "gan_norm", "gan_shards"):
        models = {"g": net(8, 8, 64), "d": net(8, 64, 1)}
        optimizers: dict[str, torch.optim.Optimizer]
        optimizers = {name: torch.optim.Adam(each.parameters(), lr=0.003) for name, each in models.items()}
        if options.habit != "gan":
            # (Before BatchNorm some gradients are rounding alone, which Adam would enlarge.)
            for each in models.values():
                each[1] = nn.Sequential(nn.BatchNorm1d(8).double(), nn.Tanh())
            optimizers = {name: torch.optim.SGD(each.parameters(), lr=0.05) for name, each in models.items()}
        if options.habit == "gan_norm":
            models = {name: elastic.sync_batchnorm(each) for name, each in models.items()}  # type: ignore[misc]
        if options.habit == "gan_shards":
            models["d"].insert(2, nn.Dropout(0.3))
        given, stepped = models, optimizers
    if options.split:
        torch.seed()
        dataset = random_split(dataset, [512, 128])[0]
        assert isinstance(dataset, Subset)
        torch.manual_seed(0)
    if options.habit == "streams":
        dataset = elastic.Streams(open_stream, STREAMS)  # type: ignore[assignment]
    orders: dict[str, Callable[[int], list[Any]]] = {
        "own_order": lengths,
        "own_batches": buckets,
        "orders_that_differ": lambda _: torch.randperm(640, generator=seeded(int(ME))).tolist(),
    }
    s = elastic.Session(
        given,
        stepped,
        dataset,
        batch_size=BATCH,
        virtual_shards=4 if options.habit == "gan_shards" else None,
        collate=crop if options.habit == "crops_less" else None,
        reduction="sum" if options.habit in ("sum_gathered", "several_sums") else "mean",
        options=elastic.Options(
            order=orders.get(options.habit),
            when_joining=lambda epoch, step: (HOME / f"joined-{ME}").write_text(f"{epoch} {step}"),
        ),
    )
    globals()[options.habit]()
    if s.is_main:
        torch.save(s._runtime.model.state_dict(), HOME / "final.pt")
    s.finish()
