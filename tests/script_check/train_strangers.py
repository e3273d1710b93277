"""Training loops as a stranger brings them, in single precision, each right or wrong as its list says."""

from __future__ import annotations

import copy
import functools
import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, WeightedRandomSampler

from malletrain import elastic

ROWS, WIDE, CLASSES, BATCH, EPOCHS = 384, 12, 4, 32, 6


def blobs(rows: int = ROWS) -> TensorDataset:
    chance = torch.Generator().manual_seed(7)
    labels = torch.randint(CLASSES, (rows,), generator=chance)
    centres = 1.5 * torch.randn(CLASSES, WIDE, generator=chance)
    return TensorDataset(centres[labels] + torch.randn(rows, WIDE, generator=chance), labels)


def mlp(out: int = CLASSES) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDE, 24), nn.Tanh(), nn.Linear(24, out))


def parts(rate: float = 0.1) -> tuple[nn.Sequential, torch.optim.Optimizer, elastic.Session]:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    loader = DataLoader(blobs(), batch_size=BATCH, shuffle=True)
    return model, optimizer, elastic.Session(model, optimizer, loader)


def mean_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), y)


def _train(
    s: elastic.Session,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    epochs: int = EPOCHS,
) -> elastic.Session:
    """The plain loop, of those whose peculiarity lies elsewhere."""
    for _ in s.epochs(epochs):
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                loss_of(x, y).backward()
                optimizer.step()
    return s


# --- right --------------------------------------------------------------------------------------------------------


def accumulates_in_a_step() -> None:
    model, optimizer, s = parts()
    for _ in s.epochs(EPOCHS):
        for x, y in s.batches():
            with s.step() as step:
                optimizer.zero_grad()
                chunks = list(zip(x.split(4), y.split(4), strict=True))
                for at, (some, labels) in enumerate(chunks):
                    loss = functional.cross_entropy(model(some), labels) * len(some) / len(x)
                    if at + 1 < len(chunks):
                        with step.accumulate():
                            loss.backward()
                    else:
                        loss.backward()
                optimizer.step()
    s.finish()


def averages_tracked() -> None:
    model, optimizer, s = parts()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    s.track(average=average)
    for _ in s.epochs(EPOCHS):
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                average.update_parameters(model)
    s.finish()


def cosine_by_epoch() -> None:
    model, optimizer, s = parts()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
    s.track(scheduler=scheduler)
    history = []
    for epoch in s.epochs(EPOCHS):
        total = 0.0
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                total += loss.item()
        scheduler.step()
        history.append(total)
        if s.is_main:
            print(epoch, total, scheduler.get_last_lr())
    s.finish()


def stops_early() -> None:
    model, optimizer, s = parts()
    held_out = TensorDataset(*(each[:64] for each in blobs(448).tensors))

    def metrics(batch: list[Tensor]) -> dict[str, Tensor]:
        return {"loss": functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")}

    s.state["best"], s.state["bad"] = math.inf, 0
    for _ in s.epochs(EPOCHS):
        model.train()
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        model.eval()
        score = s.evaluate(metrics, held_out)["loss"]
        if score < s.state["best"]:
            s.state["best"], s.state["bad"] = score, 0
        else:
            s.state["bad"] += 1
        if s.agree(s.state["bad"] >= 3, "any"):
            break
    s.finish()


def plateau() -> None:
    model, optimizer, s = parts()
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    s.track(scheduler=scheduler)
    for _ in s.epochs(EPOCHS):
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        scheduler.step(1 - s.evaluate(functools.partial(right, model), blobs(64))["right"])
    s.finish()


def weighted_sampler() -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    dataset = blobs()
    counts = torch.bincount(dataset.tensors[1], minlength=CLASSES).double()
    weights = 1.0 / counts[dataset.tensors[1]]
    sampler = WeightedRandomSampler(weights.tolist(), num_samples=ROWS)
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    s = elastic.Session(model, optimizer, loader)
    _train(s, optimizer, functools.partial(mean_loss, model)).finish()


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDE, 24), nn.Tanh())
        self.kind, self.size, self.present = nn.Linear(24, CLASSES), nn.Linear(24, 2), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.body(x)
        return self.kind(h), self.size(h), self.present(h)[:, 0]


def several_heads() -> None:
    model = Heads()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    s = elastic.Session(model, optimizer, DataLoader(blobs(), batch_size=BATCH, shuffle=True))
    for _ in s.epochs(EPOCHS):
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                kind, size, present = model(x)
                there = y > 0
                boxes = functional.smooth_l1_loss(size[there], x[there, :2], reduction="none")
                classes = functional.cross_entropy(kind[there], y[there], reduction="none")
                loss = s.mean(classes, over=there.sum()) + 2.0 * s.mean(boxes.sum(1), over=there.sum())
                loss = loss + functional.binary_cross_entropy_with_logits(present, there.float())
                loss.backward()
                optimizer.step()
    s.finish()


def half_precision() -> None:
    model, optimizer, s = parts(0.05)
    for _ in s.epochs(EPOCHS):
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad(set_to_none=True)
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
    s.finish()


def clips_gradients() -> None:
    model, optimizer, s = parts()
    norms = []
    for _ in s.epochs(EPOCHS):
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
                optimizer.step()
    s.finish()


def smooths_labels() -> None:
    model, optimizer, s = parts()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    running, correct, seen = 0.0, 0, 0
    for epoch in s.epochs(EPOCHS):
        running, correct, seen = 0.0, 0, 0
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                out = model(x)
                loss = criterion(out, y)
                loss.backward()
                optimizer.step()
                running += loss.item() * len(x)
                correct += int((out.argmax(1) == y).sum())
                seen += len(x)
        print(f"epoch {epoch}: loss {running / max(1, seen):.3f} accuracy {correct / max(1, seen):.3f}")
    s.finish()


def synced_norm() -> None:
    plain = nn.Sequential(nn.Linear(WIDE, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, CLASSES))
    model = elastic.sync_batchnorm(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    s = elastic.Session(model, optimizer, DataLoader(blobs(), batch_size=BATCH, shuffle=True, drop_last=True))
    _train(s, optimizer, functools.partial(mean_loss, model)).finish()


class Sentences(Dataset[Any]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        chance = torch.Generator().manual_seed(at)
        label = at % CLASSES
        return torch.randint(20, (3 + at % 7,), generator=chance) + 10 * label, label


def pad(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor, Tensor]:
    tokens = nn.utils.rnn.pad_sequence([each for each, _ in samples], batch_first=True)
    return tokens, torch.tensor([len(each) for each, _ in samples]), torch.tensor([label for _, label in samples])


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.read, self.out = nn.Embedding(64, 8), nn.GRU(8, 16, batch_first=True), nn.Linear(16, CLASSES)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embed(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        _, last = self.read(packed)
        out: Tensor = self.out(last[0])
        return out


def packed_sequences() -> None:
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = DataLoader(Sentences(), batch_size=BATCH, shuffle=True, collate_fn=pad)
    s = elastic.Session(model, optimizer, loader, warm_up=lambda batch: model(batch[0], batch[1]))
    for _ in s.epochs(EPOCHS):
        for tokens, lengths, labels in s.batches():
            with s.step():
                optimizer.zero_grad()
                functional.cross_entropy(model(tokens, lengths), labels).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
    s.finish()


# --- wrong --------------------------------------------------------------------------------------------------------


def _wrong(loss_of: Callable[[nn.Module, Tensor, Tensor], Tensor], rate: float = 0.1) -> None:
    model, optimizer, s = parts(rate)
    _train(s, optimizer, functools.partial(loss_of, model)).finish()


def average_by_hand() -> None:
    model, optimizer, s = parts()
    teacher = {name: each.detach().clone() for name, each in model.state_dict().items()}
    for _ in s.epochs(EPOCHS):
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                for name, each in model.state_dict().items():
                    teacher[name].mul_(0.95).add_(each.detach(), alpha=0.05)
    s.finish()


def dice_of_the_batch() -> None:
    def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        shares, wanted = model(x).softmax(1), functional.one_hot(y, CLASSES).float()
        met = 2 * (shares * wanted).sum(0) + 1
        return torch.mean(1 - met / (shares.sum(0) + wanted.sum(0) + 1))

    _wrong(loss_of, rate=0.5)


def focal_by_positives() -> None:
    def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        wanted = functional.one_hot(y, CLASSES).float()[:, 1:]
        each = functional.binary_cross_entropy_with_logits(model(x)[:, 1:], wanted, reduction="none")
        return each.sum() / wanted.sum().clamp(min=1)

    _wrong(loss_of, rate=0.02)


def balanced_by_the_batch() -> None:
    def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        counts = torch.bincount(y, minlength=CLASSES).clamp(min=1)
        return functional.cross_entropy(model(x), y, weight=len(y) / (CLASSES * counts.float()))

    _wrong(loss_of)


def scaled_by_the_largest() -> None:
    _wrong(lambda model, x, y: functional.cross_entropy(model(x / x.abs().max()), y), rate=0.3)


def warms_up_by_a_counter() -> None:
    model, optimizer, s = parts()
    step = 0
    for _ in s.epochs(EPOCHS):
        for x, y in s.batches():
            step += 1
            for group in optimizer.param_groups:
                group["lr"] = 0.1 * min(1.0, step / 50)
            with s.step():
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
    s.finish()


def hardest_negative() -> None:
    def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        rows = functional.normalize(model(x), dim=1)
        apart = torch.cdist(rows, rows)
        same = y[:, None] == y[None, :]
        far = apart.masked_fill(~same, -1.0).max(1).values
        near = apart.masked_fill(same, 9.0).min(1).values
        return functional.relu(far - near + 0.3).mean()

    _wrong(loss_of)


def moving_baseline() -> None:
    model, optimizer, s = parts(0.05)
    baseline = 0.0
    for _ in s.epochs(EPOCHS):
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                chances = model(x).log_softmax(1)
                rewards = (chances.detach().argmax(1) == y).float()
                taken = chances.gather(1, y[:, None])[:, 0]
                loss = -((rewards - baseline) * taken).mean()
                loss.backward()
                optimizer.step()
                baseline = 0.9 * baseline + 0.1 * rewards.mean().item()
    s.finish()


def perplexity() -> None:
    _wrong(lambda model, x, y: functional.cross_entropy(model(x), y).exp(), rate=0.02)


def halves_by_loss() -> None:
    model, optimizer, s = parts(0.5)
    last = math.inf
    for _ in s.epochs(EPOCHS):
        total = 0.0
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                total += loss.item()
        if total > 0.9 * last:
            for group in optimizer.param_groups:
                group["lr"] /= 2
        last = total
    s.finish()


class Normaliser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDE))
        self.inner = mlp()

    def forward(self, x: Tensor) -> Tensor:
        mean: Any = self.mean
        if self.training:
            mean.lerp_(x.mean(0), 0.1)
        out: Tensor = self.inner(x - mean)
        return out


def normalises_inputs() -> None:
    model = Normaliser()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    s = elastic.Session(model, optimizer, DataLoader(blobs(), batch_size=BATCH, shuffle=True))
    _train(s, optimizer, functools.partial(mean_loss, model)).finish()


def averages_from_a_counter() -> None:
    model, optimizer, s = parts()
    average, made = copy.deepcopy(model), 0
    for _ in s.epochs(EPOCHS):
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        made += 1  # noqa: SIM113 - a worker that joins begins it anew
        with torch.no_grad():
            for mine, other in zip(average.parameters(), model.parameters(), strict=True):
                mine.add_(other - mine, alpha=1 / (made + 1))
    s.finish()


def drops_the_easy() -> None:
    def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        each = functional.cross_entropy(model(x), y, reduction="none")
        return each.topk(max(1, len(each) // 2)).values.mean()

    _wrong(loss_of)


# --- several sessions: folds, stages ------------------------------------------------------------------------------


def _epochs(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Dataset[Any],
    loss_of: Callable[[Tensor, Tensor], Tensor],
    epochs: int = 4,
) -> elastic.Session:
    s = elastic.Session(model, optimizer, DataLoader(data, batch_size=BATCH, shuffle=True))
    return _train(s, optimizer, loss_of, epochs)


def right(model: nn.Module, batch: list[Tensor]) -> dict[str, Tensor]:
    return {"right": (model(batch[0]).argmax(1) == batch[1]).sum()}


def _folds(loss_of: Callable[[nn.Module, int, Tensor, Tensor], Tensor]) -> None:
    data, scores = blobs(), []
    for fold in range(3):
        held = range(fold, ROWS, 3)
        torch.manual_seed(fold)
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        train = Subset(data, [at for at in range(ROWS) if at not in held])
        s = _epochs(model, optimizer, train, functools.partial(loss_of, model, fold))
        score = s.evaluate(functools.partial(right, model), Subset(data, held))
        scores.append(score["right"])
        s.finish(score)
    print(sum(scores) / len(scores))


def folds() -> None:
    _folds(lambda model, fold, x, y: functional.cross_entropy(model(x), y))


def folds_of_which_one_is_wrong() -> None:
    def loss_of(model: nn.Module, fold: int, x: Tensor, y: Tensor) -> Tensor:
        counts = (y > 0) | (fold > 0)
        return functional.cross_entropy(model(x)[counts], y[counts])

    _folds(loss_of)


def pretrains() -> None:
    body, decode, head = nn.Sequential(nn.Linear(WIDE, 24), nn.Tanh()), nn.Linear(24, WIDE), nn.Linear(24, CLASSES)
    model = nn.ModuleDict({"body": body, "decode": decode, "head": head})
    whole = [*body.parameters(), *decode.parameters()]
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(whole, lr=1e-2)
    _epochs(model, optimizer, blobs(), lambda x, _: (decode(body(x)) - x).square().mean()).finish()
    decode.requires_grad_(False)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.05, momentum=0.9)
    _epochs(model, optimizer, blobs(160), lambda x, y: functional.cross_entropy(head(body(x)), y)).finish()


def _stages(scaled_by: Callable[[int, nn.Module], float]) -> None:
    body, head = nn.Sequential(nn.Linear(WIDE, 24), nn.ReLU()), nn.Linear(24, CLASSES)
    model = nn.Sequential(body, head)
    body.requires_grad_(False)
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
    seen = 0

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        nonlocal seen
        seen += 1
        return functional.cross_entropy(model(x), y)

    _epochs(model, optimizer, blobs(), loss_of, 2).finish()
    body.requires_grad_(True)
    scale = scaled_by(seen, head)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    _epochs(model, optimizer, blobs(), lambda x, y: scale * functional.cross_entropy(model(x), y)).finish()


def stages() -> None:
    _stages(lambda seen, head: float(head.state_dict()["weight"].norm()))


def stages_by_what_was_seen() -> None:
    """A worker that joins the second one has seen nothing of the first."""
    _stages(lambda seen, head: float(head.state_dict()["weight"].norm()) if seen else 1.0)


RIGHT = (
    accumulates_in_a_step, averages_tracked, cosine_by_epoch, stops_early, plateau, weighted_sampler,
    several_heads, half_precision, clips_gradients, smooths_labels, synced_norm, packed_sequences, folds, pretrains,
    stages,
)  # fmt: skip

WRONG = (
    average_by_hand, dice_of_the_batch, focal_by_positives, balanced_by_the_batch, scaled_by_the_largest,
    warms_up_by_a_counter, hardest_negative, moving_baseline, perplexity, halves_by_loss, normalises_inputs,
    averages_from_a_counter, drops_the_easy, folds_of_which_one_is_wrong, stages_by_what_was_seen,
)  # fmt: skip


def names(some: Iterable[Any]) -> list[str]:
    return [each.__name__ for each in some]


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[sys.argv[1]]()
