"""Digits with accelerate: mixed precision and clipping are accelerate's, workers and batches the session's."""

from __future__ import annotations

import argparse

import torch
from digits_data import digits
from torch import nn

from malletrain import elastic
from malletrain.elastic.adapters.accelerate import ElasticAccelerator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of a step, over all workers")
    parser.add_argument("--mixed-precision", choices=["no", "bf16"], default="no")
    parser.add_argument("--double", action="store_true", help="train in float64")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if options.double:
        torch.set_default_dtype(torch.float64)
    train, test = digits(image=False, dtype=torch.get_default_dtype())

    accelerator = ElasticAccelerator(mixed_precision=options.mixed_precision, cpu=not torch.cuda.is_available())
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 10))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=2e-3))
    s = elastic.Session(model, optimizer.optimizer, train, batch_size=options.batch_size)
    accelerator.attach(s)

    def score(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        pixels, labels = (part.to(accelerator.device) for part in batch)
        return {"accuracy": (model(pixels).argmax(1) == labels).sum()}

    for _ in s.epochs(options.epochs):
        for batch in s.batches():
            pixels, labels = (part.to(accelerator.device) for part in batch)
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(pixels), labels))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    figures = s.evaluate(score, test)
    accelerator.print(f"accuracy {figures['accuracy']:.3f}", flush=True)
    s.finish(figures)


if __name__ == "__main__":
    main()
