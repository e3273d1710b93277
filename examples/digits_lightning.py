"""Digits with Lightning: a plain LightningModule, and a Trainer with `ElasticStrategy`."""

from __future__ import annotations

import argparse
import logging

import lightning
import torch
from digits_data import digits
from torch import nn
from torch.utils.data import DataLoader

from malletrain.elastic.adapters.lightning import ElasticStrategy


class Classifier(lightning.LightningModule):
    """A small network. `one_cycle`: a schedule over all steps of the training; `plateau`: one by the accuracy."""

    def __init__(self, *, one_cycle: bool = False, plateau: bool = False) -> None:
        super().__init__()
        self.one_cycle, self.plateau = one_cycle, plateau
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 10))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(pixels)
        return logits

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        pixels, labels = batch
        return nn.functional.cross_entropy(self(pixels), labels)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        pixels, labels = batch
        self.log("accuracy", (self(pixels).argmax(1) == labels).double().mean(), batch_size=len(labels))

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=5e-3)
        if self.one_cycle:
            steps = int(self.trainer.estimated_stepping_batches)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
        if self.plateau:
            slower = torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, "max", factor=0.5, patience=0, threshold=0.2
            )
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": slower, "monitor": "accuracy"}}
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of a step, over all workers")
    parser.add_argument("--output", default="digits-lightning")
    parser.add_argument("--one-cycle", action="store_true", help="a learning rate that rises and falls, by step")
    parser.add_argument(
        "--plateau", action="store_true", help="a learning rate that falls as the accuracy stands still"
    )
    parser.add_argument("--precision", default="32-true", help="as Lightning calls it, such as bf16-true")
    parser.add_argument("--double", action="store_true", help="train in float64")
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if options.double:
        torch.set_default_dtype(torch.float64)
    train, test = digits(image=False, dtype=torch.get_default_dtype())

    strategy = ElasticStrategy(train, batch_size=options.batch_size)
    trainer = lightning.Trainer(
        strategy=strategy, plugins=strategy.plugins(), max_epochs=options.epochs, num_sanity_val_steps=0,
        default_root_dir=options.output,
        gradient_clip_val=1.0, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        precision="64-true" if options.double else options.precision,
    )  # fmt: skip
    module = Classifier(one_cycle=options.one_cycle, plateau=options.plateau)
    trainer.fit(module, strategy.loader(), DataLoader(test, batch_size=120))
    print(f"accuracy {float(trainer.callback_metrics['accuracy']):.3f}", flush=True)


if __name__ == "__main__":
    main()
