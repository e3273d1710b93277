"""What `malletrain doctor` finds of a pair of daemons: the register's folder, and whether either daemon may fail."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from malletrain.config import Config
from malletrain.slurm.site.site_facts import Finding, Level
from malletrain.store.database import NETWORK_FILE_SYSTEMS, file_system_of
from malletrain.store.pair.register import Register, RegisterUnavailable
from malletrain.wire.failover import ROLE_PATH
from malletrain.wire.http import DaemonRefused, DaemonUnavailable, Http

GUIDE = "docs/how-to/admin-failover.md"

#: Seconds that a daemon has to say its role.
ROLE_TIMEOUT_S = 3.0


def failover_findings(config: Config, role: Callable[[str], str] | None = None) -> Iterator[Finding]:
    """What is found, also when all is well; nothing where there is one daemon.

    `role` says whether the daemon at a URL is "active", "passive" or "silent"; by default it is asked.
    """
    pair = config.failover
    if not pair.urls:
        return
    folder = Path(pair.shared)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield Finding(
            Level.ERROR,
            f"failover.shared {folder} is not there, or this user may not write it",
            "make it on a file system that both machines mount, for the user of malletraind, with mode 0700",
        )
        return
    kind = file_system_of(folder)
    if kind not in NETWORK_FILE_SYSTEMS:
        yield Finding(
            Level.WARNING,
            f"failover.shared {folder} is on {kind or 'no known file system'}: does the other machine see it?",
            "use a folder that both machines mount, such as one beside Slurm's StateSaveLocation",
        )
    try:
        with closing(Register(folder)) as register:
            term = register.read()
    except RegisterUnavailable as error:
        yield Finding(Level.ERROR, str(error), f"until it can be read, neither daemon takes over: {GUIDE}")
        return
    roles = {url: (role or _role)(url) for url in pair.urls}
    said = ", ".join(f"{url} is {is_}" for url, is_ in roles.items())
    active = [url for url, is_ in roles.items() if is_ == "active"]
    if term is None or len(active) != 1 or active[0] != term.holder:
        holder = "nobody yet" if term is None else term.holder
        yield Finding(Level.ERROR, f"the register names {holder} as the active daemon; {said}", f"see {GUIDE}")
    elif "silent" in roles.values() or not term.pairing:
        yield Finding(
            Level.WARNING,
            f"{said}; the passive one may lack something, so nothing takes over if the active one dies",
            "look at `systemctl status malletraind` on the passive one's machine",
        )
    else:
        yield Finding(Level.OK, f"{said}; either may fail (epoch {term.epoch})")


def _role(url: str) -> str:
    with Http(url, timeout_s=ROLE_TIMEOUT_S) as daemon:
        try:
            daemon.text(ROLE_PATH)
        except DaemonRefused:
            return "passive"
        except DaemonUnavailable:
            return "silent"
    return "active"
