"""Breaks things on a real Slurm: `python -m scripts.chaos [--minutes N] [--seed S] [--crash-points N]`.

    python -m scripts.chaos --minutes 5              faults of all kinds, every five seconds on average
    python -m scripts.chaos --minutes 0 --crash-points 300      the daemon alone dies, at boundaries of its own

Each node has a network namespace of its own, where the machine permits, so that nodes are cut off as well.
Prints what was broken and what came of it (`--json`: as JSON); exit status 1 when a law does not hold. Needs root.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from scripts.chaos.faults import Chaos
from scripts.chaos.laws import MAIN_WAIT_S, Outcome, outcome
from scripts.chaos.scene import Scene, keep
from scripts.lab import Lab, LabConfig
from scripts.lab.node_network import NodeNetwork, why_not_permitted

_log = logging.getLogger("chaos")

#: Boundaries of one daemon's life at which it dies, drawn up to this one: about twenty seconds of work.
LAST_BOUNDARY = 60

#: Least and most epochs of a job: ten to thirty seconds on one node.
EPOCHS = 6, 14


def play(
    minutes: float,
    seed: int,
    crash_points: int,
    nodes: int,
    directory: Path,
    *,
    accounting: bool = False,
    evidence: Path | None = None,
) -> Outcome:
    """One run: faults for so many minutes, and until so many crashes; then calm until all jobs have ended.

    `evidence`: where the journal and all logs are kept of a run that broke a law.

    Raises:
        LabError: the lab cannot be brought up, or what was broken not be mended.
    """
    rng = random.Random(seed)
    crashes = [rng.randint(1, LAST_BOUNDARY) for _ in range(crash_points)]
    with ExitStack() as stack:
        network = None
        if why := why_not_permitted():
            _log.warning("no node is cut off: %s", why)
        else:
            network = stack.enter_context(NodeNetwork(nodes))
        addresses = network.addresses if network else None
        config = LabConfig(nodes=nodes, users=True, accounting=accounting, addresses=addresses)
        lab = stack.enter_context(Lab.up(directory, config))
        scene = Scene(lab, rng, crashes, network)
        try:
            chaos = Chaos(scene, rng)
            begun = told = time.monotonic()
            number = 0
            while len(scene.supervisor.crashed) + scene.supervisor.spared < crash_points or (
                minutes and (not chaos.done or time.monotonic() - begun < 60.0 * minutes)
            ):
                if number - len(scene.ended()) < 2:
                    number += 1
                    epochs, most = rng.randint(*EPOCHS), rng.randint(1, nodes)
                    scene.train(epochs, number, most, meanwhile=lambda: chaos.mend_due(time.monotonic()))
                scene.main.step()
                if minutes:
                    chaos.step()
                    chaos.resume_drained()
                scene.look()
                if time.monotonic() - told > 15.0:
                    told = time.monotonic()
                    _log.info(
                        "%4.0f s: %d faults, %d crashes, %d daemons, %d jobs submitted, %d ended",
                        told - begun,
                        len(chaos.done),
                        len(scene.supervisor.crashed),
                        scene.supervisor.starts,
                        len(scene.jobs),
                        len(scene.ended()),
                    )
                time.sleep(0.2)
            scene.supervisor.crashes.clear()
            chaos.mend_all()
            found = outcome(scene, chaos, calm_s=600.0)
            if found.broken and evidence is not None:
                keep(scene, evidence)
            return found
        except BaseException:
            _log.error("%s", scene.site.last_log())
            raise
        finally:
            scene.close()


def main() -> int:
    """As the module's docstring says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--crash-points", type=int, default=0, metavar="N")
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--accounting", action="store_true", help="with slurmdbd and its database, which fail too")
    parser.add_argument(
        "--evidence", type=Path, metavar="FOLDER", help="keep the journal and all logs where a law breaks"
    )
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # lab, mounts and namespaces go in order
    with tempfile.TemporaryDirectory(prefix="mtlab-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        folder = Path(name) / "lab"
        result = play(
            asked.minutes,
            asked.seed,
            asked.crash_points,
            asked.nodes,
            folder,
            accounting=asked.accounting,
            evidence=asked.evidence,
        )
    if asked.json:
        print(json.dumps(result.summary()))
    else:
        for at, what in result.faults:
            print(f"{at:7.1f} s  {what}")
        print(*(f"{name}: {value}" for name, value in result.summary().items()), sep="\n")
        print(f"(main jobs begin within {MAIN_WAIT_S:g} s where nodes without main jobs suffice and slurmctld is up)")
        kinds = Counter(result.crashes)
        print(*(f"died {kind}: {count} times" for kind, count in kinds.most_common()), sep="\n")
    return 1 if result.broken else 0


if __name__ == "__main__":
    sys.exit(main())
