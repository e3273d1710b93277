"""What a worker's imports cost, in processor seconds, and what it saves to import without collections of garbage.

    collector on     torch, then the runtime, as Python does it
    as shipped       the same by `from malletrain import elastic`, which switches the collector off meanwhile

Each round runs both in fresh processes, in turn; ratios are of the same round.

    python -m scripts.bench.elastic.start_imports --rounds 10
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from statistics import median

#: Each prints the processor seconds of importing torch and of importing the runtime.
_END = "print(b - a, c - b, flush=True); os._exit(0)"
_BEGIN = "import os, sys, time; now = time.process_time; a = now()\n"
WAYS = {
    "collector on": "import torch; b = now(); import malletrain.elastic.session; c = now()\n",
    "as shipped": "import torch; b = now(); from malletrain import elastic; elastic.Session; c = now()\n",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(options.rounds + 1):
        for way, text in WAYS.items():
            rows[way].append(measured(text))
    rows = {way: found[1:] for way, found in rows.items()}  # the first may have read the disk
    print(f"{options.rounds} rounds, load {load:.1f} to {os.getloadavg()[0]:.1f}; processor s, median (least)")
    print(f"{'':16}{'torch':>16}{'elastic':>16}   elastic : collector on, median of rounds (all)")
    base = [elastic for _, elastic in rows["collector on"]]
    for way, found in rows.items():
        cells = [[row[0] for row in found], [row[1] for row in found]]
        shown = "".join(f"{f'{median(cell):.3f} ({min(cell):.3f})':>16}" for cell in cells)
        ratios = sorted(a / b for a, b in zip(cells[1], base, strict=True))
        print(f"{way:16}{shown}   {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})")
    return 0


def measured(text: str) -> tuple[float, float]:
    """Processor seconds of both imports in a fresh process that is a pilot's worker."""
    environ = {**os.environ, "MALLETRAIN_WELCOME_FD": ""}
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN + text + _END], env=environ, check=True, capture_output=True, text=True
    )
    torch, elastic = map(float, done.stdout.split())
    return torch, elastic


if __name__ == "__main__":
    sys.exit(main())
