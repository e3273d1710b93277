"""Training loops with what no habit of `train_habits.py` has, an end of their own or several sessions, in single
precision; each right or wrong as its list says."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

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


def open_stream(number: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    dataset = blobs()
    chance = torch.Generator().manual_seed(1000 * epoch + number)
    for at in torch.randperm(ROWS // 6, generator=chance).tolist():
        yield dataset[6 * at + number]


def streams() -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    s = elastic.Session(model, optimizer, elastic.Streams(open_stream, 6), batch_size=BATCH)
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


RIGHT = (stops_early, plateau, streams, packed_sequences, folds, pretrains, stages)

WRONG = (folds_of_which_one_is_wrong, stages_by_what_was_seen)


def names(some: Iterable[Any]) -> list[str]:
    return [each.__name__ for each in some]


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[sys.argv[1]]()
