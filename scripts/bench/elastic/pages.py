"""What new memory costs: the first write to a tensor of 69 MB, with small pages and with large ones.

    python -m scripts.bench.elastic.pages [--repeats 9]

Each step of a script gets new memory for its gradients. Printed: median milliseconds of the first write, of another,
and of giving the tensor back, and page faults of the first write (getrusage(2)).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

WIDTH = 4166


def measure(repeats: int) -> dict[str, float]:
    """In this process, as its environment says."""
    import torch

    torch.set_num_threads(1)
    rows = []
    for _ in range(repeats):
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        times = [time.perf_counter()]
        tensor = torch.empty(WIDTH * WIDTH)
        tensor.fill_(1.0)
        times.append(time.perf_counter())
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        tensor.fill_(2.0)
        times.append(time.perf_counter())
        del tensor
        times.append(time.perf_counter())
        rows.append((*(1e3 * (times[n + 1] - times[n]) for n in range(3)), float(faults)))
    names = ("first_ms", "again_ms", "free_ms", "faults")
    return {name: round(statistics.median(row[n] for row in rows), 1) for n, name in enumerate(names)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure(options.repeats)))
        return
    for large in "01":
        command = [sys.executable, "-m", "scripts.bench.elastic.pages", "--here", "--repeats", str(options.repeats)]
        done = subprocess.run(
            command, env={**os.environ, "THP_MEM_ALLOC_ENABLE": large}, capture_output=True, check=True
        )
        print(json.dumps({"large_pages": large == "1", **json.loads(done.stdout), "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
