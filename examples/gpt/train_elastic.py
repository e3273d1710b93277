"""train.py with MalleTrain; `diff -w train.py train_elastic.py` shows what a script needs for it."""

from __future__ import annotations

import argparse
import math
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from gpt_model import GPT, Text
from torch import nn

from malletrain import elastic


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", help="a file to train on")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="pieces of text a step")
    parser.add_argument("--accumulate", type=int, default=1, help="parts of a step that go through the model in turn")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--float64", action="store_true", help="no autocast: to compare results")
    parser.add_argument("--times", help="file for the seconds of each step, one a line")
    parser.add_argument("--steps", type=int, default=0, help="stop the epoch after so many")
    parser.add_argument("--save", help="file for the final model")
    return parser.parse_args()


def main() -> None:
    options = options_of()
    torch.manual_seed(0)
    train, test = (Text(options.text, options.context, part) for part in ("train", "test"))
    model = GPT(options.vocabulary, options.context, options.width, options.heads, options.layers).to(options.device)
    model = model.double() if options.float64 else model
    run = torch.compile(model) if options.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), options.rate, fused=options.device == "cuda")
    steps = options.epochs * math.ceil(len(train) / options.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min(1.0, (n + 1) / 20) * 0.5 * (1 + math.cos(math.pi * min(1.0, n / steps)))
    )
    times: list[float] = []

    def losses(batch: list[torch.Tensor]) -> torch.Tensor:
        """The loss of each piece of text."""
        x, y = (part.to(options.device) for part in batch)
        with torch.autocast(options.device, torch.bfloat16, enabled=not options.float64):
            out = run(x)
        return nn.functional.cross_entropy(out.transpose(1, 2), y, reduction="none").mean(1)

    def metrics(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            return {"loss": losses(batch).sum()}

    s = elastic.Session(model, optimizer, train, batch_size=options.batch_size)
    s.track(schedule=schedule)
    for epoch in s.epochs(options.epochs):
        began = time.perf_counter()
        for batch in s.batches():
            with s.step() as step:
                optimizer.zero_grad()
                parts = list(zip(*(part.chunk(options.accumulate) for part in batch), strict=True))
                for part in parts:
                    loss = losses(list(part)).sum() / len(batch[0])
                    with step.accumulate() if part is not parts[-1] else nullcontext():
                        loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
            if options.times:
                loss.item()
                times.append(time.perf_counter() - began)
                began = time.perf_counter()
            if len(times) == options.steps > 0:
                break
        found = s.evaluate(metrics, test, batch_size=options.batch_size)
        if s.is_main:
            print(f"epoch {epoch + 1}: test loss {found['loss']:.4f} on {s.size} workers", flush=True)
    s.finish(found)
    if options.times and s.is_main:
        Path(options.times).write_text("".join(f"{seconds}\n" for seconds in times))
    if options.save and s.is_main:
        torch.save(model.state_dict(), options.save)


if __name__ == "__main__":
    main()
