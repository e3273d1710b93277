"""The group of processes that one `srun` step or torchrun started together: a world of fixed size.

Ranks come from the environment here; `mpi_group.mpi_world` takes them from MPI.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from malletrain.elastic.comm.addresses import own_host
from malletrain.elastic.comm.authentication import Meeting
from malletrain.elastic.comm.gloo_group import make_group
from malletrain.elastic.comm.group import Group, SoloGroup
from malletrain.elastic.comm.node_group import rank_in
from malletrain.elastic.comm.peer_store import PeerStore, StoreServer
from malletrain.elastic.errors import ElasticError, PeerLost
from malletrain.elastic.private_folder import PrivateFolder

#: Environment variable: a folder that all processes of a step share.
MEETING_FOLDER_VARIABLE = "MALLETRAIN_MEETING_DIR"

#: How long the processes of a step wait for each other.
RENDEZVOUS_TIMEOUT = timedelta(minutes=5)

_STORES: list[StoreServer] = []  #: kept alive until this process ends


def environment_world(environ: Mapping[str, str], timeout: timedelta = RENDEZVOUS_TIMEOUT) -> Group:
    """Connect all processes of this step over gloo, by torchrun's variables or else Slurm's; blocks until all have
    come. Pass the result to `Options(world=...)`.

    Rank 0 writes where it is, and a secret, to a file that this user alone can read, in MALLETRAIN_MEETING_DIR or
    else ~/.malletrain; the others read it there. It is removed when all have come. Raises `ElasticError`: the
    variables are missing, or not all processes came within `timeout`."""
    rank, size = rank_and_size(environ)
    if size == 1:
        return SoloGroup()
    folder = Path(environ.get(MEETING_FOLDER_VARIABLE) or Path.home() / ".malletrain")
    name = meeting_file(environ)
    try:
        host = step_host(environ)
        if rank > 0:
            return make_group(_find_meeting(folder, name, timeout), rank, size, host, timeout)
        meeting = _publish_meeting(folder, name, host)
        try:
            return make_group(meeting, rank, size, host, timeout)
        finally:
            with PrivateFolder.at(folder) as opened:
                opened.remove(name)
    except (PeerLost, OSError) as error:
        raise ElasticError(
            f"the {size} processes of this step did not meet by {folder / name}: {error}; set "
            f"{MEETING_FOLDER_VARIABLE} to a folder that all of them share, and MASTER_ADDR and MASTER_PORT to the "
            "same values in all of them"
        ) from error


def _publish_meeting(folder: Path, name: str, host: str) -> Meeting:
    """Serve a store, and tell this user's processes where it is and what it asks for."""
    server = StoreServer(host)
    _STORES.append(server)
    meeting = Meeting(server.address, 0, secrets.token_hex())
    server.trust(meeting)
    with PrivateFolder.at(folder, create=True) as opened:
        draft = f".{name}.{os.getpid()}"
        opened.remove(draft)
        with open(draft, "x", opener=opened.opener) as file:
            json.dump([meeting.address, meeting.secret], file)
        opened.rename(draft, name)
    return meeting


def _find_meeting(folder: Path, name: str, timeout: timedelta) -> Meeting:
    """The meeting that rank 0 has published; what an earlier run has left there does not answer."""
    end = time.monotonic() + timeout.total_seconds()
    while True:
        try:
            with PrivateFolder.at(folder) as opened, open(name, opener=opened.opener) as file:
                address, secret = json.load(file)
            meeting = Meeting(str(address), 0, str(secret))
            PeerStore.at(meeting, 1.0).close()
            return meeting
        except (FileNotFoundError, ValueError, PeerLost) as error:
            if time.monotonic() > end:
                raise PeerLost(str(error)) from error
            time.sleep(0.1)


def rank_and_size(environ: Mapping[str, str]) -> tuple[int, int]:
    """Rank and world size of this process. Raises `ElasticError` if the environment has neither."""
    for names in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), ("SLURM_PROCID", "SLURM_NTASKS")):
        if found := rank_in(environ, *names):
            return found
    raise ElasticError(
        "neither RANK and WORLD_SIZE nor SLURM_PROCID and SLURM_NTASKS say which process this is: start the script "
        "with srun or torchrun"
    )


def meeting_file(environ: Mapping[str, str]) -> str:
    """The name of this step's file. Raises `ElasticError` if the environment does not say which step it is."""
    for names in (("MASTER_ADDR", "MASTER_PORT"), ("SLURM_JOB_ID", "SLURM_STEP_ID")):
        if all(environ.get(name) for name in names):
            which = "-".join([":".join(environ[name] for name in names), environ.get("TORCHELASTIC_RUN_ID", "")])
            return "meeting-" + re.sub(r"[^\w.-]", "_", which)
    raise ElasticError("set MASTER_ADDR and MASTER_PORT: without them nothing says which processes belong together")


def step_host(environ: Mapping[str, str]) -> str:
    """The address at which the processes of this step reach this one."""
    other = environ.get("MASTER_ADDR") or environ.get("SLURM_LAUNCH_NODE_IPADDR")
    return own_host(other, environ.get("MALLETRAIN_ADDRESS"))
