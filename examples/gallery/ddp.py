"""A script for DistributedDataParallel whose loop stays as it is: rank 0 prints, the rate warms up by steps.

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
from malletrain.elastic import distributed as dist


def main() -> None:
    options = options_of(__doc__)
    train, _ = digits()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))

    dist.init_process_group("gloo")
    given = DataLoader(train, batch_size=options.batch_size, shuffle=True)
    model, loader = elastic.ddp(net, optimizer, given)
    loader.session.track(scheduler=scheduler)
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
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: {total.item() / len(loader):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
