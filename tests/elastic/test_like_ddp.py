"""Gradient accumulation with clipping, compared with DistributedDataParallel after every step."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from malletrain.elastic.comm.gloo_group import make_group
from malletrain.elastic.comm.step_commit import StepCommitter, TrainingWorld
from malletrain.elastic.gradients.reducer import GradientReducer
from tests.elastic.calm import Calm
from tests.elastic.coordinator import _forks
from tests.elastic.stores import meeting, serve

RANKS, EACH, STEPS = 2, 8, 12


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 5)).double()


def both(rank: int, address: str, directory: str) -> None:
    """One rank: trains the same model both ways and compares them after every step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/meet", rank=rank, world_size=RANKS)
    theirs, ours = build(), build()
    parallel = nn.parallel.DistributedDataParallel(theirs)
    committer = StepCommitter(Calm())
    group = make_group(meeting(address), rank, RANKS, "127.0.0.1", timedelta(seconds=30))
    committer.world = TrainingWorld(1, tuple(str(r) for r in range(RANKS)), group)
    reducer = GradientReducer(list(ours.named_parameters()), committer, mean=True)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9) for model in (theirs, ours)]
    generator = torch.Generator().manual_seed(rank)
    clipped = 0
    for _ in range(STEPS):
        x = torch.randn(EACH, 12, generator=generator, dtype=torch.float64)
        y = torch.randint(0, 5, (EACH,), generator=generator)
        halves = [(x[: EACH // 2], y[: EACH // 2]), (x[EACH // 2 :], y[EACH // 2 :])]

        def backward(model: nn.Module, part: tuple[torch.Tensor, torch.Tensor]) -> None:
            (nn.functional.cross_entropy(model(part[0]), part[1]) / 2).backward()

        optimizers[0].zero_grad()
        with parallel.no_sync():
            backward(parallel, halves[0])
        backward(parallel, halves[1])
        optimizers[1].zero_grad()
        reducer.arm(EACH, RANKS * EACH, lambda outcome: None)
        reducer.accumulating = True
        backward(ours, halves[0])
        reducer.accumulating = False
        backward(ours, halves[1])
        norms = [nn.utils.clip_grad_norm_(model.parameters(), 0.3) for model in (theirs, ours)]
        clipped += int(norms[0] > 0.3)
        torch.testing.assert_close(norms[1], norms[0], rtol=1e-12, atol=0)
        for optimizer in optimizers:
            optimizer.step()
        for left, right in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-13)
    Path(directory, f"clipped-{rank}").write_text(str(clipped))
    dist.barrier()
    dist.destroy_process_group()


def test_accumulation_with_clipping_is_that_of_ddp(tmp_path: Path) -> None:
    server = serve()
    ranks = [_forks.Process(target=both, args=(rank, server.address, str(tmp_path))) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
        if process.exitcode is None:
            process.kill()
    assert [process.exitcode for process in ranks] == [0] * RANKS
    assert int((tmp_path / "clipped-0").read_text()) > 0, "clipping has to do something"
