"""What a Session costs a script on one device: steps of examples/gpt/train_elastic.py against those of train.py.

    python -m scripts.bench.gpu.step [--rounds 5] [--steps 60] [--batch 8] [--context 1024] [--device cuda]

Both scripts run in turns, each alone on the device. Printed: median step of each, and the ratio of the medians of
each pair of runs, with its smallest and greatest value. The default is GPT-2 with 124 million parameters in bfloat16;
`--batch 1 --context 256` is bound by launches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "gpt"

#: Steps that are not counted: the first allocate, compile and choose kernels.
WARM_UP_STEPS = 10


def median_step_s(script: str, options: argparse.Namespace, times: Path) -> float:
    """Median seconds of a step of one run."""
    size = ["--vocabulary", options.vocabulary, "--width", options.width, "--heads", options.heads]
    size += ["--layers", options.layers, "--context", options.context, "--batch-size", options.batch]
    command = [sys.executable, str(EXAMPLES / script), *map(str, size), "--device", options.device]
    command += ["--epochs", "1", "--steps", str(options.steps), "--times", str(times)]
    subprocess.run(command + ["--compile"] * options.compile, check=True, stdout=subprocess.DEVNULL)
    return statistics.median([float(line) for line in times.read_text().split()][WARM_UP_STEPS:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=50304)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    pairs = []
    with tempfile.TemporaryDirectory() as directory:
        for number in range(options.rounds):
            scripts = ["train.py", "train_elastic.py"]
            order = scripts if number % 2 else scripts[::-1]
            took = {script: median_step_s(script, options, Path(directory, "times")) for script in order}
            pairs.append((took["train_elastic.py"], took["train.py"]))
            print(
                f"round {number + 1}: {pairs[-1][0]:.4f} s, plain {pairs[-1][1]:.4f} s", file=sys.stderr, flush=True
            )
    ratios = [ours / plain for ours, plain in pairs]
    print(
        json.dumps(
            {
                "device": options.device,
                "session_s": round(statistics.median(ours for ours, _ in pairs), 5),
                "plain_s": round(statistics.median(plain for _, plain in pairs), 5),
                "ratio": round(statistics.median(ratios), 4),
                "ratio_range": [round(min(ratios), 4), round(max(ratios), 4)],
                "load": os.getloadavg()[0],
            }
        )
    )


if __name__ == "__main__":
    main()
