"""Model-agnostic meta-learning: a sample is a task, and the loss is that of a model that has adapted to it.

After facebookresearch/higher, examples/maml-omniglot.py (https://github.com/facebookresearch/higher). Licence of the
original: Apache-2.0.
"""

from __future__ import annotations

import torch
from gallery_data import Tasks, digits, options_of
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from malletrain import elastic
from malletrain.elastic.step import Step

INNER_STEPS, INNER_RATE = 2, 0.4


def adapted(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """The parameters after gradient steps on a task's support set, as functions of those before."""
    fast: dict[str, torch.Tensor] = dict(net.named_parameters())
    for _ in range(INNER_STEPS):
        loss = functional.cross_entropy(functional_call(net, fast, (x,)), y)
        gradients = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
        fast = {name: each - INNER_RATE * g for (name, each), g in zip(fast.items(), gradients, strict=True)}
    return fast


def query_losses(net: nn.Module, batch: list[torch.Tensor], step: Step) -> torch.Tensor:
    """The loss of each task on its query set."""
    losses = []
    for support_x, support_y, query_x, query_y in zip(*batch, strict=True):
        with step.inner_loop():
            fast = adapted(net, support_x, support_y)
        losses.append(functional.cross_entropy(functional_call(net, fast, (query_x,)), query_y))
    return torch.stack(losses)


def main() -> None:
    options = options_of(__doc__, batch_size=16)
    train, _ = digits()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, Tasks.WAYS))
    meta_opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    s = elastic.Session(
        net, meta_opt, Tasks(train), batch_size=options.batch_size, warm_up=lambda batch: net(batch[0][0])
    )
    for epoch in s.epochs(options.epochs):
        total = 0.0
        for batch in s.batches():
            with s.step() as step:
                meta_opt.zero_grad()
                qry_losses = query_losses(net, batch, step)
                qry_losses.mean().backward()
                meta_opt.step()
            total += qry_losses.sum().item()
        if s.is_main:
            print(f"epoch {epoch + 1}: loss after adapting {total:.4f} (sum over this worker's tasks)", flush=True)
    s.finish()


if __name__ == "__main__":
    main()
