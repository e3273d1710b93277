"""Mixed precision by hand: autocast around the forward pass, a GradScaler, and clipping of unscaled gradients.

After pytorch/tutorials, recipes_source/recipes/amp_recipe.py (https://github.com/pytorch/tutorials). Licence of the
original: BSD-3-Clause. In float32 and float16, where the parts of a sum are rounded by how a batch is divided.
"""

from __future__ import annotations

import torch
from gallery_data import digits, options_of
from torch import nn
from torch.nn import functional

from malletrain import elastic


def main() -> None:
    options = options_of(__doc__)
    torch.set_default_dtype(torch.float32)
    train, _ = digits()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    s = elastic.Session(net, opt, train, batch_size=options.batch_size)
    s.track(scaler=scaler)

    for epoch in s.epochs(options.epochs):
        for images, target in s.batches():
            with torch.autocast("cpu", dtype=torch.float16):
                output = net(images)
                loss = functional.cross_entropy(output, target)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
        if s.is_main:
            print(f"epoch {epoch + 1}: {loss.item():.4f}, scale {scaler.get_scale():.0f}", flush=True)
    s.finish()


if __name__ == "__main__":
    main()
