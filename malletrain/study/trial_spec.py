"""What one trial trains: a function of the study file, or a script, with its parameters; as a file in its folder.

Standard library only: training processes read it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from malletrain.domain.errors import InvalidInput
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.private_folder import PrivateFolder

SPEC_FILE = "order.json"
_RANGE = re.compile(r"([1-9]\d{0,5})-([1-9]\d{0,5})\Z|([1-9]\d{0,5})\Z")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_\-]*\Z")


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """One training. `file` is an absolute path; `function` the name of one in it, or empty: the file is a script
    and gets its parameters as `--name=value`. `folder` is where its output and its faults go."""

    name: str
    folder: str
    file: str
    function: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    nodes: str = "1-4"

    def write(self) -> None:
        """Put it into its folder, whole or not at all.
        Raises InvalidInput: a parameter cannot be written as JSON, or others can write to the folder; names it."""
        for name, value in self.params.items():
            if not _NAME.match(name):
                raise InvalidInput(f"parameter {name!r}", "is no name such as lr or batch_size")
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as error:
                raise InvalidInput(
                    f"parameter {name}", f"cannot be handed to the training ({error}): numbers, text and lists can"
                ) from error
        draft = f".{SPEC_FILE}.{os.getpid()}"
        try:
            with PrivateFolder.at(Path(self.folder), create=True) as folder:
                folder.remove(draft)
                with open(draft, "x", opener=folder.opener) as file:
                    json.dump(asdict(self), file)
                folder.rename(draft, SPEC_FILE)
        except ElasticError as error:
            raise InvalidInput("folder", str(error)) from error

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> TrialSpec:
        """The spec in a folder, which says what code to run.
        Raises ElasticError: others can write to the folder or to the spec."""
        with PrivateFolder.at(Path(folder)) as opened, open(SPEC_FILE, opener=opened.opener) as file:
            return cls(**json.load(file))


def node_range(nodes: str) -> tuple[int, int]:
    """The least and most nodes of `1-8`, or of `4`.
    Raises InvalidInput: it is neither a count nor MIN-MAX."""
    match = _RANGE.match(nodes)
    if match is None:
        raise InvalidInput("nodes", f"{nodes[:40]!r} is neither a number of nodes nor MIN-MAX, as 1-8")
    least, most = int(match[1] or match[3]), int(match[2] or match[3])
    if least > most:
        raise InvalidInput("nodes", f"MIN {least} is above MAX {most}")
    return least, most


def fault_file(folder: str | os.PathLike[str], run: str) -> Path:
    """Where a training process that fails leaves word; `run` is the job's number, or a process's."""
    return Path(folder) / f"fault-{run}.json"
