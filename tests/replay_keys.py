"""Settings of a replay in its argument vector, for tests: KEY=VALUE goes into the table [replay] of a file, and
SECTION.KEY=VALUE into the daemon's configuration in it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_SETTING = re.compile(r"([a-z_.]+)=(.*)", re.DOTALL)
#: What is written without quotes in TOML.
_BARE = re.compile(r"-?\d+(\.\d+)?|true|false|\[.*\]", re.DOTALL)


def keyed(folder: Path, argv: Iterable[str]) -> list[str]:
    """The arguments with each `key=value` in a file of `folder`, beside what `--config FILE` names already."""
    rest, lines = [], []
    for argument in argv:
        found = _SETTING.fullmatch(argument)
        if found is None:
            rest.append(argument)
        else:
            lines.append(f"{found[1]} = {found[2] if _BARE.fullmatch(found[2]) else repr(found[2])}\n")
    if not lines:
        return rest
    text = ""
    if "--config" in rest:
        at = rest.index("--config")
        text = (folder / rest[at + 1]).read_text()
        del rest[at : at + 2]
    file = folder / "replay.toml"
    keys = [line if "." in line.partition("=")[0] else f"replay.{line}" for line in lines]
    file.write_text(f"{''.join(keys)}{text}\n")
    return [*rest, "--config", str(file)]
