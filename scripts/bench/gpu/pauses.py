"""A model of step time and pauses on GPUs, against bytes, bandwidth and nodes. Not measured on a cluster.

    python -m scripts.bench.gpu.pauses [--state-gb 1.5] [--gradients-gb 0.5] [--forward-s .011] [--backward-s .022]
        [--gpus 4] [--fabric hdr200] [--json]

The default is GPT-2 with 124 million parameters in float32 with AdamW. Constants come from one H100 with several
ranks (`FACTS`) and from data sheets (`FABRICS`); what more nodes do to them is arithmetic.
`scripts/test-gpu` measures what one GPU can show.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Fabric:
    """The links of a cluster.

    Attributes:
        node_gb_s: bandwidth of one node, each way, as collectives reach it: nine tenths of the data sheet's.
        gpu_gb_s: bandwidth between GPUs of a node, likewise.
        hop_s: latency of a message between two devices.
    """

    node_gb_s: float
    gpu_gb_s: float
    hop_s: float


FABRICS = {
    "10gbe": Fabric(1.1, 20.0, 50e-6),
    "hdr200": Fabric(22.5, 225.0, 5e-6),
    "ndr400": Fabric(45.0, 400.0, 5e-6),
    "slingshot4x": Fabric(90.0, 225.0, 6e-6),
}


@dataclass(frozen=True, slots=True)
class Facts:
    """Measured on one H100 with up to four ranks (torch 2.11, NCCL 2.28), unless it says otherwise.

    Attributes:
        abort_s: until an aborted kernel is off the device (.006 to .11).
        connect_s, connect_rank_s: a communicator made with its first sum: .12 to .24 s at two to four ranks. Beyond,
            a term for each doubling is assumed: NCCL connects trees and rings, and meets by a store.
        detect_s: until all know of a killed worker: its socket closes, and the daemon tells.
        host_hop_s: a hop of the host's carrier: half of gloo's all-reduce of 160 integers between two processes of
            one machine of two cores (102 us); a fabric adds its own latency.
        host_gb_s: what gloo moves to one process over a fast fabric (1 to 3).
    """

    abort_s: float = 0.06
    connect_s: float = 0.12
    connect_rank_s: float = 0.06
    detect_s: float = 0.05
    host_hop_s: float = 51e-6
    host_gb_s: float = 2.0


FACTS = Facts()


@dataclass(frozen=True, slots=True)
class Training:
    """One training.

    Attributes:
        gradient_bytes, state_bytes: of the whole model.
        forward_s, backward_s: on one GPU, for its part of the batch.
        gpus: of a node.
        last_bucket_bytes: of the bucket whose sum nothing can hide.
    """

    gradient_bytes: float
    state_bytes: float
    forward_s: float
    backward_s: float
    gpus: int
    last_bucket_bytes: float = 25 * 2**20


def sum_s(size: float, nodes: int, gpus: int, fabric: Fabric) -> float:
    """Seconds of an all-reduce: rings or trees move 2 (n - 1) / n of the bytes over each link (Patarasuk and Yuan
    2009), inside nodes first; trees have a latency of two hops for each doubling."""
    inside = 2 * (gpus - 1) / gpus * size / (fabric.gpu_gb_s * 1e9)
    across = 2 * (nodes - 1) / nodes * size / (fabric.node_gb_s * 1e9)
    return max(inside, across) + 2 * math.log2(max(1, nodes * gpus)) * fabric.hop_s


def host_s(nodes: int, gpus: int, fabric: Fabric, facts: Facts = FACTS) -> float:
    """Seconds of a small sum on the host: a ring of the node's processes, one of the nodes, and a gather."""
    return (2 * (nodes - 1) + 3 * (gpus - 1)) * (facts.host_hop_s + fabric.hop_s)


def step_s(training: Training, nodes: int, fabric: Fabric, facts: Facts = FACTS) -> float:
    """Seconds of a step. Sums hide behind backward, but that of the last bucket; so does the control vector, which
    the host starts when it has queued backward, half way through."""
    alone = training.forward_s + training.backward_s
    if nodes * training.gpus == 1:
        return alone
    whole = sum_s(training.gradient_bytes, nodes, training.gpus, fabric)
    last = sum_s(training.last_bucket_bytes, nodes, training.gpus, fabric)
    control = host_s(nodes, training.gpus, fabric, facts) - training.backward_s / 2
    return alone + max(whole - training.backward_s, last, control, 0.0)


def connect_s(nodes: int, gpus: int, facts: Facts = FACTS) -> float:
    """Seconds until a communicator is made and has summed."""
    return facts.connect_s + facts.connect_rank_s * math.log2(max(1, nodes * gpus / 2))


def transfer_s(training: Training, nodes: int, fabric: Fabric, facts: Facts = FACTS) -> float:
    """Seconds until newcomers have the state: each process of a node gets it through host memory, and a sender may
    have two receivers, who relay it."""
    rate = min(facts.host_gb_s, fabric.node_gb_s / training.gpus / 2)
    return training.state_bytes / (rate * 1e9) + 2 * math.log2(max(1, nodes)) * fabric.hop_s


def grow_s(training: Training, nodes: int, fabric: Fabric, facts: Facts = FACTS, *, beside: bool = True) -> float:
    """Seconds that training stands as a world grows to `nodes`: handshake, state, and, unless it is made beside
    training, the communicator."""
    connect = 0.0 if beside else connect_s(nodes, training.gpus, facts)
    return connect + 2 * host_s(nodes, training.gpus, fabric, facts) + transfer_s(training, nodes, fabric, facts)


def shrink_s(training: Training, nodes: int, fabric: Fabric, facts: Facts = FACTS, *, beside: bool = True) -> float:
    """Seconds that training stands as a world shrinks to `nodes`."""
    connect = 0.0 if beside else connect_s(nodes, training.gpus, facts)
    return connect + host_s(nodes, training.gpus, fabric, facts)


def kill_s(training: Training, nodes: int, fabric: Fabric, facts: Facts = FACTS) -> float:
    """Seconds from a kill to the next step of the `nodes` that are left, beside the step that is repeated."""
    again = connect_s(nodes, training.gpus, facts) + host_s(nodes, training.gpus, fabric, facts)
    return facts.detect_s + facts.abort_s + again


def table(training: Training, fabric: Fabric) -> list[dict[str, float]]:
    """A row for some numbers of nodes from 2 to 512."""
    rows = []
    for nodes in (2, 8, 32, 128, 512):
        step = step_s(training, nodes, fabric)
        rows.append(
            {
                "nodes": nodes,
                "step_ms": 1e3 * step,
                "efficiency": (training.forward_s + training.backward_s) / step,
                "grow_s": grow_s(training, nodes, fabric),
                "grow_at_boundary_s": grow_s(training, nodes, fabric, beside=False),
                "shrink_s": shrink_s(training, nodes, fabric),
                "kill_s": kill_s(training, nodes, fabric),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state-gb", type=float, default=1.5)
    parser.add_argument("--gradients-gb", type=float, default=0.5)
    parser.add_argument("--forward-s", type=float, default=0.011)
    parser.add_argument("--backward-s", type=float, default=0.022)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--fabric", choices=sorted(FABRICS), default="hdr200")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    training = Training(given.gradients_gb * 1e9, given.state_gb * 1e9, given.forward_s, given.backward_s, given.gpus)
    rows = table(training, FABRICS[given.fabric])
    if given.json:
        print(json.dumps({"measured": False, "training": asdict(training), "fabric": given.fabric, "rows": rows}))
        return
    print(f"A model, not measured: {given.gpus} GPUs a node, {given.fabric}")
    print(f"{'nodes':>5} {'step':>9} {'efficiency':>10} {'grow':>7} {'boundary':>9} {'shrink':>7} {'kill':>7}")
    for row in rows:
        print(
            f"{row['nodes']:>5.0f} {row['step_ms']:>6.1f} ms {row['efficiency']:>10.1%} {row['grow_s']:>5.2f} s "
            f"{row['grow_at_boundary_s']:>7.2f} s {row['shrink_s']:>5.2f} s {row['kill_s']:>5.2f} s"
        )


if __name__ == "__main__":
    main()
