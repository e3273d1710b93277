"""What it takes to give a training state to a newcomer, with its memory made ready beforehand and without.

    python -m scripts.bench.elastic.transfer [--pairs 2] [--width 4166] [--repeats 5]

Each giver has one taker; all at once, over gloo on loopback, a process each. Printed, by turns measured: the medians
of a taker's wall time and of its processor time, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import time
from datetime import timedelta
from typing import Any

import torch
import torch.multiprocessing as mp
from torch.multiprocessing.spawn import spawn

from malletrain.elastic.comm.authentication import Meeting
from malletrain.elastic.comm.gloo_group import make_group
from malletrain.elastic.comm.group import Group
from malletrain.elastic.comm.peer_store import StoreServer
from malletrain.elastic.state.buffer_pool import BufferPool
from malletrain.elastic.state.training_state import pack
from malletrain.elastic.state.transfer import receive_state, send_state
from scripts.bench.elastic.train_large import build


def barrier(group: Group) -> None:
    pending = group.all_reduce(torch.zeros(1))
    while not pending.wait(1.0):
        pass


def member(rank: int, options: argparse.Namespace, meeting: Meeting, rows: Any) -> None:
    torch.set_num_threads(1)
    group = make_group(meeting, rank, 2 * options.pairs, "127.0.0.1", timedelta(seconds=120))
    parameters = [parameter.detach() for parameter in build(options.width).parameters()]
    state = {"model": parameters, "momentum": [torch.ones_like(each) for each in parameters]}
    for number in range(2 * options.repeats):
        ready = number % 2 == 1
        specs = [(each.dtype, tuple(each.shape)) for part in state.values() for each in part]
        buffer_pool = BufferPool(specs if ready else ())
        barrier(group)
        began, busy = time.perf_counter(), time.process_time()
        if rank < options.pairs:
            send_state(group, [rank + options.pairs], *pack(state))
        else:
            receive_state(group, rank - options.pairs, (), buffer_pool)
            rows.put((ready, time.perf_counter() - began, time.process_time() - busy))
    barrier(group)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--width", type=int, default=4166)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    server = StoreServer("127.0.0.1")
    meeting = Meeting(server.address, 1, secrets.token_hex())
    server.trust(meeting)
    rows = mp.get_context("spawn").SimpleQueue()
    spawn(member, (options, meeting, rows), nprocs=2 * options.pairs)
    found = [rows.get() for _ in range(2 * options.repeats * options.pairs)]
    for ready in (False, True):
        print(
            json.dumps(
                {
                    "memory_ready": ready,
                    "n": options.repeats * options.pairs,
                    "wall_s": round(statistics.median(wall for is_ready, wall, _ in found if is_ready == ready), 3),
                    "cpu_s": round(statistics.median(cpu for is_ready, _, cpu in found if is_ready == ready), 3),
                    "load": round(os.getloadavg()[0], 1),
                }
            )
        )


if __name__ == "__main__":
    main()
