"""What a lab remembers of itself in its directory: lab.json."""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from scripts.lab.errors import LabError
from scripts.lab.layout import Layout, publish
from scripts.lab.packages import Toolchain
from scripts.lab.processes import Process


@dataclass(frozen=True)
class Record:
    """One lab as it was brought up.

    `made_root`: the lab's directory did not exist before. `ends_with`: the process at whose end the lab goes down.
    `files`: the names of configuration files added to it. `namespaces`: the network namespaces of its nodes' daemons,
    in their order; empty where they have none of their own.
    """

    made_root: bool
    nodes: tuple[str, ...] = ()
    profile: str = ""
    release: str | None = None
    accounting: bool = False
    users: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    toolchain: Toolchain = field(default_factory=Toolchain)
    processes: tuple[Process, ...] = ()
    ends_with: Process | None = None
    files: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()

    def having(self, process: Process) -> "Record":
        """With `process` in place of the former one of its name."""
        others = tuple(p for p in self.processes if p.name != process.name)
        return replace(self, processes=(*others, process))

    def process(self, name: str) -> Process:
        """The daemon `name` ("slurmctld", "slurmd.n000", "munged", "slurmdbd", "mariadbd", "warden")."""
        for process in self.processes:
            if process.name == name:
                return process
        raise LabError(f"no daemon {name!r} in this lab; it has {', '.join(p.name for p in self.processes)}")


def write(layout: Layout, record: Record) -> None:
    """Replaces lab.json in one step, so that a reader never sees half of it."""
    publish(layout.state_file, json.dumps(asdict(record), indent=1, default=str) + "\n")


def read(layout: Layout) -> Record | None:
    """The lab's record; None where there is no lab. LabError on a file that no lab wrote."""
    try:
        text = layout.state_file.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(text).items()}
        tools = plain["toolchain"]
        paths: dict[str, Any] = {k: v and Path(v) for k, v in tools.items() if k != "path"}
        plain["toolchain"] = Toolchain(tools["path"], **paths)
        plain["processes"] = tuple(Process(**p) for p in plain["processes"])
        plain["ends_with"] = plain["ends_with"] and Process(**plain["ends_with"])
        return Record(**plain)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"not a lab's record ({error}): remove it, and the lab beside it"
        raise LabError(f"{layout.state_file}: {why}") from error
