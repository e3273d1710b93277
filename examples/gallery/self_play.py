"""Self-play: a network learns from games that an earlier copy of it plays against itself.

After suragnair/alpha-zero-general, Coach.py (https://github.com/suragnair/alpha-zero-general). Licence of the
original: MIT. Other than there, the game is Nim, and moves are drawn from the policy without a tree search.

A sample is a game, which is played where it is needed: the numbers that decide on its moves belong to it, and the
player belongs to the training state. So games need not be kept, and whichever worker plays one plays the same.
"""

from __future__ import annotations

import copy

import torch
from gallery_data import options_of
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from malletrain import elastic

STONES, MOST = 15, 3  # who takes the last stone wins; one to three stones a move


class NNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.pi, self.v = nn.Linear(STONES + 1, 32), nn.Linear(32, MOST), nn.Linear(32, 1)

    def forward(self, stones: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        board = functional.one_hot(stones, STONES + 1).to(torch.get_default_dtype())
        hidden = functional.relu(self.body(board))
        return self.pi(hidden), torch.tanh(self.v(hidden)).squeeze(-1)


class Games(Dataset[tuple[torch.Tensor, ...]]):
    """Games of a player against itself: stones before each move, the stones taken, and whether the mover won."""

    def __init__(self, player: NNet) -> None:
        self._player = player

    def __len__(self) -> int:
        return 480

    @torch.no_grad()
    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        left, taken = [int(torch.randint(STONES // 2, STONES + 1, ()))], []
        while left[-1]:
            chances = self._player(torch.tensor(left[-1]))[0].softmax(0)[: left[-1]]
            taken.append(min(1 + int(torch.multinomial(0.9 * chances + 0.1 * chances.mean(), 1)), left[-1]))
            left.append(left[-1] - taken[-1])
        won = [1.0 if (len(taken) - move) % 2 else -1.0 for move in range(len(taken))]
        place = int(torch.randint(len(taken), ()))
        return torch.tensor(left[place]), torch.tensor(taken[place] - 1), torch.tensor(won[place])


def main() -> None:
    options = options_of(__doc__, batch_size=32)
    nnet = NNet()
    pnet = copy.deepcopy(nnet)
    optimizer = torch.optim.Adam(nnet.parameters(), lr=1e-2)
    s = elastic.Session(nnet, optimizer, Games(pnet), batch_size=options.batch_size)
    s.track(pnet=pnet)
    for epoch in s.epochs(options.epochs):
        for boards, moves, target_vs in s.batches():
            out_pi, out_v = nnet(boards)
            gain = target_vs - out_v.detach()
            l_pi = (gain * functional.cross_entropy(out_pi, moves, reduction="none")).mean()
            l_v = functional.mse_loss(out_v, target_vs)
            optimizer.zero_grad()
            (l_pi + l_v).backward()
            optimizer.step()
        pnet.load_state_dict(nnet.state_dict())  # the next epoch's games are the better player's
        if s.is_main:
            with torch.no_grad():
                right = sum(int(nnet(torch.tensor(n))[0].argmax()) + 1 == n % 4 for n in range(STONES + 1) if n % 4)
            print(f"epoch {epoch + 1}: the winning move in {right} of {STONES - STONES // 4} positions", flush=True)
    s.finish()


if __name__ == "__main__":
    main()
