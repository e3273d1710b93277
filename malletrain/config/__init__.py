"""The daemon's configuration: one TOML file, checked whole, every fault named at once with its line and key, in words
that say what to do.

Packages below `daemon` and `cli` never see it: they get plain values. It is in the lowest layer, with `domain`, so
its error has no base there; `ConfigError` carries the same `exit_status`.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from malletrain.config.gone import without_gone
from malletrain.config.sections import SECTIONS, TABLES, Config

#: Where the daemon looks when it is given no file.
SYSTEM_FILE = Path("/etc/malletrain/malletrain.toml")

#: A table that `malletrain replay` alone reads.
REPLAY_TABLE = "replay"

#: The member of a union that pydantic tried, in the place of a fault.
_UNION_MEMBER = re.compile(r"literal\[|constrained-|function-|(?:float|int)$")


class ConfigError(Exception):
    """The configuration cannot be used. `faults` names everything that is wrong with it."""

    exit_status = 2

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


def load(path: Path) -> Config:
    """Read and check a configuration file.
    Raises ConfigError: the file cannot be read, is not TOML, or holds faults: all of them are named."""
    return parse(_read(path), str(path))


def load_or_defaults(path: Path | None) -> Config:
    """The file that is named, or the site's where there is one, or the defaults: for commands that need no daemon.
    Raises ConfigError: as `load`."""
    if path is not None:
        return load(path)
    return load(SYSTEM_FILE) if SYSTEM_FILE.exists() else parse("", "defaults")


def load_for_user(environ: Mapping[str, str], path: Path | None = None) -> Config:
    """The configuration of `malletraind --user`: no file needed, state under the XDG folders, a free port.

    What `path` sets is kept; only defaults change.
    Raises ConfigError: as `load`, or neither HOME nor XDG_STATE_HOME is set."""
    file = str(path) if path else "--user"
    text = _read(path) if path else ""
    values = _values(text, file)
    state = user_state_dir(environ)
    for section, key, value in (("store", "path", str(state / "malletrain.db")), ("api", "port", 0)):
        table = values.setdefault(section, {})
        if isinstance(table, dict):
            table.setdefault(key, value)
    return _check(values, file, text)


def user_state_dir(environ: Mapping[str, str]) -> Path:
    """Where a user's own daemon keeps its journal (XDG Base Directory Specification 0.8: XDG_STATE_HOME).
    Raises ConfigError: neither XDG_STATE_HOME nor HOME is set."""
    base = environ.get("XDG_STATE_HOME", "")
    if base and Path(base).is_absolute():  # relative ones are to be ignored, says the specification
        return Path(base) / "malletrain"
    if home := environ.get("HOME", ""):
        return Path(home) / ".local" / "state" / "malletrain"
    raise ConfigError(["--user: set HOME or XDG_STATE_HOME: the journal needs a place"])


def parse(text: str, file: str) -> Config:
    """Check the text of a configuration file; `file` names it in faults.
    Raises ConfigError: naming every fault."""
    return _check(_values(text, file), file, text)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        what = f"cannot be read ({os.strerror(error.errno or 0)}); give --config FILE, or start from small.toml"
        raise ConfigError([f"{path}: {what}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: is not UTF-8 text (byte {error.start})"]) from error


def _values(text: str, file: str) -> dict[str, Any]:
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError([f"{file}: not TOML: {error}"]) from error
    values.pop(REPLAY_TABLE, None)
    return values


def _check(values: Mapping[str, Any], file: str, text: str) -> Config:
    place = place_in(text, file)
    kept, gone = without_gone(values)
    try:
        config = Config.model_validate(kept)
    except ValidationError as error:
        raise ConfigError(faults_of(error, place)) from error
    return config.with_gone(
        f"{place(path)}{'.'.join(path)}: is gone, because {why}; remove it" for path, why in gone.items()
    )


_TABLE = re.compile(r"\s*\[?\[\s*([A-Za-z0-9_.\"' -]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_.\"'-]+)\s*=")


def place_in(text: str, file: str) -> Callable[[Sequence[str]], str]:
    """A function that returns the file and line of a key, or of the table around it, with which faults begin.

    tomllib keeps no lines, so the text is read again; what looks like a key within a string of several lines could at
    worst mislead about a line.
    """
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if found := _TABLE.match(line):
            table = _dotted(found[1])
            lines.setdefault(table, number)
        elif found := _KEY.match(line):
            lines.setdefault((*table, *_dotted(found[1])), number)

    def place(path: Sequence[str]) -> str:
        keys = tuple(part for part in path if not part.isdigit())
        number = next((lines[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in lines), None)
        return f"{file}: " if number is None else f"{file}:{number}: "

    return place


def _dotted(text: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in text.split("."))


def faults_of(error: ValidationError, place: Callable[[Sequence[str]], str]) -> list[str]:
    """The faults that pydantic found, one line a key, which begins with the key's place."""
    words: dict[tuple[str, ...], list[str]] = {}
    for detail in error.errors(include_url=False):
        # Beside keys and indices a location names the member of a union that was tried: leave those out.
        path = tuple(str(part) for part in detail["loc"] if not _UNION_MEMBER.match(str(part)))
        what = detail["msg"].removeprefix("Value error, ")
        if detail["type"] == "extra_forbidden":
            what = _unknown(tuple(part for part in path if not part.isdigit()))
        elif detail["type"] in ("model_type", "model_attributes_type", "dict_type"):
            what = f"is a section: write [{path[-1]}] on a line of its own, its keys below"
        else:
            what += f" (given: {detail['input']!r:.60})"
        words.setdefault(path, []).append(what)
    return [f"{place(path)}{'.'.join(path)}: {', or '.join(dict.fromkeys(said))}" for path, said in words.items()]


def _unknown(keys: tuple[str, ...]) -> str:
    section = SECTIONS.get(keys[0]) if len(keys) > 1 else Config
    section = TABLES.get(keys[:2], section) if len(keys) > 2 else section
    known = list(section.model_fields) if section else []
    close = difflib.get_close_matches(keys[-1], known, n=1, cutoff=0.6)
    return f"unknown key; did you mean {close[0]}?" if close else f"unknown key; known here: {', '.join(known)}"
