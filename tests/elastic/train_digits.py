"""What a researcher would write, on real data (scikit-learn's handwritten digits), in float64 so that equality shows.

Keeps a diary: one line for each committed step, written inside the step. In a world `--norm` and `--compiled` change
the model; alone it is the plain one, to compare with.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any, cast

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from malletrain import elastic
from malletrain.elastic.step import Step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--slow-until", default="", help="sleep in each step only until this file is there")
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--fail", default="", help="PLACE:STEP: in a step or before it, between two, before training")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--shards", type=int, default=0, help="BatchNorm and dropout, by so many virtual shards")
    parser.add_argument("--clip", action="store_true", help="accumulate over two parts, clip")
    parser.add_argument("--body", action="store_true", help="the loop's body is the step, without a block")
    parser.add_argument("--by-share", action="store_true", help="a loss that depends on the worker's own share")
    parser.add_argument("--checkpoint-s", type=float, default=600.0)
    parser.add_argument("--float32", action="store_true")
    parser.add_argument("--autocast", action="store_true", help="in bfloat16")
    parser.add_argument("--world", default="", help="of processes started together: environment or mpi")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--loaders", type=int, default=0)
    parser.add_argument("--report", action="store_true", help="the number of each step")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--wait-for", type=int, default=0, help="begin with so many workers")
    parser.add_argument("--held", action="store_true", help="begin once there is a file start-WORKER")
    parser.add_argument("--samples", type=int, default=1797)
    parser.add_argument("--sum", action="store_true", help="a loss that is a sum")
    parser.add_argument("--norm", action="store_true", help="BatchNorm over the whole batch")
    parser.add_argument("--compiled", default="", help="by this backend")
    parser.add_argument(
        "--batches", action="store_true", help="a batch that follows the workers, rates that follow it"
    )
    parser.add_argument("--replay", type=Path, help="with the batch of each step as in this file")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    home = Path(os.environ["MALLETRAIN_TEST_DIR"])
    task = os.environ.get("SLURM_ARRAY_TASK_ID") or os.environ.get("RANK", "x")
    me = f"{task}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    if "LOCAL_RANK" in os.environ:
        me += f".{os.environ['LOCAL_RANK']}"
    model = nn.Sequential(nn.Linear(64, options.width), nn.ReLU(), nn.Linear(options.width, 10)).double()
    if options.shards:
        layers = [nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10)]
        model = nn.Sequential(*layers).double()
    if options.norm:
        model = nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
            nn.Linear(144, 16), nn.BatchNorm1d(16, affine=False, momentum=None), nn.ReLU(), nn.Linear(16, 10),
        ).double()  # fmt: skip
    trained: nn.Module = model
    if "SLURM_JOB_ID" in os.environ:
        trained = elastic.sync_batchnorm(model) if options.norm else model
        trained = cast(nn.Module, torch.compile(model, backend=options.compiled)) if options.compiled else trained
    dtype = torch.float32 if options.float32 or options.autocast else torch.float64
    model.to(options.device, dtype)
    optimizer: torch.optim.Optimizer
    if options.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.9)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=dtype) / 16, torch.tensor(digits.target)
    dataset = TensorDataset(*(part[: options.samples] for part in (x, y, torch.arange(len(y)))))
    world = None
    if options.world == "environment":
        world = elastic.environment_world(os.environ)
    elif options.world == "mpi":
        world = elastic.mpi_world()

    class Replayed(elastic.Chosen):
        """The batch of each step is that of another run."""

        def batch(self, chosen: int, present: int) -> int:
            return batches[s.steps_done]

    batches: list[int] = json.loads(options.replay.read_text()) if options.replay else []
    rule = (Replayed if options.replay else elastic.Chosen)(32, low=16, high=128)
    s = elastic.Session(
        trained, optimizer, dataset, batch_size=rule if options.batches else options.batch,
        virtual_shards=options.shards or None, seed=options.seed, reduction="sum" if options.sum else "mean",
        options=elastic.Options(
            checkpoint_s=options.checkpoint_s, world=world, loaders=options.loaders,
            learning_rate=elastic.LearningRate("sqrt", warm_up=512) if options.batches else elastic.LearningRate(),
            when_main=lambda: (home / "mains").open("a").write(f"{me}\n"),
        ),
    )  # fmt: skip
    if options.batches:
        average = torch.optim.swa_utils.AveragedModel(
            model, avg_fn=lambda old, new, _: old.lerp(new, 1 - 0.99 ** (s.info.batch_size / 32))
        )
        s.track(average=average)
    s.track(scheduler=scheduler)
    (home / f"equality-{me}").write_text(s.info.equality)

    def fail(place: str) -> None:
        if options.fail == f"{place}:{s.steps_done}":
            raise RuntimeError(f"made to fail {place}")

    fail("before training")
    slow_by = float(os.environ.get("SLOW_BY", "0"))

    def backward(batch: Any, step: Step) -> list[int]:
        """The indices of the samples that it was for."""
        loss = nn.functional.cross_entropy
        if options.shards:
            indices: list[int] = []
            for x, y, index in batch:
                loss(model(x), y).backward()
                indices += index.tolist()
            return indices
        x, y, index = (part.to(options.device) for part in batch)
        if options.clip and len(y) > 1:
            half = len(y) // 2
            with step.accumulate():
                (loss(model(x[:half]), y[:half], reduction="sum") / len(y)).backward()
            (loss(model(x[half:]), y[half:], reduction="sum") / len(y)).backward()
        else:
            with torch.autocast(options.device, torch.bfloat16, enabled=options.autocast):
                value = loss(trained(x), y, reduction="sum" if options.sum else "mean")
                value = value / options.batch if options.sum else value * len(y) if options.by_share else value
            value.backward()
        used: list[int] = index.tolist()
        return used

    def metrics(batch: Any) -> dict[str, torch.Tensor]:
        out, y = model(batch[0].to(options.device)), batch[1].to(options.device)
        return {
            "loss": nn.functional.cross_entropy(out, y, reduction="sum"),
            "right": (out.argmax(1) == y).sum(),
        }

    def flip_once(bit: int) -> None:
        """Of the least element of the next gradient: its weight grows, and does not merely silence a unit."""

        def flip(gradient: torch.Tensor) -> None:
            hook.remove()
            flat = gradient.reshape(-1)
            flat.numpy().view("u8")[int(flat.argmin())] ^= 1 << bit

        hook = next(model.parameters()).register_hook(flip)

    (home / f"here-{me}").touch()
    while len(list(home.glob("here-*"))) < options.wait_for:
        time.sleep(0.01)
    while options.held and not (home / f"start-{me}").exists():
        time.sleep(0.01)
    epochs = s.epochs(options.epochs)
    if options.compiled:
        torch._dynamo.config.error_on_recompile = True
    with (home / f"diary-{me}.jsonl").open("a", buffering=1) as diary:
        for epoch in epochs:
            for batch in s.batches():
                if os.environ.get("FLIP_AT") == str(s.steps_done):  # damaged memory: a bit of a parameter
                    next(model.parameters()).detach().numpy().view("u8")[3, 5] ^= 1 << 54
                    del os.environ["FLIP_AT"]
                if (at := os.environ.get("FLIP_GRADIENT_AT", "").partition(":"))[0] == str(s.steps_done):
                    del os.environ["FLIP_GRADIENT_AT"]
                    flip_once(int(at[2]))
                fail("before a step")
                before = s.steps_done
                with contextlib.nullcontext(s.step()) if options.body else s.step() as step:
                    optimizer.zero_grad()
                    if options.step_seconds and not (options.slow_until and Path(options.slow_until).exists()):
                        # The end does not come before the test lets it, however long the test's other parts take.
                        late = epoch >= options.epochs // 2
                        time.sleep(max(options.step_seconds, 1.0) if late else options.step_seconds)
                    if slow_by:
                        time.sleep(slow_by * len(batch[1]))
                    fail("in a step")
                    if options.report:
                        s.report(begun=s.steps_done)
                    indices = backward(batch, step)
                    if options.report:
                        s.report(step=s.steps_done)
                    if options.clip:
                        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
                    due = int(s.info.progress) if options.batches else scheduler.last_epoch + 1
                    while scheduler.last_epoch < due:
                        scheduler.step()
                    if options.batches:
                        average.update_parameters(model)
                    line = {"step": s.steps_done, "task": task, "epoch": epoch, "size": s.size}
                    line |= {"indices": indices if s.info.share else [], "at": time.time()}
                    line |= {"batch": s.info.batch_size, "noise": s.info.noise_scale}
                    if s.steps_done > before:
                        diary.write(json.dumps(line) + "\n")
                fail("between steps")
            if options.evaluate:
                figures = s.evaluate(metrics, batch_size=50)
                diary.write(json.dumps({"evaluated": epoch, **figures}) + "\n")
    final = s.evaluate(metrics, batch_size=50)
    if s.is_main:
        state = dict(model.state_dict())
        if options.batches:
            state |= {f"average.{name}": each for name, each in average.module.state_dict().items()}
        torch.save(state, home / "final.pt")
        (home / "figures.json").write_text(json.dumps(final))
    s.finish({**final, "samples": s.info.samples_done})


if __name__ == "__main__":
    main()
