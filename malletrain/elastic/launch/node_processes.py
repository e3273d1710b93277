"""Runs a command several times on this node, once for each GPU: `python -m malletrain.elastic.launch.node_processes
COUNT -- COMMAND...`, with COUNT a number or `gpu`.

It is to a pilot what `torchrun --standalone --nproc-per-node=COUNT` is, without importing torch: each process has
LOCAL_RANK and LOCAL_WORLD_SIZE, and MASTER_ADDR and MASTER_PORT. `mtbatch --processes-per-node=COUNT` has the
launcher start the batch script so.

Exit status: that of the first process that fails, and the others are ended; 0 once all have ended well; 2 if COUNT
cannot be met. Standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from malletrain.elastic import WELCOME_FD
from malletrain.elastic.comm.addresses import free_port
from malletrain.elastic.launch.signal_waits import shell_status

#: How long the others may take to end, from SIGTERM to SIGKILL, once one of them has failed.
END_LIMIT_S = 10.0

#: How often the processes are looked at.
POLL_INTERVAL_S = 0.05


class NoSuchCount(Exception):
    """COUNT cannot be met on this node; the message says why."""


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """The GPUs of this node that Slurm has given, by the words of CUDA_VISIBLE_DEVICES; else by their number."""
    words = [word.strip() for word in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if words != [""]:
        return [word for word in words if word]
    given = environ.get("SLURM_GPUS_ON_NODE", "")
    return [str(index) for index in range(int(given))] if given.isdecimal() else []


def environments(count: str, environ: Mapping[str, str], port: int) -> list[dict[str, str]]:
    """The variables that each process has beside those of the command; `port`: for MASTER_PORT.

    Raises:
        NoSuchCount: there are no GPUs, or not as many as processes, or `count` is no number.
    """
    gpus = visible_gpus(environ)
    if count == "gpu":
        size = len(gpus)
        if not gpus:
            raise NoSuchCount(
                "--processes-per-node=gpu: Slurm has given this node's pilot no GPU (CUDA_VISIBLE_DEVICES is empty): "
                "submit with --gpus-per-node or --gres"
            )
    elif count.isascii() and count.isdecimal() and 0 < int(count) <= 1024:
        size = int(count)
    else:
        raise NoSuchCount(f"--processes-per-node={count[:40]}: is neither a number above 0 nor gpu")
    if gpus and size > len(gpus):
        raise NoSuchCount(f"--processes-per-node={size}: this node has {len(gpus)} GPUs for it: {','.join(gpus)}")
    cores = len(os.sched_getaffinity(0))
    made = []
    for rank in range(size):
        own = {
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(size),
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        if "OMP_NUM_THREADS" not in environ:
            own["OMP_NUM_THREADS"] = str(max(1, cores // size))
        # CUDA shows a process one slice at most, the first; of whole GPUs it sees all, as peers on NVLink must.
        if gpus and gpus[rank].startswith("MIG-"):
            own["CUDA_VISIBLE_DEVICES"] = gpus[rank]
        made.append(own)
    return made


def run(count: str, command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the processes to their end; returns the exit status for this one.

    Raises:
        NoSuchCount: see `environments`.
        OSError: the command cannot be run.
    """
    ended: list[int] = []
    processes: list[subprocess.Popen[bytes]] = []

    def end(number: int, frame: object) -> None:
        """Pass a signal on. One that was sent to the whole group came to them already, and does no harm twice."""
        ended.append(number)
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    welcome = environ.get(WELCOME_FD, "")
    inherited = (int(welcome),) if welcome.isdecimal() else ()
    processes.extend(
        subprocess.Popen(command, env={**environ, **own}, pass_fds=inherited)
        for own in environments(count, environ, free_port("127.0.0.1"))
    )
    if ended:  # while they were started
        end(ended[0], None)
    failed: int | None = None
    limit = 0.0
    while None in (statuses := [process.poll() for process in processes]):
        bad = next((status for status in statuses if status), None)
        if bad is not None and failed is None:
            failed, limit = bad, time.monotonic() + END_LIMIT_S
            for process in processes:
                if process.poll() is None and not ended:
                    process.terminate()
        if failed is not None and not ended and time.monotonic() > limit:
            for process in processes:
                process.kill()
        time.sleep(POLL_INTERVAL_S)
    status = failed if failed is not None else next((each for each in statuses if each), 0)
    return shell_status(status)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if len(given) < 3 or given[1] != "--":
        print("usage: python -m malletrain.elastic.launch.node_processes COUNT -- COMMAND...", file=sys.stderr)
        return 2
    try:
        return run(given[0], given[2:], os.environ)
    except (NoSuchCount, OSError) as error:
        print(f"malletrain: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
