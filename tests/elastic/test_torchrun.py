"""A pilot whose script runs torchrun: a process for each GPU of its node."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from malletrain.domain.event import EventKind
from tests.elastic.coordinator import HERE, running
from tests.elastic.digits import SCRIPT, diary
from tests.elastic.test_launch import launched
from tests.waiting import wait_until

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def worker(*arguments: str) -> list[str]:
    return [*TORCHRUN, str(HERE / "as_worker.py"), SCRIPT, *arguments]


def test_it_leaves_in_order(tmp_path: Path) -> None:
    body = f"{shlex.join(worker('--epochs', '100', '--step-seconds', '0.1'))} && touch {tmp_path}/after"
    with running(tmp_path) as (daemon, _), launched(daemon.url, tmp_path, "--", "/bin/bash", "-c", body) as process:
        daemon.wait_world([0])
        wait_until(lambda: any(line["size"] == 2 for line in diary(tmp_path)), 60, "a step of both")
        daemon.leave(0)
        wait_until(lambda: bool(daemon.seen(EventKind.WORKER_LEFT)), 90, "the node has left")
        assert process.wait(60) != 0
        assert not daemon.seen(EventKind.WORKER_LOST)
    assert not (tmp_path / "after").exists()
