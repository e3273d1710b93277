"""A residual network with BatchNorm: SGD with momentum, a rate that falls every few epochs, the best accuracy kept.

After pytorch/examples, imagenet/main.py (https://github.com/pytorch/examples). Licence of the original: BSD-3-Clause.
There it runs in DistributedDataParallel, and each worker's BatchNorm sees its own part of the batch; by
`elastic.sync_batchnorm` it sees the whole batch.
"""

from __future__ import annotations

import torch
from gallery_data import digits, options_of
from torch import nn
from torch.nn import functional

from malletrain import elastic


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.down = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(out + self.down(x))


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        BasicBlock(8, 8, 1), BasicBlock(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


def main() -> None:
    options = options_of(__doc__)
    train, test = digits(samples=960)
    model = elastic.sync_batchnorm(resnet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=8, gamma=0.1)
    s = elastic.Session(model, optimizer, train, batch_size=options.batch_size)
    s.track(scheduler=scheduler)
    s.state["best"] = 0.0

    def score(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).sum()}

    for epoch in s.epochs(options.epochs):
        for images, target in s.batches():
            optimizer.zero_grad()
            functional.cross_entropy(model(images), target).backward()
            optimizer.step()
        scheduler.step()
        accuracy = s.evaluate(score, test)["accuracy"]
        if s.is_main:
            print(f"epoch {epoch + 1}: {accuracy:.3f} ({'best' if accuracy > s.state['best'] else ''})", flush=True)
        s.state["best"] = max(s.state["best"], accuracy)
    s.finish({"accuracy": s.state["best"]})


if __name__ == "__main__":
    main()
