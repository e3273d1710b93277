"""LBFGS: sine waves are learnt by full batches, each of which is one iteration of the optimizer.

After pytorch/examples, time_sequence_prediction/train.py (https://github.com/pytorch/examples). Licence of the
original: BSD-3-Clause.
"""

from __future__ import annotations

import torch
from gallery_data import options_of
from torch import nn
from torch.utils.data import Dataset

from malletrain import elastic

WAVES, LENGTH = 48, 24


class Waves(Dataset[torch.Tensor]):
    """Sine waves of one period, each from another place."""

    def __init__(self) -> None:
        starts = torch.randint(-80, 80, (WAVES, 1))
        self._waves = torch.sin((starts + torch.arange(LENGTH + 1)) / 4.0)

    def __len__(self) -> int:
        return WAVES

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._waves[index]


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.linear = nn.LSTM(1, 12, batch_first=True), nn.Linear(12, 1)

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        hidden = self.lstm(waves.unsqueeze(2))[0]
        predicted: torch.Tensor = self.linear(hidden)
        return predicted.squeeze(2)


def main() -> None:
    options = options_of(__doc__, batch_size=WAVES)
    seq = Sequence()
    criterion = nn.MSELoss()
    optimizer = torch.optim.LBFGS(seq.parameters(), lr=0.8, max_iter=1, tolerance_change=0.0)
    s = elastic.Session(
        seq, optimizer, Waves(), batch_size=options.batch_size, warm_up=lambda waves: seq(waves[:, :-1])
    )
    figures = float("nan")
    for epoch in s.epochs(15 * options.epochs):
        for waves in s.batches():

            def closure(given: torch.Tensor = waves) -> torch.Tensor:
                optimizer.zero_grad()
                loss: torch.Tensor = criterion(seq(given[:, :-1]), given[:, 1:])
                loss.backward()
                return loss

            figures = optimizer.step(closure).item()
        if s.is_main and epoch % 15 == 0:
            print(f"epoch {epoch}: loss {figures:.6f} (of this worker's waves)", flush=True)
    s.finish()


if __name__ == "__main__":
    main()
