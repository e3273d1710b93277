"""Runs a script of examples/ as it is, but slowly until a file `go` is there; keeps a diary and the final model.

As a worker it writes `ready-N` when all is imported and built, and enters its world once `start-N` is there.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from malletrain.elastic import runtime, session, step
from malletrain.elastic.data.sampler import Share

HOME = Path(os.environ["MALLETRAIN_TEST_DIR"])
ME = f"{os.environ.get('SLURM_ARRAY_TASK_ID', 'x')}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"


def watch() -> None:
    begin, end, finish = step.Step.begin, step.Step.end, session.Session.finish
    join = runtime.Runtime.join

    def told(self: runtime.Runtime) -> None:
        if "SLURM_JOB_ID" in os.environ and not self.joined:
            (HOME / f"ready-{ME}").touch()
            while not (HOME / f"start-{ME}").exists():
                time.sleep(0.01)
        join(self)

    shares: list[Share] = []

    def slow(self: step.Step, share: Share) -> None:
        if "SLURM_JOB_ID" in os.environ and not (HOME / "go").exists():
            time.sleep(0.1)
        shares[:] = [share]
        begin(self, share)

    def noted(self: step.Step, *given: Any, **more: Any) -> None:
        r = self._runtime
        end(self, *given, **more)
        if r.committed and not any(given):
            line = {
                "step": r.position.step,
                "epoch": r.position.epoch,
                "size": r.committer.world.size,
                "indices": shares[0].indices[: shares[0].weight],
            }
            with (HOME / f"diary-{ME}.jsonl").open("a") as diary:
                diary.write(json.dumps(line) + "\n")

    def kept(self: session.Session, result: Mapping[str, Any] | None = None) -> None:
        if self.is_main:
            torch.save(self._runtime.model.state_dict(), HOME / "final.pt")
        finish(self, result)

    # Methods are wrapped for this process, which is what the types forbid.
    step.Step.begin = slow  # type: ignore[method-assign]
    step.Step.end = noted  # type: ignore[method-assign]
    session.Session.finish = kept  # type: ignore[method-assign]
    runtime.Runtime.join = told  # type: ignore[method-assign]


if __name__ == "__main__":
    watch()
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    if "accelerate" in sys.argv[0]:
        # As torchrun and `malletrain check` start one process: accelerate would take it for a distributed run.
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # (nobody may meet there)
    runpy.run_path(sys.argv[0], run_name="__main__")
