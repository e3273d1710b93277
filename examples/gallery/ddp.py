"""A script for DistributedDataParallel whose loop stays as it is: the main worker prints, the rate warms up by steps.

After pytorch/examples, distributed/ddp-tutorial-series/multigpu.py (https://github.com/pytorch/examples). Licence of
the original: BSD-3-Clause.
"""

from __future__ import annotations

import torch
from gallery_data import digits, options_of
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from malletrain import elastic


def main() -> None:
    options = options_of(__doc__)
    train, _ = digits()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))

    given = DataLoader(train, batch_size=options.batch_size, shuffle=True)
    model, loader = elastic.ddp(net, optimizer, given)
    s = loader.session
    s.track(scheduler=scheduler)
    for epoch in loader.epochs(options.epochs):
        total = torch.zeros(())
        for images, target in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), target)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            total += loss.detach()
        mean = s.agree(total.item() / len(loader))
        if s.is_main:
            print(f"epoch {epoch + 1}: {mean:.4f}", flush=True)
    s.finish()


if __name__ == "__main__":
    main()
