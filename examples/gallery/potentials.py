"""A potential of molecules, trained on energies and forces: each a mean of its own, over molecules and over atoms.

After atomistic-machine-learning/schnetpack, src/schnetpack/task.py
(https://github.com/atomistic-machine-learning/schnetpack). Licence of the original: MIT.
Molecules have one to six atoms: workers have different numbers of them, so each term says over how many it is.
"""

from __future__ import annotations

import torch
from gallery_data import options_of
from torch import nn
from torch.utils.data import Dataset

from malletrain import elastic

FORCE_WEIGHT = 10.0


def pairs(positions: torch.Tensor, molecule: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The distances of atoms of one molecule, and which molecule each belongs to."""
    first, second = (
        (molecule[:, None] == molecule) & torch.ones(len(molecule), len(molecule)).tril(-1).bool()
    ).nonzero(as_tuple=True)
    return (positions[first] - positions[second]).square().sum(1).sqrt(), molecule[first]


def morse(positions: torch.Tensor, molecule: torch.Tensor, molecules: int) -> torch.Tensor:
    """The true energies."""
    distances, owner = pairs(positions, molecule)
    return torch.zeros(molecules).index_add(0, owner, (1 - torch.exp(1 - distances)).square())


class Molecules(Dataset[torch.Tensor]):
    """Positions of one to six atoms, about 1 apart."""

    def __init__(self, many: int) -> None:
        chance = torch.Generator().manual_seed(2)
        self._atoms = [1 + number % 6 for number in range(many)]
        self._positions = [2 * torch.rand(atoms, 3, generator=chance) for atoms in self._atoms]

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._positions[index]


def collate(samples: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Positions of all atoms, the molecule of each, energies, forces."""
    positions = torch.cat(samples).requires_grad_()
    molecule = torch.repeat_interleave(torch.tensor([len(each) for each in samples]))
    with torch.enable_grad():
        energies = morse(positions, molecule, len(samples))
        (gradient,) = torch.autograd.grad(energies.sum() + 0 * positions.sum(), positions)
    return positions.detach(), molecule, energies.detach(), -gradient


class Potential(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Buffer(torch.linspace(0.2, 3.5, 12))
        self.net = nn.Sequential(nn.Linear(12, 24), nn.SiLU(), nn.Linear(24, 1))

    def forward(self, positions: torch.Tensor, molecule: torch.Tensor, molecules: int) -> torch.Tensor:
        distances, owner = pairs(positions, molecule)
        of_pairs = self.net(torch.exp(-4 * (distances[:, None] - self.centres).square())).squeeze(1)
        return torch.zeros(molecules).index_add(0, owner, of_pairs)


def main() -> None:
    options = options_of(__doc__, batch_size=16)
    model = Potential()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    s = elastic.Session(
        model, optimizer, Molecules(480), batch_size=options.batch_size, collate=collate,
        warm_up=lambda batch: model(batch[0], batch[1], len(batch[2])),
    )  # fmt: skip
    for epoch in s.epochs(options.epochs):
        for positions, molecule, energies, forces in s.batches():
            optimizer.zero_grad()
            positions.requires_grad_()
            predicted = model(positions, molecule, len(energies))
            (gradient,) = torch.autograd.grad(predicted.sum() + 0 * positions.sum(), positions, create_graph=True)
            of_energies = s.mean((predicted - energies).square(), over=len(energies))
            of_forces = s.mean((gradient + forces).square(), over=forces.numel())
            loss = of_energies + FORCE_WEIGHT * of_forces
            loss.backward()
            optimizer.step()
        if s.is_main:
            print(f"epoch {epoch + 1}: {loss.item():.4f}", flush=True)
    s.finish()


if __name__ == "__main__":
    main()
