"""Small training loops, each with one habit that real scripts have. `train_habits.py HABIT` trains with it.

In float64, so that equality with a static run shows. `HABITS` says what is right of each: to the tests of invariants,
to those of `malletrain check`, and to the table of docs/reference/habits.md.
"""

from __future__ import annotations

import argparse
import copy
import enum
import functools
import inspect
import itertools
import logging
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate, random_split

from malletrain import elastic
from malletrain.elastic.step import Step

HOME = Path(os.environ.get("MALLETRAIN_TEST_DIR", "."))
ME = os.environ.get("SLURM_ARRAY_TASK_ID") or os.environ.get("RANK", "x")
EPOCHS, BATCH, LR = 3, 64, 0.05

#: Steps of meta-learning, which take long.
MOST_META_STEPS = 3


class Kind(enum.Enum):
    WRONG = "trains wrongly without a word of an invariant's, or with one once workers differ"
    ALONE = "refused by one worker as on the cluster"
    TOGETHER = "refused by two workers"
    JOINING = "refused as a worker joins a training that has begun"
    STATISTICAL = "draws in its steps, or has layers that do"
    RIGHT = "equal to a static run"
    OTHER = "for a test of its own"


class Habit(NamedTuple):
    """A training loop, and what is right of it."""

    kind: Kind
    train: Callable[[], Any]
    #: A pattern of the refusal; of a wrong habit a part of the line that is its fault.
    said: str = ""
    #: Of the script, for the fault to show.
    options: tuple[str, ...] = ()
    #: It differs from a static run as workers join, and not before.
    joined: bool = False
    #: A check can try it: it needs no worker of a certain number.
    checked: bool = True
    #: Tried at each change, not only nightly.
    daily: bool = False


HABITS: dict[str, Habit] = {}


def habit(kind: Kind, said: str = "", **more: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Of a training loop, or of the body of its steps, which takes a batch."""

    def registered(written: Callable[..., Any]) -> Callable[..., Any]:
        train = functools.partial(loop, written) if inspect.signature(written).parameters else written
        HABITS[written.__name__] = Habit(kind, train, said, **more)
        return written

    return registered


wrong, alone, together, joining, statistical, right, other = (functools.partial(habit, kind) for kind in Kind)


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


def steps(body: Callable[[Tensor, Tensor], Any] = plain) -> Iterator[None]:
    """Comes to each step's end."""
    global step
    for x, y in batches():
        with s.step() as step:
            body(x, y)
        yield


def loop(body: Callable[[Tensor, Tensor], Any] = plain) -> None:
    for _ in steps(body):
        pass


def one_epoch() -> None:
    for x, y in s.batches():
        plain(x, y)
        tick()


@joining(r"another (lr|iter_num)")
def counter_sets_rate() -> None:
    iter_num = 0
    for x, y in batches():
        for group in optimizer.param_groups:
            group["lr"] = LR / (1 + iter_num)
        plain(x, y)
        iter_num += 1  # noqa: SIM113 - a worker that joins begins it anew


@wrong("for i, (x, y) in enumerate", joined=True)
def index_of_batch() -> None:
    for i, (x, y) in enumerate(batches()):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        if (i + 1) % 2 == 0:
            optimizer.step()


@alone(r"has gradients that were added to those of an earlier step")
def adds_up_over_steps(x: Tensor, y: Tensor) -> None:
    cross_entropy(model(x), y).backward()
    if s.steps_done % 2:
        optimizer.step()
        optimizer.zero_grad()


@wrong("dataset.tensors[1][:64] = ", joined=True)
def relabels() -> None:
    for _ in steps():
        if s.steps_done == 2:
            dataset.tensors[1][:64] = (dataset.tensors[1][:64] + 1) % 10


@wrong("teacher", joined=True)
def renews_teacher() -> None:
    """A teacher that only a closure has, made anew from the model at the second epoch."""
    teacher = copy.deepcopy(model).requires_grad_(False)

    def distils(x: Tensor, y: Tensor) -> None:
        out = model(x)
        learn(cross_entropy(out, teacher(x).softmax(1)) + cross_entropy(out, y))

    for epoch in s.epochs(EPOCHS):
        if epoch == 1:
            teacher.load_state_dict(model.state_dict())
        for x, y in s.batches():
            distils(x, y)
            tick()


shown_pixels = [8]


def crop(samples: list[Any]) -> Any:
    return default_collate([(x[: shown_pixels[0]], y) for x, y in samples])


@wrong("shown_pixels[0] = ", joined=True)
def crops_less() -> None:
    """A curriculum in collate: each step shows one pixel more."""
    for _ in steps(pads):
        shown_pixels[0] = min(64, shown_pixels[0] + 1)


@right()
def rewrites_labels() -> None:
    """A worker that was not there when they were written has them as they were: they are the same."""
    for _ in steps():
        if s.steps_done == 2:
            dataset.tensors[1][5] = dataset.tensors[1][5].clone()


def pad(samples: list[Any]) -> Any:
    """To the longest of them, which is another one on each worker."""
    rows = [x[: 10 + 5 * int(y)] for x, y in samples]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.stack([y for _, y in samples])


@right()
def pads(x: Tensor, y: Tensor) -> None:
    plain(functional.pad(x, (0, 64 - x.shape[1])), y)


@right()
def stops_early() -> None:
    """Once the score of held-out samples has not become better twice; a scheduler follows it too."""
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    s.track(scheduler=scheduler)
    s.state["best"], s.state["bad"] = math.inf, 0
    held_out = Subset(dataset, range(64))
    for _ in s.epochs(EPOCHS):
        one_epoch()
        score = s.evaluate(
            lambda batch: {"loss": cross_entropy(model(batch[0]), batch[1], reduction="sum")}, held_out
        )["loss"]
        scheduler.step(score)
        s.state["bad"] = 0 if score < s.state["best"] else s.state["bad"] + 1
        s.state["best"] = min(score, s.state["best"])
        if s.agree(s.state["bad"] >= 2, "any"):
            break


@wrong("next(weights)", joined=True)
def annealed_in_closure() -> None:
    """The weight of a penalty is counted where no variable of the loop is."""
    weights = itertools.count(1)
    for x, y in batches():
        penalty = sum(each.square().sum() for each in model.parameters())
        learn(cross_entropy(model(x), y) + 1e-5 * next(weights) * penalty)


@statistical()
def left_in_eval() -> None:
    """The main worker alone goes on in eval() after it has looked at its figures."""
    model.insert(1, nn.Dropout(0.1))
    for _ in steps():
        if s.is_main and s.steps_done == 2:
            model.eval()


@together(r"is at another place of the script than the others: in s.step\(\) in epoch \d")
def local_break() -> None:
    for _ in s.epochs(EPOCHS):
        for x, y in s.batches():
            plain(x, y)
            if s.steps_done > 4 and not s.is_main:
                break


@together(r"learns with another lr than the others \(.*s.track\(scheduler")
def local_plateau() -> None:
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    s.track(scheduler=scheduler)
    for x, y in batches():
        loss = plain(x, y)
        scheduler.step(float(loss) if s.is_main else s.steps_done)


@together(r"is at another place of the script than the others: in s.evaluate\(\)|and the others in s.evaluate")
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


def _meddles_after(step: int) -> None:
    if s.is_main and s.steps_done == step:
        with torch.no_grad():
            next(model.parameters()).mul_(1.01)


@together(r"has another 0.weight than the others: something changes it on one worker", options=("--times", "10"))
def meddles_on_main() -> None:
    for _ in steps():
        _meddles_after(3)


@other()
def meddles_at_the_end() -> None:
    loop()
    _meddles_after(EPOCHS * 10)


@other()
def meddles_in_the_last_step(x: Tensor, y: Tensor) -> None:
    plain(x, y)
    _meddles_after(EPOCHS * 10)


@alone(r"a second time in a step.*step.accumulate\(\).*s.step\(backwards=N\)")
def second_backward(x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    out = model(x)
    cross_entropy(out, y).backward(retain_graph=True)
    out.square().mean().backward()
    optimizer.step()


@alone(r"has gradients of this worker alone.*s.step\(backwards=N\)")
def gan_by_accumulate(x: Tensor, y: Tensor) -> None:
    with step.accumulate():
        cross_entropy(model(x), y).backward()
    optimizer.step()
    learn(cross_entropy(model(x), y))


@wrong('reduction="sum"')
def sum_taken_for_a_mean(x: Tensor, y: Tensor) -> None:
    learn(cross_entropy(model(x), y, reduction="sum") + 0.01 * next(model.parameters()).square().sum())


def _meta_learns(
    inner_loop: Callable[[], AbstractContextManager[None]],
    learner_of: Callable[[nn.Module], nn.Module] = copy.deepcopy,
) -> None:
    """Reptile: copies of the model adapt to a sample each, and the model moves towards them."""

    def body(x: Tensor, y: Tensor) -> Any:
        if s.steps_done > MOST_META_STEPS:
            return plain(x, y)
        optimizer.zero_grad()
        parameters = list(model.parameters())
        ways = [torch.zeros_like(each) for each in parameters]
        for some_x, some_y in zip(x.split(1), y.split(1), strict=True):
            with inner_loop():
                learner = learner_of(model)
                inner = torch.optim.SGD(learner.parameters(), lr=LR)
                for _ in range(2):
                    inner.zero_grad()
                    cross_entropy(learner(some_x), some_y).backward()
                    inner.step()
            for way, here, there in zip(ways, parameters, learner.parameters(), strict=True):
                way += (here.detach() - there.detach()) / len(x)
        torch.autograd.backward(parameters, ways)
        return optimizer.step()

    loop(body)


@right()
def meta_learns() -> None:
    _meta_learns(lambda: step.inner_loop())


@alone(r"SGD.step\(\) trains a parameter of shape \(16, 64\) that the session.*`with step.inner_loop\(\):`")
def meta_learns_without_a_word() -> None:
    _meta_learns(nullcontext)


@alone(r"backward\(\) inside step.inner_loop\(\) reaches 2.bias of the session's model")
def meta_learns_in_the_model() -> None:
    _meta_learns(lambda: step.inner_loop(), lambda given: given)


@alone(r"the epoch's batches are used up: iterate over epochs by `for epoch in s.epochs")
def epochs_by_range() -> None:
    for _ in range(EPOCHS):
        one_epoch()


@alone(r"after the `with s.step\(\):` block")
def agrees_inside(x: Tensor, y: Tensor) -> None:
    plain(x, y)
    s.agree(1.0)


@right(daily=True)
def gan() -> None:
    """Two models, two optimizers, two passes a step, and BatchNorm over all workers, the discriminator's called three
    times a step."""
    noise = torch.linspace(-1, 1, 8).double()
    for x, y in batches():
        with s.step(backwards=2) as step:
            optimizers["d"].zero_grad()
            false = models["g"](noise * (1 + y.double())[:, None] + x[:, 18:26])
            with step.accumulate():  # errors for real and for false samples are parts of one loss
                functional.softplus(-models["d"](x)).mean().backward()
            functional.softplus(models["d"](false.detach())).mean().backward()
            optimizers["d"].step()
            optimizers["g"].zero_grad()
            functional.softplus(-models["d"](false)).mean().backward()
            optimizers["g"].step()


@wrong("first @ second.T")
def contrastive(x: Tensor, y: Tensor) -> None:
    """InfoNCE over a worker's own part of the batch."""
    first, second = functional.normalize(model(x)), functional.normalize(model(x.flip(1)))
    learn(cross_entropy(first @ second.T / 0.1, torch.arange(len(x))))


@right(daily=True)
def gathered(x: Tensor, y: Tensor) -> None:
    """InfoNCE over the batch of all workers, with a temperature that is learnt, and a statistic over the batch."""
    first = s.gather(functional.normalize(model(x)))
    second = s.gather(functional.normalize(model(x.flip(1))))
    likeness = first @ second.T * dict(model.named_parameters())["scale"].exp()
    spread = (first - first.mean(0)).square().sum().sqrt()
    classes = cross_entropy(first, s.gather(y))
    pairs = cross_entropy(likeness, torch.arange(len(likeness)))
    learn(pairs + classes + 0.1 * spread)


@right()
def decays_after_block() -> None:
    """What a script does to parameters, buffers and values after the block counts once for each step, and what the
    block has set is there in each."""
    s.state["count"] = 0
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    s.track(scheduler=scheduler)
    for epoch in s.epochs(EPOCHS):
        model[0].weight.requires_grad_(epoch != 1)  # the step in which this is found is repeated
        for x, y in s.batches():
            with s.step():
                loss = plain(x, y)
            del loss
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.99)
                model.get_buffer("seen").add_(1)
            scheduler.step()
            s.state["count"] += 1
            tick()
    assert s.state["count"] == int(model.get_buffer("seen")) == s.steps_done


@wrong('s.state["centre"] = ')
def keeps_own_centre() -> None:
    """A running mean of what this worker has seen, in the training state."""
    s.state["centre"] = torch.zeros(10)
    for x, y in batches():
        z = model(x)
        learn(cross_entropy(z, y) + 0.1 * (z - s.state["centre"]).square().mean())
        s.state["centre"] = 0.9 * s.state["centre"] + 0.1 * z.detach().mean(0)


@wrong("register_hook")
def clips_in_hooks() -> None:
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    loop()


@wrong("chance.random()", joined=True)
def own_generator() -> None:
    """Decides by a generator of its own, which a newcomer begins anew."""
    chance = random.Random(1)
    loop(lambda x, y: plain(0.0 * x if chance.random() < 0.3 else x, y))


class Stages(TensorDataset):
    """Noise that the script makes less from stage to stage."""

    def __init__(self, *tensors: Tensor) -> None:
        super().__init__(*tensors)
        self.noise, self.reads = 1.0, 0

    def __getitem__(self, index: int) -> Any:
        self.reads += 1  # a count of its own, which workers have by right
        x, y = (each[index] for each in self.tensors)
        return x + self.noise * torch.randn_like(x), y


@wrong("dataset.noise *= 0.9", joined=True)
def stage_by_steps() -> None:
    for _ in steps():
        dataset.noise *= 0.9


@right()
def stage_by_epoch() -> None:
    for epoch in s.epochs(EPOCHS):
        dataset.noise = 1 / (1 + epoch)
        one_epoch()


def _with_centres(rows_of: Callable[[Tensor], Tensor]) -> None:
    centres = model.get_buffer("centres")
    for x, y in batches():
        hidden = model[1](model[0](x))
        rows, labels = rows_of(hidden.detach()), rows_of(y)
        learn(cross_entropy(model[2](hidden), y) + 0.1 * (hidden - centres[y]).square().sum(1).mean())
        centres.index_add_(0, labels, 0.01 * (rows - centres[labels]))


@together(r"has another buffer centres than the others: a worker changes it by its own samples.*s.gather")
def own_centres() -> None:
    """A buffer that follows a worker's own samples."""
    _with_centres(lambda rows: rows)


@right()
def gathered_centres() -> None:
    _with_centres(s.gather)


@other()
def by_ddp() -> None:
    """The loop over a DataLoader as it is, with virtual shards. Where a run of its body was given up, two have one
    number of steps; what follows its step is taken back, too."""
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    s.track(scheduler=scheduler)
    s.state["seen"] = 0
    assert len(loader) == 10 and parallel.module is s._runtime.model
    for epoch in loader.epochs(EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            for x, y in batch:
                cross_entropy(parallel(x), y).backward()
            nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)
            optimizer.step()
            s.state["seen"] += 1
            assert s.agree(torch.ones(2), "sum").tolist() == [s.size, s.size] and s.agree(2.0) == 2.0
            scheduler.step()
            tick()
        assert s.state["seen"] == s.steps_done == 10 * (epoch + 1), (s.state["seen"], s.steps_done)


@alone(r"the script caught an exception of a step and went on \(RuntimeError: out of memory\)")
def catches_exceptions() -> None:
    for x, y in batches():
        try:
            with s.step():
                if s.steps_done == 3:
                    raise RuntimeError("out of memory")  # noqa: TRY301 - as scripts do
                plain(x, y)
        except RuntimeError:
            continue


@wrong("swa.update_parameters", joined=True)
def average_by_epoch() -> None:
    swa = torch.optim.swa_utils.AveragedModel(model)
    for _ in s.epochs(EPOCHS):
        one_epoch()
        swa.update_parameters(model)


@alone(r"one row for each of this worker's 64 samples, not a tensor of shape \(128, 10\)")
def gathered_views(x: Tensor, y: Tensor) -> None:
    """Two views in one tensor: rows of workers would lie between them."""
    s.gather(model(torch.cat([x, x.flip(1)]))).sum().backward()


@alone(r"s.gather\(\) inside step.accumulate\(\)")
def gathered_in_parts(x: Tensor, y: Tensor) -> None:
    with step.accumulate():
        s.gather(model(x)).mean().backward()


@alone(r"s.mean\(\) says over how much its values are: leave weight= out")
def mean_of_weighted() -> None:
    for x, y in batches():
        with s.step(weight=(y + 1).sum()):
            s.mean(cross_entropy(model(x), y, reduction="none"), over=len(y)).backward()


@together(r"has another data set than the others: a worker sets it by its own samples")
def own_negatives() -> None:
    """Each worker draws its own, between two epochs."""
    for _ in s.epochs(EPOCHS):
        dataset.negatives = torch.randint(64, (640,), generator=seeded(int(ME)))
        one_epoch()


@alone(r"call s.gather\(\) in a step, before its last backward\(\)")
def gathered_too_late(x: Tensor, y: Tensor) -> None:
    plain(x, y)
    s.gather(x)


@wrong("out @ out.T")
def gathered_and_own(x: Tensor, y: Tensor) -> None:
    """The samples of a worker's part are compared with each other, beside gathered ones."""
    out = model(x)
    learn(cross_entropy(s.gather(out), s.gather(y)) + (out @ out.T).tril(-1).square().mean())


@together(r"is at another place of the script than the others: .*s.gather\(\)")
def gathers_on_main(x: Tensor, y: Tensor) -> None:
    out = model(x)
    optimizer.zero_grad()
    cross_entropy(out, y).backward() if not s.is_main else s.gather(out).square().mean().backward()
    optimizer.step()


@alone(r"called twice in a step, for parts of the batch \(accumulation\).*virtual_shards")
def norm_in_parts(x: Tensor, y: Tensor) -> None:
    """BatchNorm over all workers, and a batch in two parts."""
    optimizer.zero_grad()
    with step.accumulate():
        cross_entropy(model(x[:2]), y[:2]).backward()
    cross_entropy(model(x[2:]), y[2:]).backward()
    optimizer.step()


@alone(r"called after the last backward\(\) of a step: put the model into eval mode")
def norm_after_backward(x: Tensor, y: Tensor) -> None:
    """BatchNorm over all workers that sees the batch once more after the step is committed."""
    plain(x, y)
    model(x)


@right(daily=True)
def weighted() -> None:
    """A mean over class weights, of which the session is told."""
    weights = torch.linspace(0.1, 2, 10).double()
    for x, y in batches():
        with s.step(weight=weights[y].sum()):
            learn(cross_entropy(model(x), y, weights))


@right()
def unfreezes() -> None:
    """The first layer is trained from the second epoch on, with a rate of its own; the body says so."""
    model[0].requires_grad_(False)
    for epoch in s.epochs(EPOCHS):
        for x, y in s.batches():
            if epoch == 1:
                model[0].requires_grad_(True)
                if len(optimizer.param_groups) == 1:
                    optimizer.add_param_group({"params": list(model[0].parameters()), "lr": LR / 2})
            plain(x, y)
            tick()


@right(daily=True)
def shared_values() -> None:
    """A counter, an average and a generator of the script's own, in the session's state."""
    s.state["done"] = 0
    s.state["average"] = {name: each.detach().clone() for name, each in model.named_parameters()}
    s.state["chance"] = torch.Generator().manual_seed(1)
    for x, y in batches():
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


def own_order(_: int) -> list[int]:
    found: list[int] = torch.randperm(640, generator=seeded(int(ME))).tolist()
    return found


#: These lie in what the session is given: see below.
for name, kind, said in (
    ("set_by_first_batch", Kind.WRONG, ""),
    ("orders_that_differ", Kind.TOGETHER, "learns with another order of samples than the others"),
    ("splits_without_a_seed", Kind.TOGETHER, r"rank0 \(process 1\) is not like rank0 \(process 0\) in its data set"),
    ("joins", Kind.OTHER, ""),
):
    HABITS[name] = Habit(kind, loop, said, checked=name != "orders_that_differ")


@statistical()
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


@right(daily=True)
def streams() -> None:
    for epoch in s.epochs(EPOCHS):
        one_epoch()
        assert s.info.samples_done == 640 * (epoch + 1), (s.info.samples_done, epoch)


@wrong("mask.sum()")
def masked_mean(x: Tensor, y: Tensor) -> None:
    mask = x[:, 20] > 0.5
    learn((cross_entropy(model(x), y, reduction="none") * mask).sum().div(mask.sum()))


@wrong("x.std(0)")
def whitened(x: Tensor, y: Tensor) -> None:
    learn(cross_entropy(model((x - x.mean(0)) / (x.std(0) + 0.1)), y))


@wrong(".sqrt()")
def root_of_mean(x: Tensor, y: Tensor) -> None:
    learn(functional.mse_loss(model(x)[:, 0], y.double()).sqrt())


@wrong("torch.autograd.grad(")
def inner_gradients(x: Tensor, y: Tensor) -> None:
    """Meta-learning: an inner step with the gradients of this worker's samples."""
    given: dict[str, Tensor] = dict(model.named_parameters())
    call = torch.func.functional_call
    inner = cross_entropy(call(model, given, x), y)
    gradients = torch.autograd.grad(inner, list(given.values()), create_graph=True)
    moved = {name: p - 0.1 * g for (name, p), g in zip(given.items(), gradients, strict=True)}
    learn(cross_entropy(call(model, moved, x), y))


@wrong("next(other)")
def other_loader() -> None:
    """Each worker reads another loader by itself."""
    loader = DataLoader(dataset, batch_size=50, shuffle=True, generator=torch.Generator())
    other = iter(itertools.cycle(loader))
    for x, y in batches():
        also = next(other)[0][:, :32]
        wide = functional.pad(also, (0, 32))
        learn(cross_entropy(model(x), y) + model(wide).square().mean())


@wrong("detach().mean(0)")
def running_mean() -> None:
    center = torch.zeros(10).double()
    for x, y in batches():
        out = model(x)
        learn(cross_entropy(out - center, y))
        center = 0.9 * center + 0.1 * out.detach().mean(0)


@wrong("first.item() / second.item()")
def loss_weight_by_item(x: Tensor, y: Tensor) -> None:
    """Two losses, brought to one size by numbers."""
    out = model(x)
    first, second = cross_entropy(out, y), out.square().mean()
    weight = first.item() / second.item()
    learn(first + weight * second)


@right()
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


@other()
def by_the_system() -> None:
    """Every run of this script is another one."""
    chance = random.SystemRandom()
    loop(lambda x, y: plain((0.5 + chance.random()) * x, y))


def _ends_by(end: Callable[[int], Any]) -> None:
    for _ in steps():
        if s.steps_done == 3:
            end(0)


@other()
def exits() -> None:
    """Ends where a worker's own loss is low enough."""
    _ends_by(sys.exit)


@other()
def exits_at_once() -> None:
    """The same without Python's own end, as some do to be rid of threads that hang."""
    _ends_by(os._exit)


@other()
def all_reduces() -> None:
    for x, y in batches():
        plain(x, y)
    assert s.agree(torch.ones(2), "sum").tolist() == [s.size, s.size]
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


@right(daily=True)
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


@right(daily=True)
def several_means(x: Tensor, y: Tensor) -> None:
    """Energies a sample and forces a bright pixel, of which most samples have none: each over its own count."""
    out, bright = model(x), (x > 0.9).sum(1).double() * (y == 3)
    errors = cross_entropy(out, y, reduction="none")
    learn(s.mean(errors, over=len(errors)) + s.mean(out[:, 0].square() * bright, over=bright.sum()))


@right()
def sum_gathered(x: Tensor, y: Tensor) -> None:
    """A sum over a worker's own samples, each against those of all."""
    out = model(x)
    apart = torch.cdist(out, s.gather(out)).square()
    learn(0.01 * cross_entropy(out, y, reduction="sum") + 1e-5 * apart.sum())


@together(r"step 2: the gradients of rank0 \(process 1\) are not finite .*, first that of 2.bias", checked=False)
def one_infinite_element() -> None:
    """Of one gradient of one worker."""
    far = torch.zeros(10).double()
    for x, y in batches():
        if s.steps_done == 2 and ME == "1":
            far[9] = float("inf")
            model.get_parameter("2.bias").register_hook(lambda gradient: gradient + far)
        plain(x, y)


#: What a check says, one of these, of each that it can try.
VERDICTS = {
    name: {Kind.RIGHT: ("equal",), Kind.STATISTICAL: ("statistical",)}.get(kind, ("different", "wrong"))
    for kind in Kind
    for name, each in HABITS.items()
    if each.kind is kind is not Kind.OTHER and each.checked
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("habit", choices=HABITS)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--times", type=int, default=1, help="an epoch has the data so many times over")
    options = parser.parse_args()
    name, EPOCHS = options.habit, options.epochs
    logging.basicConfig(level=logging.INFO)
    torch.manual_seed(0)
    model = net()
    dataset: Any = data(options.times)
    match name:
        case "decays_after_block":
            model.register_buffer("seen", torch.zeros(()))
        case "own_centres" | "gathered_centres":
            model.register_buffer("centres", torch.zeros(10, 16).double())
        case "set_by_first_batch":
            model = nn.Sequential(FirstBatch(), *net())
        case "gathered":
            model.register_parameter("scale", nn.Parameter(torch.tensor(1.0).double()))
        case "norm_in_parts" | "norm_after_backward":
            model[1] = nn.Sequential(elastic.sync_batchnorm(nn.BatchNorm1d(16).double()), nn.Tanh())
        case "stage_by_steps" | "stage_by_epoch":
            dataset = Stages(*dataset.tensors)
        case "streams":
            dataset = elastic.Streams(open_stream, STREAMS)
        case "splits_without_a_seed":
            dataset = random_split(dataset, [512, 128], generator=seeded(int.from_bytes(os.urandom(7), "little")))[0]
    optimizer: torch.optim.Optimizer
    optimizer = torch.optim.SGD((model[2] if name == "unfreezes" else model).parameters(), lr=LR, momentum=0.9)
    given: Any = model
    stepped: Any = optimizer
    if name == "gan":
        models = {"g": net(8, 8, 64), "d": net(8, 64, 1)}
        for part, each in models.items():
            each[1] = nn.Sequential(nn.BatchNorm1d(8).double(), nn.Tanh())
            models[part] = elastic.sync_batchnorm(each)  # type: ignore[assignment]
        # (Before BatchNorm some gradients are rounding alone, which Adam would enlarge.)
        optimizers = {part: torch.optim.SGD(each.parameters(), lr=0.05) for part, each in models.items()}
        given, stepped = models, optimizers
    if name == "by_ddp":
        model[0] = nn.Linear(64, 16, bias=False).double()  # before BatchNorm, as above
        model[1] = nn.Sequential(nn.BatchNorm1d(16).double(), nn.Tanh())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        given_loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)
        parallel, loader = elastic.ddp(model, optimizer, given_loader, virtual_shards=4)
        s = loader.session
    else:
        s = elastic.Session(
            given,
            stepped,
            dataset,
            batch_size=BATCH,
            collate={"crops_less": crop, "pads": pad}.get(name),
            reduction="sum" if name == "sum_gathered" else "mean",
            options=elastic.Options(
                order=own_order if name == "orders_that_differ" else None,
                when_joining=lambda epoch, step: (HOME / f"joined-{ME}").write_text(f"{epoch} {step}"),
            ),
        )
    HABITS[name].train()
    if s.is_main:
        torch.save(s._runtime.model.state_dict(), HOME / "final.pt")
    s.finish()
