"""What live worlds train beside `train_digits`, in float64 so that equality shows; it keeps a diary. `train_live.py
KIND`: `norm`, BatchNorm over the whole batch; `batches`, one that follows the workers; `compiled`, a compiled model.

`--replay FILE`: alone, with the batch of each step as another run's diaries have it. `--held`: it enters its world
once a file `start-TASK` is there.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from malletrain import elastic
from malletrain.elastic.data.batch_size import Chosen

HOME = Path(os.environ["MALLETRAIN_TEST_DIR"])
TASK = os.environ.get("SLURM_ARRAY_TASK_ID", "x")
ME = f"{TASK}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
IN_WORLD = "SLURM_JOB_ID" in os.environ

parser = argparse.ArgumentParser()
parser.add_argument("kind", choices=["norm", "batches", "compiled"])
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch", type=int, default=48)
parser.add_argument("--samples", type=int, default=1797)
parser.add_argument("--step-seconds", type=float, default=0.0)
parser.add_argument("--slow-until", default="")
parser.add_argument("--sum", action="store_true")
parser.add_argument("--wait-for", type=int, default=0, help="begin with so many workers")
parser.add_argument("--held", action="store_true")
parser.add_argument("--backend", default="aot_eager")
parser.add_argument("--rate", default="linear")
parser.add_argument("--replay", default="")
options = parser.parse_args()


made: list[elastic.Session] = []


class Replayed(Chosen):
    """The batches of another run."""

    def batch(self, chosen: int, present: int) -> int:
        return int(json.loads(Path(options.replay).read_text())[made[0].steps_done])


def model_and_data() -> tuple[nn.Module, TensorDataset]:
    digits = load_digits()
    inputs = torch.tensor(digits.data) / 16
    model: nn.Module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    if options.kind == "norm":
        inputs = inputs.reshape(-1, 1, 8, 8)
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 16),
            nn.BatchNorm1d(16, affine=False, momentum=None), nn.ReLU(), nn.Linear(16, 10),
        )  # fmt: skip
    parts = [inputs, torch.tensor(digits.target), torch.arange(len(digits.target))]
    return model.double(), TensorDataset(*(part[: options.samples] for part in parts))


def wait_to_begin() -> None:
    (HOME / f"ready-{TASK}").touch()
    while len(list(HOME.glob("ready-*"))) < options.wait_for:
        time.sleep(0.01)
    while options.held and not (HOME / f"start-{TASK}").exists():
        time.sleep(0.01)


def slow(epoch: int) -> None:
    if options.step_seconds and not (options.slow_until and Path(options.slow_until).exists()):
        # The end does not come before the test lets it, however long the test's other parts take.
        time.sleep(max(options.step_seconds, 1.0) if epoch >= options.epochs // 2 else options.step_seconds)


def main() -> None:
    torch.manual_seed(0)
    model, data = model_and_data()
    if options.kind == "norm" and IN_WORLD:
        model = elastic.sync_batchnorm(model)
    if options.kind == "compiled" and IN_WORLD:
        compiled = torch.compile(model, backend=options.backend)
        assert isinstance(compiled, nn.Module)
        model = compiled
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    reduction = "sum" if options.sum else "mean"
    given: dict[str, Any] = {"batch_size": options.batch, "reduction": reduction}
    if options.kind == "batches":
        rule = (Replayed if options.replay else elastic.Chosen)(32, low=16, high=128)
        rates = elastic.LearningRate(options.rate, warm_up=512)
        given |= {"batch_size": rule, "options": elastic.Options(learning_rate=rates)}
    s = elastic.Session(model, optimizer, data, **given)
    made.append(s)
    if options.kind == "batches":
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 60, 0.8)
        average = torch.optim.swa_utils.AveragedModel(
            model, avg_fn=lambda old, new, _: old.lerp(new, 1 - 0.99 ** (s.info.batch_size / 32))
        )
        s.track(schedule=schedule, average=average)
    (HOME / f"equality-{ME}").write_text(s.info.equality)
    wait_to_begin()
    epochs = s.epochs(options.epochs)
    if options.kind == "compiled":
        torch._dynamo.config.error_on_recompile = True
    with (HOME / f"diary-{ME}.jsonl").open("a", buffering=1) as diary:
        for epoch in epochs:
            for x, y, index in s.batches():
                with s.step():
                    optimizer.zero_grad()
                    slow(epoch)
                    loss = nn.functional.cross_entropy(model(x), y, reduction=reduction)
                    (loss / options.batch if options.sum else loss).backward()
                    optimizer.step()
                    if options.kind == "batches":
                        while schedule.last_epoch < int(s.info.progress):
                            schedule.step()
                        average.update_parameters(model)
                    line = {"step": s.steps_done, "epoch": epoch, "size": s.size, "indices": index.tolist()}
                    line |= {"batch": s.info.batch_size, "gain": s.info.gain, "noise": s.info.noise_scale}
                    diary.write(json.dumps(line) + "\n")
    if s.is_main:
        final = dict(getattr(model, "_orig_mod", model).state_dict())
        if options.kind == "batches":
            final |= {f"average.{name}": tensor for name, tensor in average.module.state_dict().items()}
        torch.save(final, HOME / "final.pt")
    s.finish({"samples": s.info.samples_done})


main()
