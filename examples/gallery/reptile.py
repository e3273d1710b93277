"""Reptile: a copy of the model trains on each task, and the model moves towards the copies.

After openai/supervised-reptile, supervised_reptile/reptile.py (https://github.com/openai/supervised-reptile). Licence
of the original: MIT.
"""

from __future__ import annotations

import copy

import torch
from gallery_data import Tasks, digits, options_of
from torch import nn
from torch.nn import functional

from malletrain import elastic

INNER_STEPS, INNER_RATE, META_RATE = 4, 0.2, 0.5


def main() -> None:
    options = options_of(__doc__, batch_size=16)
    train, _ = digits()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, Tasks.WAYS))
    meta_opt = torch.optim.SGD(net.parameters(), lr=META_RATE)
    s = elastic.Session(
        net, meta_opt, Tasks(train), batch_size=options.batch_size, warm_up=lambda batch: net(batch[0][0])
    )
    parameters = list(net.parameters())
    for epoch in s.epochs(options.epochs):
        for batch in s.batches():
            with s.step() as step:
                meta_opt.zero_grad()
                ways = [torch.zeros_like(each) for each in parameters]
                for x, y, _, _ in zip(*batch, strict=True):
                    with step.inner_loop():
                        learner = copy.deepcopy(net)
                        optimizer = torch.optim.SGD(learner.parameters(), lr=INNER_RATE)
                        for _ in range(INNER_STEPS):
                            optimizer.zero_grad()
                            functional.cross_entropy(learner(x), y).backward()
                            optimizer.step()
                    for way, here, there in zip(ways, parameters, learner.parameters(), strict=True):
                        way += (here.detach() - there.detach()) / len(batch[0])
                torch.autograd.backward(parameters, ways)  # instead of a loss: the gradients are known
                meta_opt.step()
        if s.is_main:
            print(f"epoch {epoch + 1}: {s.info.samples_done} tasks", flush=True)
    s.finish()


if __name__ == "__main__":
    main()
