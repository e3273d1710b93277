"""Several ranks of NCCL on one GPU, and one member of a group as a process of its own.

NCCL refuses two ranks on a device unless their hosts differ by NCCL_HOSTID; they are connected over loopback then.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch

from malletrain.elastic.comm.carrier import find_carrier
from malletrain.elastic.comm.device_group import PairedGroup
from malletrain.elastic.comm.node_group import LocalRank
from malletrain.elastic.comm.world_group import make_world_group
from malletrain.elastic.launch.launcher import WATCHDOG_OFF
from tests.elastic import group_contract
from tests.elastic.stores import meeting

#: Where models of the tests of worlds are. `cpu`, with STANDIN=20, tries the tests themselves where there is no GPU.
DEVICE = os.environ.get("GPU_TESTS_ON", "cuda")

#: Why nothing can be tested here; "" where it can.
WHY_NOT = (
    ""
    if DEVICE == "cpu" or (torch.cuda.is_available() and torch.distributed.is_nccl_available())
    else "needs a GPU and a torch with NCCL: scripts/test-gpu runs these where there is one"
)


def environment_of(rank: int) -> dict[str, str]:
    """The variables with which this rank can be on the same GPU as others."""
    return {
        "NCCL_HOSTID": f"host{rank}",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_IB_DISABLE": "1",
        **WATCHDOG_OFF,
    }


def main(address: str, rank: int, size: int, connect: str) -> None:
    """Join a group and check its contract."""
    model = torch.nn.Linear(1, 1, device="cuda:0")
    carrier = find_carrier(model, {"MALLETRAIN_BACKEND": "nccl", "MALLETRAIN_NCCL_CONNECT": connect})
    patience = timedelta(seconds=60)
    group = make_world_group(meeting(address), rank, size, LocalRank(), "127.0.0.1", patience, carrier)
    if isinstance(group, PairedGroup):
        group.connect_now(patience, lambda: None)
    group_contract.check(group, device="cuda:0")
    print("kept", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
