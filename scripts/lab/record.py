"""What a lab remembers of itself in its directory: lab.json."""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from scripts.lab.errors import LabError
from scripts.lab.layout import Layout
from scripts.lab.packages import Toolchain
from scripts.lab.processes import Process
from scripts.lab.publish import publish


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
    plain = asdict(record)
    plain["toolchain"] = {k: v and str(v) for k, v in plain["toolchain"].items()}
    publish(layout.state_file, json.dumps(plain, indent=1) + "\n")


def read(layout: Layout) -> Record | None:
    """The lab's record; None where there is no lab. LabError on a file that no lab wrote."""
    try:
        text = layout.state_file.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        plain = json.loads(text)
        tools = plain["toolchain"]
        return Record(
            made_root=bool(plain["made_root"]),
            nodes=tuple(plain["nodes"]),
            profile=plain["profile"],
            release=plain["release"],
            accounting=bool(plain["accounting"]),
            users=tuple(plain["users"]),
            ports=tuple(plain["ports"]),
            toolchain=Toolchain(
                tools["path"],
                tools["plugin_directory"] and Path(tools["plugin_directory"]),
                tools["stepd"] and Path(tools["stepd"]),
                Path(tools["base"]),
            ),
            processes=tuple(Process(**p) for p in plain["processes"]),
            ends_with=plain["ends_with"] and Process(**plain["ends_with"]),
            files=tuple(plain["files"]),
            namespaces=tuple(plain["namespaces"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(
            f"{layout.state_file}: not a lab's record ({error}): remove it, and the lab beside it"
        ) from error
