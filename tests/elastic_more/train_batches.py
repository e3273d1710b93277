"""A script whose batch follows the number of workers, in float64 so that equality shows; it keeps a diary.

`--replay FILE`: alone, with the batch of each step as another run's diaries have it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from malletrain import elastic
from malletrain.elastic.data.batch_size import BatchRule


class Replayed:
    """The batches of another run."""

    def __init__(self, batches: list[int], reference: int) -> None:
        self.batches, self.reference = batches, reference
        self.session: elastic.Session | None = None

    def batch(self, workers: int, chosen: int, present: int) -> int:
        assert self.session is not None
        return self.batches[self.session.steps_done]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rule", default="per-worker")
    parser.add_argument("--rate", default="linear")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--slow-until", default="")
    parser.add_argument("--replay", default="")
    options = parser.parse_args()
    torch.manual_seed(0)
    home = Path(os.environ["MALLETRAIN_TEST_DIR"])
    me = f"{os.environ.get('SLURM_ARRAY_TASK_ID', 'x')}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    digits = load_digits()
    count = torch.arange(len(digits.target))
    data = TensorDataset(torch.tensor(digits.data) / 16, torch.tensor(digits.target), count)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    rules: dict[str, BatchRule] = {
        "per-worker": elastic.PerWorker(32, limit=96),
        "chosen": elastic.Chosen(32, low=16, high=128),
    }
    replayed = Replayed(json.loads(Path(options.replay).read_text()), 32) if options.replay else None
    rule: BatchRule = replayed or rules[options.rule]
    rates = elastic.LearningRate(options.rate, warm_up=512)
    s = elastic.Session(model, optimizer, data, batch_size=rule, options=elastic.Options(learning_rate=rates))
    if replayed:
        replayed.session = s
    schedule = elastic.Schedule(torch.optim.lr_scheduler.StepLR(optimizer, 60, 0.8), s)
    average = torch.optim.swa_utils.AveragedModel(
        model, avg_fn=lambda old, new, _: old.lerp(new, 1 - s.info.decay(0.99))
    )
    s.track(schedule=schedule, average=average)
    with (home / f"diary-{me}.jsonl").open("a", buffering=1) as diary:
        for epoch in s.epochs(options.epochs):
            for x, y, index in s.batches():
                with s.step():
                    optimizer.zero_grad()
                    if options.step_seconds and not (options.slow_until and Path(options.slow_until).exists()):
                        # The end does not come before the test lets it, however long the test's other parts take.
                        late = epoch >= options.epochs // 2
                        time.sleep(max(options.step_seconds, 1.0) if late else options.step_seconds)
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
                    schedule.step()
                    average.update_parameters(model)
                    line = {"step": s.steps_done, "epoch": epoch, "size": s.size, "indices": index.tolist()}
                    line |= {
                        "batch": s.info.batch_size,
                        "gain": s.info.gain,
                        "noise": s.info.noise_scale,
                        "at": time.time(),
                    }
                    diary.write(json.dumps(line) + "\n")
    if s.is_main:
        averaged = {f"average.{name}": tensor for name, tensor in average.module.state_dict().items()}
        torch.save({**model.state_dict(), **averaged}, home / "final.pt")
    s.finish({"samples": s.info.samples_done})


main()
