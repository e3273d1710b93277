"""An actor and a critic that balance a pole. A sample is an episode: its start and its random numbers.

After pytorch/examples, reinforcement_learning/actor_critic.py (https://github.com/pytorch/examples). Licence of the
original: BSD-3-Clause. Other than there, the cart is simulated here, and a step learns from a batch of episodes.
"""

from __future__ import annotations

import torch
from gallery_data import options_of
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from malletrain import elastic

LENGTH, DISCOUNT = 20, 0.95


class Episodes(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """For each episode: position, speed, angle and its speed at the start; a number in [0, 1) for each action."""

    def __len__(self) -> int:
        return 320

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return 0.1 * torch.rand(4) - 0.05, torch.rand(LENGTH)


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.affine, self.action_head, self.value_head = nn.Linear(4, 32), nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = functional.relu(self.affine(state))
        return self.action_head(hidden).squeeze(1), self.value_head(hidden).squeeze(1)


def pushed(state: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The states 0.05 s after a push of the carts to the right (1) or the left (0)."""
    x, dx, angle, turn = state.unbind(1)
    push = (20 * right - 10 + 0.05 * turn**2 * angle.sin()) / 1.1
    bend = (9.8 * angle.sin() - angle.cos() * push) / (0.5 * (4 / 3 - 0.1 * angle.cos() ** 2 / 1.1))
    return torch.stack([x + 0.05 * dx, dx + 0.05 * push, angle + 0.05 * turn, turn + 0.05 * bend], dim=1)


def play(policy: Policy, state: torch.Tensor, chances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of each episode, and how many steps its pole stood."""
    up = torch.ones(len(state))
    stood, logs, values = [], [], []
    for chance in chances.unbind(1):
        logit, value = policy(state)
        right = (chance < torch.sigmoid(logit)).to(logit.dtype)
        logs.append(-functional.binary_cross_entropy_with_logits(logit, right, reduction="none"))
        values.append(value)
        stood.append(up)
        state = pushed(state, right).clamp(-5, 5).detach()
        up = up * (state[:, 2].abs() < 0.21)
    gain, loss = torch.zeros(len(state)), torch.zeros(len(state))
    for alive, log, value in zip(reversed(stood), reversed(logs), reversed(values), strict=True):
        gain = alive * (1 + DISCOUNT * gain)
        loss = loss + alive * (
            functional.smooth_l1_loss(value, gain, reduction="none") - log * (gain - value.detach())
        )
    return loss, torch.stack(stood).sum(0)


def main() -> None:
    options = options_of(__doc__, batch_size=32)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    s = elastic.Session(policy, optimizer, Episodes(), batch_size=options.batch_size)
    for epoch in s.epochs(options.epochs):
        for starts, chances in s.batches():
            optimizer.zero_grad()
            loss, _ = play(policy, starts, chances)
            loss.mean().backward()
            optimizer.step()
        length = s.evaluate(lambda batch: {"length": play(policy, *batch)[1].sum()})["length"]
        if s.is_main:
            print(f"epoch {epoch + 1}: the pole stood for {length:.2f} steps", flush=True)
    s.finish()


if __name__ == "__main__":
    main()
