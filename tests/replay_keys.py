"""Settings of a replay in its argument vector, for tests: KEY=VALUE goes into the table [replay] of a file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_SETTING = re.compile(r"([a-z_]+)=(.*)", re.DOTALL)
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
    file.write_text(f"{text}\n[replay]\n{''.join(lines)}")
    return [*rest, "--config", str(file)]
