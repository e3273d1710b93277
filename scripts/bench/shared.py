"""What benches share: options, intervals, what a process has taken, a kept connection, and a slurmctld alone."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scripts.lab import Lab, LabConfig, LabError

#: Public logs and measurements (see its README.md), beside the checkout.
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def options_of(about: str | None) -> argparse.ArgumentParser:
    """A bench's options; `about`: the docstring of its module."""
    return argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)


def data_options_of(about: str | None) -> argparse.ArgumentParser:
    """As `options_of`, of a bench that reads public data: ends it where they are not there."""
    parser = options_of(about)
    parser.add_argument("--data", type=_folder, default=str(DATA), help="folder of public logs and measurements")
    return parser


def _folder(name: str) -> Path:
    if not Path(name).is_dir():
        raise argparse.ArgumentTypeError(f"{name} holds no measurements: give --data")
    return Path(name)


def bootstrap(values: Sequence[float], figure: Callable[..., Any] = np.mean) -> tuple[float, float]:
    """The 95 % interval of a figure, of numpy's, of these values (Efron's percentile method)."""
    of = np.asarray(values)
    drawn = figure(of[np.random.default_rng(1).integers(0, len(of), (2000, len(of)))], axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975)).tolist()
    return low, high


# -- what a process has taken ----------------------------------------------------------------------------------------


def peak_mib() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def spent(pid: int) -> tuple[float, float]:
    """Processor seconds of a process with all its threads, and of its children that have ended (proc(5), stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    tick = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / tick, (int(fields[13]) + int(fields[14])) / tick


def memory_mib(pid: int, key: str) -> float:
    """Memory of a process by a key of proc(5) status: VmRSS now, VmHWM at most."""
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith(f"{key}:"))
    return int(line.split()[1]) / 1024


# -- a daemon's callers ----------------------------------------------------------------------------------------------


class Connection:
    """A kept HTTP/1.1 connection to a port of this machine, from an address of it."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self._port, self._address = port, address
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, token: str = "", body: object = None) -> tuple[int, Any]:
        """Status and JSON of the answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(self._address, 0))
        reader, writer = self._streams
        text = b"" if body is None else json.dumps(body).encode()
        head = [f"{method} {path} HTTP/1.1", "Host: bench", f"Content-Length: {len(text)}"]
        head += ["Content-Type: application/json"] if text else []
        head += [f"Authorization: Bearer {token}"] if token else []
        writer.write("\r\n".join([*head, "", ""]).encode() + text)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in answer[1:])}
        content = await reader.readexactly(int(fields.get("content-length", 0)))
        return int(answer[0].split()[1]), json.loads(content) if content else None

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


# -- a slurmctld alone -----------------------------------------------------------------------------------------------


def controller_alone(
    bench: Callable[[Lab, argparse.Namespace], object],
    options: argparse.Namespace,
    *settings: tuple[str, str],
    release: str | None = None,
) -> int:
    """Run a bench on a slurmctld alone of profile `site`, with `options.nodes` powered-down cloud nodes; the status.

    Args:
        bench: called with the lab and the options.
        settings: of its slurm.conf.
        release: of Slurm, as scripts/slurm-lab takes it.
    """
    config = LabConfig(
        nodes=options.nodes,
        profile="site",
        controller_only=True,
        users=os.geteuid() == 0,
        release=release,
        settings=(("MessageTimeout", "60"), ("MaxArraySize", "10001"), *settings),
    )
    try:
        with Lab.up(f"/tmp/mtbench-{secrets.token_hex(3)}", config, deadline_s=120) as lab:
            bench(lab, options)
    except LabError as error:
        print(f"{Path(sys.argv[0]).stem}: {error}", file=sys.stderr)
        return 2
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0


def placed(lab: Lab, partition: str) -> int:
    """How many jobs and tasks of a partition have their nodes."""
    rows = lab.run(["squeue", "-h", "-r", "-p", partition, "-t", "R,CF", "-o", "%A"], timeout=60).stdout
    return len(rows.split())


def fill(lab: Lab, jobs: int, nodes: int, waiting: int = 0) -> None:
    """Main jobs on `nodes` of the nodes, alike, and `waiting` ones that want the whole machine."""
    wide = [f"--nodes={max(1, nodes // jobs)}", "--exclusive", "--time=600"]
    # Tasks of an array: each has a row of its own once it runs.
    lab.submit("true", "-p", "batch", f"--array=0-{jobs - 1}", *wide)
    lab.wait_for(lambda: placed(lab, "batch") >= jobs, 240, f"{jobs} main jobs on their nodes")
    for _ in range(waiting):
        lab.submit("true", "-p", "batch", f"--nodes={len(lab.nodes)}", "--exclusive", "--time=60")
