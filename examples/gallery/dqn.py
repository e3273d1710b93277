"""Deep Q-learning: transitions of all workers go into one replay buffer, which every worker has.

After pytorch/tutorials, intermediate_source/reinforcement_q_learning.py (https://github.com/pytorch/tutorials).
Licence of the original: BSD-3-Clause. Other than there, the game is a walk on a ring, and a step makes several moves.

A sample is one move of one game and one transition to learn from, with the random numbers for both: they do not
depend on which worker has the sample.
"""

from __future__ import annotations

import copy

import torch
from gallery_data import options_of
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from malletrain import elastic

PLACES, CAPACITY, GAMMA, TAU = 12, 256, 0.9, 0.05


class Moves(Dataset[tuple[torch.Tensor, ...]]):
    """For each move: where it begins, numbers in [0, 1) that decide on it, and one that picks a transition."""

    def __len__(self) -> int:
        return 1600

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return torch.randint(PLACES, ()), torch.rand(2), torch.rand(())


def seen(places: torch.Tensor) -> torch.Tensor:
    return functional.one_hot(places, PLACES).to(torch.get_default_dtype())


def chosen(policy_net: nn.Module, places: torch.Tensor, chances: torch.Tensor, epsilon: float) -> torch.Tensor:
    """A step to the left (0) or the right (1), by the network or by chance."""
    with torch.no_grad():
        best = policy_net(seen(places)).argmax(1)
    return torch.where(chances[:, 0] < epsilon, (chances[:, 1] < 0.5).long(), best)


def moved(places: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The next places, and rewards: 1 for coming to place 0."""
    following = (places + 2 * actions - 1) % PLACES
    return following, (following == 0).to(torch.get_default_dtype())


def main() -> None:
    options = options_of(__doc__, batch_size=32)
    policy_net = nn.Sequential(nn.Linear(PLACES, 32), nn.ReLU(), nn.Linear(32, 2))
    target_net = copy.deepcopy(policy_net)
    optimizer = torch.optim.AdamW(policy_net.parameters(), lr=3e-3)
    s = elastic.Session(
        policy_net, optimizer, Moves(), batch_size=options.batch_size,
        warm_up=lambda batch: policy_net(seen(batch[0])),
    )  # fmt: skip
    s.track(target_net=target_net)
    s.state["memory"] = torch.zeros(CAPACITY, 4)  # place, action, next place, reward
    for epoch in s.epochs(options.epochs):
        for places, chances, picks in s.batches():
            actions = chosen(policy_net, places, chances, epsilon=0.9 * 0.99**s.steps_done)
            following, rewards = moved(places, actions)
            new = s.gather(torch.stack([places, actions, following, rewards], dim=1))
            filled = min(s.info.samples_done, CAPACITY)
            old = torch.stack([places, actions, following, rewards], dim=1)
            if filled:
                old = s.state["memory"][(picks * filled).long()]
            here, action, there, reward = old.unbind(1)
            q = policy_net(seen(here.long())).gather(1, action.long().unsqueeze(1)).squeeze(1)
            with torch.no_grad():
                expected = reward + GAMMA * target_net(seen(there.long())).amax(1)
            optimizer.zero_grad()
            functional.smooth_l1_loss(q, expected).backward()
            optimizer.step()
            with torch.no_grad():
                for ours, theirs in zip(target_net.parameters(), policy_net.parameters(), strict=True):
                    ours.lerp_(theirs, TAU)
            at = (s.info.samples_done - len(new) + torch.arange(len(new))) % CAPACITY
            s.state["memory"][at] = new
        if s.is_main:
            values = policy_net(seen(torch.arange(PLACES))).amax(1)
            print(f"epoch {epoch + 1}: values from {values.min():.3f} to {values.max():.3f}", flush=True)
    s.finish()


if __name__ == "__main__":
    main()
