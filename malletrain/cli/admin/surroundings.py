"""What `malletrain doctor` finds beside Slurm's own settings: of the network, of the Python that the site names for
pilots (client.toml), and of the reserve.

Of a heterogeneous job, Slurm starts the part that finds idle nodes, gives it up again where another part must
preempt, and puts the whole off by cred_expire and a second (`_het_job_kill_now` in backfill.c). Where no part finds
nodes, it puts nothing off. So a reserve that holds a part of a hetjob alone is worse than none.
"""

import os
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

from malletrain.config.sections import Config
from malletrain.domain.errors import ClusterUnavailable
from malletrain.slurm.command import Commands
from malletrain.slurm.queries import past_arrivals
from malletrain.slurm.site.site_facts import ERROR, OK, WARNING, Finding, Harvest, findings
from malletrain.slurm.submission.job_python import PROBE
from malletrain.wire.munge import user_name

#: Any user may listen on this port and above.
FIRST_UNPRIVILEGED_PORT = 1024

GUIDE = "docs/how-to/admin-network.md"


def network_findings(config: Config, proc: Path = Path("/proc/net")) -> Iterator[Finding]:
    """What is found, also when all is well. `proc`: where the kernel lists this machine's sockets."""
    api = config.api
    tls, loopback = urlsplit(api.url).scheme == "https", api.host in ("127.0.0.1", "::1", "localhost")
    yield from findings([
        (tls and loopback, OK, f"callers reach the daemon by TLS alone ({api.url})", ""),
        (tls and not loopback, WARNING,
         f"{api.url} is TLS, but {api.host}:{api.port} also accepts callers without it",
         'set api.host = "127.0.0.1" once no job has the http URL in its script'),
        (not tls, OK, f"callers authenticate by MUNGE, and nothing is encrypted; TLS: {GUIDE}", ""),
        (api.host in ("0.0.0.0", "::", ""), WARNING,  # noqa: S104  it is looked for, not listened on
         f"the API listens on every interface of this machine (api.host = {api.host!r})",
         "set api.host to the address that login and compute nodes reach, or filter the port"),
    ])  # fmt: skip
    yield from _holders_of_port(api.port, proc)


def _holders_of_port(port: int, proc: Path) -> Iterator[Finding]:
    """Who on this machine listens on the daemon's port. Nothing is said where nobody does: on another machine."""
    held = _listeners(port, proc)
    uids = {uid for uid, _, _ in held}
    if not port or not uids:
        return
    # Where both families are, every IPv6 address is every IPv4 address too.
    family = "tcp6" if (proc / "tcp6").exists() else "tcp"
    strange = sorted(uid for uid in uids if uid >= 1000 and uid != os.geteuid())  # lower: the system's (UID_MIN)
    names = ", ".join(map(user_name, strange or sorted(uids)))
    every = findings([
        (strange or len(uids) > 1, ERROR,
         f"port {port} of this machine is held by {names}: callers' credentials and reports may go there",
         f"unless malletraind runs as that user alone, find the process (`ss -ltnp sport = :{port}`) and end it"),
        ((0, family, True) in held, OK, f"root holds port {port}: nobody can take the daemon's place", ""),
        (uids == {0}, WARNING,
         f"root holds port {port} on some addresses only: any account of this machine can take it on others",
         f"systemctl edit malletraind.socket: an empty ListenStream=, then ListenStream={port} without an address"),
        (port >= FIRST_UNPRIVILEGED_PORT, WARNING,
         f"any account of this machine can take port {port} while the daemon is away: no socket unit holds it",
         "systemctl enable malletraind.socket && systemctl restart malletraind"),
    ])  # fmt: skip
    yield from islice(every, 1)


def _listeners(port: int, proc: Path) -> set[tuple[int, str, bool]]:
    """The sockets that listen on a port (proc(5), /proc/net/tcp): user id, family, and whether on every address."""
    found = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for words in map(str.split, lines):
            if len(words) > 7 and words[3] == "0A" and words[1].endswith(f":{port:04X}"):
                found.add((int(words[7]), name, not words[1].partition(":")[0].strip("0")))
    return found


#: Seconds that srun may wait for an idle node, and for all of it.
NODE_S, TRIAL_S = 10, 60.0

#: What srun, the loader and Python say where the interpreter cannot run a pilot.
_FAULT = re.compile(
    "No such file|execve|No module named|nknown option|Permission denied|SyntaxError|ImportError|shared libraries|"
    "GLIBC|Exec format|Illegal instruction|Segmentation fault"
)


def python_findings(commands: Commands, harvest: Harvest, python: str) -> Iterator[Finding]:
    """Run `python` once on an idle node of the harvest partition; nothing where the site names none."""
    if not python:
        return
    names = {"partition": harvest.partition, "account": harvest.account, "qos": harvest.qos}
    where = [f"--{name}={value}" for name, value in names.items() if value]
    fixed = ["--nodes=1", "--ntasks=1", "--time=1", f"--immediate={NODE_S}", "--mpi=none", "--job-name=doctor"]
    try:
        why = commands.run(["srun", *where, *fixed, python, "-P", "-c", PROBE], TRIAL_S).error
    except ClusterUnavailable as error:
        why = str(error)
    unable = _FAULT.search(why)
    yield from findings([
        (not why, OK, f"{python} (client.toml) runs pilots: tried on a node", ""),
        (unable, ERROR, f"{python} (client.toml) cannot run a pilot on a node: {why[:300]}",
         "install malletrain where compute nodes have it, and name its Python in client.toml"),
        (why and not unable, WARNING, f"{python} (client.toml) could not be tried on a node: {why[:300]}", ""),
    ])  # fmt: skip


def reserve_findings(commands: Commands, config: Config) -> tuple[Finding, ...]:
    """Whether pool.keep_idle would put off heterogeneous jobs of the last week, by accounting. Nothing is said of a
    reserve by leaves, or of one that a promise makes as large as it must be."""
    pool = config.pool
    if not pool.keep_idle or pool.keep_leaves or config.promise.main_delay_p95 is not None:
        return ()
    seen = hetjobs_in(past_arrivals(commands, config.slurm.partition, 7))  # without one in a week: has none
    harmless, width = harmless_reserve(pool.keep_idle, seen)
    if not width:
        return ()
    what = (
        f"pool.keep_idle = {pool.keep_idle} lets Slurm start a part of heterogeneous jobs of {width} nodes, "
        "and put the whole off by minutes"
    )
    remedy = f"set pool.keep_idle to {harmless}, or to {width} or more, or shorten cred_expire (AuthInfo)"
    return (Finding(WARNING, what, remedy),)


def hetjobs_in(arrivals: Iterable[tuple[str, float, int]]) -> list[tuple[int, int]]:
    """The nodes of all components and of the smallest, of each heterogeneous job among main jobs: id (`12+0` of a
    component), submission, nodes."""
    parts: dict[str, list[int]] = {}
    for identity, _, nodes in arrivals:
        number, plus, _ = identity.partition("+")
        if plus:
            parts.setdefault(number, []).append(nodes)
    return [(sum(nodes), min(nodes)) for nodes in parts.values()]


def harmless_reserve(keep_idle: int, hetjobs: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """The largest reserve of at most `keep_idle` nodes that holds a part of none of `hetjobs` without the whole, and
    the nodes of the widest that a larger one would put off (0: none)."""
    nodes, widest = keep_idle, 0
    for width, least in sorted(set(hetjobs), reverse=True):
        if least <= nodes < width:
            nodes, widest = max(0, least - 1), max(widest, width)
    return nodes, widest
