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
    count = environ.get("SLURM_GPUS_ON_NODE", "")
    return [str(index) for index in range(int(count))] if count.isdecimal() else []


def environments(count: str, environ: Mapping[str, str], port: int) -> list[dict[str, str]]:
    """The variables that each process has beside those of the command; `port`: for MASTER_PORT. Raises
    `NoSuchCount`: there are no GPUs, or not as many as processes, or `count` is no number."""
    gpus = visible_gpus(environ)
    if count == "gpu" and not gpus:
        raise NoSuchCount(
            "--processes-per-node=gpu: Slurm has given this node's pilot no GPU (CUDA_VISIBLE_DEVICES is empty): "
            "submit with --gpus-per-node or --gres"
        )
    if count != "gpu" and not (count.isascii() and count.isdecimal() and 0 < int(count) <= 1024):
        raise NoSuchCount(f"--processes-per-node={count[:40]}: is neither a number above 0 nor gpu")
    size = len(gpus) if count == "gpu" else int(count)
    if gpus and size > len(gpus):
        raise NoSuchCount(f"--processes-per-node={size}: this node has {len(gpus)} GPUs for it: {','.join(gpus)}")
    threads = str(max(1, len(os.sched_getaffinity(0)) // size))
    shared = {} if "OMP_NUM_THREADS" in environ else {"OMP_NUM_THREADS": threads}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"LOCAL_WORLD_SIZE": str(size), "WORLD_SIZE": str(size)}
    made = [{**shared, "LOCAL_RANK": str(rank), "RANK": str(rank)} for rank in range(size)]
    for own, gpu in zip(made, gpus, strict=False):
        # CUDA shows a process one slice at most, the first; of whole GPUs it sees all, as peers on NVLink must.
        if gpu.startswith("MIG-"):
            own["CUDA_VISIBLE_DEVICES"] = gpu
    return made


def run(count: str, command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the processes to their end; returns the exit status for this one. Raises `NoSuchCount`: see
    `environments`; `OSError`: the command cannot be run."""
    ended: list[int] = []
    processes: list[subprocess.Popen[bytes]] = []

    def end(number: int, frame: object = None) -> None:
        """Pass a signal on. One that was sent to the whole group came to them already, and does no harm twice."""
        ended.append(number)
        for process in processes:
            process.send_signal(number)  # to one that lives

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    welcome = environ.get(WELCOME_FD, "")
    inherited = (int(welcome),) if welcome.isdecimal() else ()
    processes.extend(
        subprocess.Popen(command, env={**environ, **own}, pass_fds=inherited)
        for own in environments(count, environ, free_port("127.0.0.1"))
    )
    if ended:  # while they were started
        end(ended[0])
    failed, limit = 0, 0.0
    while None in (statuses := [process.poll() for process in processes]):
        bad = next((status for status in statuses if status), 0)
        if bad and not failed:
            failed, limit = bad, time.monotonic() + END_LIMIT_S
            if not ended:
                end(signal.SIGTERM)
                ended.clear()
        if failed and not ended and time.monotonic() > limit:
            end(signal.SIGKILL)
        time.sleep(POLL_INTERVAL_S)
    return shell_status(failed or next((each for each in statuses if each), 0))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if len(argv) < 3 or argv[1] != "--":
        print("usage: python -m malletrain.elastic.launch.node_processes COUNT -- COMMAND...", file=sys.stderr)
        return 2
    try:
        return run(argv[0], argv[2:], os.environ)
    except (NoSuchCount, OSError) as error:
        print(f"malletrain: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
