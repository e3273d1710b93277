"""train_resnet.py with MalleTrain; `diff -w` of the two shows what a script needs for it."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from resnet_data import Images, model_named
from torch import nn

from malletrain import elastic


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path, help="a folder with train/CLASS/... and val/CLASS/...")
    parser.add_argument("--model", default="resnet50", help="of torchvision, or tiny")
    parser.add_argument("--size", type=int, default=224, help="pixels of a side")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--loaders", type=int, default=0, help="processes that load images ahead")
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--float64", action="store_true", help="no autocast: to compare results")
    parser.add_argument("--save", help="file for the final model")
    return parser.parse_args()


def main() -> None:
    options = options_of()
    torch.manual_seed(0)
    folders = [options.images / part if options.images else None for part in ("train", "val")]
    train, test = Images(folders[0], options.size, train=True), Images(folders[1], options.size, train=False)
    model = elastic.sync_batchnorm(model_named(options.model, train.classes))
    model = model.double() if options.float64 else model
    model = model.to(options.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    run = torch.compile(model) if options.compile else model
    optimizer = torch.optim.SGD(model.parameters(), options.rate, momentum=0.9, weight_decay=1e-4, nesterov=True)
    steps = options.epochs * math.ceil(len(train) / options.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min(1.0, (n + 1) / (0.05 * steps)) * 0.5 * (1 + math.cos(math.pi * min(1.0, n / steps)))
    )
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(images: torch.Tensor) -> torch.Tensor:
        images = images.to(options.device, next(model.parameters()).dtype, memory_format=torch.channels_last)
        with torch.autocast(options.device, torch.bfloat16, enabled=not options.float64):
            out: torch.Tensor = run(images)
        return out

    def metrics(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            return {"right": (forward(batch[0]).argmax(1) == batch[1].to(options.device)).sum()}

    s = elastic.Session(
        model, optimizer, train, batch_size=options.batch_size, options=elastic.Options(loaders=options.loaders)
    )
    s.track(schedule=schedule)
    for epoch in s.epochs(options.epochs):
        model.train()
        for images, labels in s.batches():
            optimizer.zero_grad()
            loss = loss_of(forward(images), labels.to(options.device))
            loss.backward()
            optimizer.step()
            schedule.step()
        model.eval()
        found = s.evaluate(metrics, test)
        if s.is_main:
            print(f"epoch {epoch + 1}: {found['right']:.4f} right on {s.size} workers", flush=True)
    s.finish(found)
    if options.save and s.is_main:
        torch.save(model.state_dict(), options.save)


if __name__ == "__main__":
    main()
