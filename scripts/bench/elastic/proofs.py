"""What it costs at a switch that members prove to each other that they belong to its generation.

    python -m scripts.bench.elastic.proofs [--workers 4] [--rounds 15]

Groups are made with and without the proof on each pair (`comm/pair_proof.py`), in turns, by the same processes.
Printed: the median seconds of both, from a common start until the slowest member has its group, and the difference
paired by round. (The store that they meet at asks for the generation's secret in both.)
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from malletrain.elastic.comm import gloo_group
from malletrain.elastic.comm.authentication import Meeting
from malletrain.elastic.comm.local_rank import LocalRank
from malletrain.elastic.comm.pair_proof import prove_pairs
from malletrain.elastic.comm.peer_store import StoreServer
from malletrain.elastic.comm.world_group import make_world_group


def worker(rank: int, workers: int, rounds: int, secret: str, directory: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/meet", rank=rank, world_size=workers)
    server = StoreServer("127.0.0.1")
    address: list[Any] = [server.address]
    dist.broadcast_object_list(address)
    rows: list[tuple[float, float]] = []
    generation = 0
    for number in range(rounds + 1):
        took = {}
        for proven in (True, False) if number % 2 else (False, True):
            generation += 1
            meeting = Meeting(address[0], generation, secret)
            server.trust(meeting)
            setattr(gloo_group, "prove_pairs", prove_pairs if proven else lambda *_: None)  # noqa: B010 - imported there
            dist.barrier()
            began = time.perf_counter()
            group = make_world_group(meeting, rank, workers, LocalRank(), "127.0.0.1", timedelta(seconds=60), None)
            mine = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
            dist.all_reduce(mine, dist.ReduceOp.MAX)
            took[proven] = float(mine)
            group.abandon()
        if number:  # the first connects caches of its own
            rows.append((took[True], took[False]))
    if rank == 0:
        Path(directory, "rows").write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as directory:
        arguments = options.workers, options.rounds, secrets.token_hex(), directory
        spawn(worker, arguments, nprocs=options.workers)
        rows = json.loads(Path(directory, "rows").read_text())
    with_proof, without = ([row[place] for row in rows] for place in (0, 1))
    more = sorted(proven - plain for proven, plain in rows)
    print(
        json.dumps(
            {
                "workers": options.workers,
                "with_proof_s": round(statistics.median(with_proof), 4),
                "without_s": round(statistics.median(without), 4),
                "difference_s": {
                    "median": round(statistics.median(more), 4),
                    "least": round(more[0], 4),
                    "most": round(more[-1], 4),
                },
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
