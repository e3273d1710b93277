"""What is wrong with a file, each fault with its place and in words that say what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from malletrain.config.sections import SECTIONS, TABLES, Config


@dataclass(frozen=True, slots=True)
class ConfigFault:
    """One thing that is wrong. `line` is None when the fault has no line of its own (a key that is missing)."""

    file: str
    line: int | None
    key: str
    what: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.key}: {self.what}" if self.key else f"{place}: {self.what}"


class ConfigError(Exception):
    """The configuration cannot be used. `faults` names everything that is wrong with it, in the file's order."""

    exit_status = 2

    def __init__(self, faults: Sequence[ConfigFault]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = tuple(faults)


def faults_of(error: ValidationError, text: str, file: str) -> list[ConfigFault]:
    """The faults that pydantic found in `text`, in the file's order."""
    lines = _lines_of_keys(text)
    faults = []
    for detail in error.errors(include_url=False, include_context=True):
        # Beside keys and indices a location names the member of a union that was tried: leave those out.
        path = tuple(str(part) for part in detail["loc"] if not _is_union_member(part))
        keys = tuple(part for part in path if not part.isdigit())
        line = next((lines[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in lines), None)
        faults.append(ConfigFault(file, line, ".".join(path), _say(detail["type"], detail["msg"], keys, detail)))
    unique = dict.fromkeys(_merge_unions(faults))
    return sorted(unique, key=lambda fault: (fault.line or 0, fault.key))


def gone_keys(gone: Mapping[tuple[str, ...], str], text: str, file: str) -> list[ConfigFault]:
    """What is said of keys that are gone; none of them keeps the daemon from starting."""
    lines = _lines_of_keys(text)
    return [
        ConfigFault(file, lines.get(path), ".".join(path), f"is gone, because {why}; remove it")
        for path, why in gone.items()
    ]


def _is_union_member(part: str | int) -> bool:
    return isinstance(part, str) and (
        part.startswith(("literal[", "constrained-", "function-")) or part in ("float", "int")
    )


def _merge_unions(faults: Sequence[ConfigFault]) -> list[ConfigFault]:
    """One fault a key: for `auto` or a number pydantic reports both ways in which the value does not fit."""
    merged: dict[tuple[int | None, str], ConfigFault] = {}
    for fault in faults:
        place = (fault.line, fault.key)
        before = merged.get(place)
        merged[place] = (
            fault
            if before is None
            else ConfigFault(
                fault.file, fault.line, fault.key, f"{before.what.partition(' (given')[0]}, or {fault.what}"
            )
        )
    return list(merged.values())


def _say(kind: str, message: str, keys: tuple[str, ...], detail: Mapping[str, Any]) -> str:
    """A fault in words that say what to do."""
    given = repr(detail["input"])
    given = given if len(given) <= 60 else given[:57] + "..."
    if kind == "extra_forbidden":
        section = SECTIONS.get(keys[0]) if len(keys) > 1 else Config
        section = TABLES.get(keys[:2], section) if len(keys) > 2 else section
        known = list(section.model_fields) if section else []
        return f"unknown key{_nearest(keys[-1], known, whole_file=len(keys) == 1)}"
    if kind == "value_error":
        return f"{message.removeprefix('Value error, ')} (given: {given})"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"is a section: write [{keys[-1]}] on a line of its own, its keys below"
    words = (
        message.replace("Input should be a valid integer", "give a whole number")
        .replace("Input should be a valid", "give a")
        .replace("Input should be", "give")
    )
    words = words.replace("give greater than or equal to", "give at least").replace(
        "give less than or equal to", "give at most"
    )
    words = re.sub(r".* should have at least 1 (character|item).*", "must not be empty", words)
    return f"{words} (given: {given})"


def _nearest(key: str, known: Sequence[str], *, whole_file: bool) -> str:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]}?"
    if whole_file:
        for name, section in SECTIONS.items():
            if key in section.model_fields:
                return f" here; it belongs in [{name}]"
    return f"; known here: {', '.join(known)}"


_TABLE = re.compile(r"\s*\[?\[\s*([A-Za-z0-9_.\"' -]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_.\"'-]+)\s*=")


def _lines_of_keys(text: str) -> dict[tuple[str, ...], int]:
    """The line of each table and key. tomllib keeps no places, so this reads the text again, line by line.

    It only ever names a line for a fault that the parser has found: text that looks like a key inside a
    multi-line string could at worst mislead about the line.
    """
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if found := _TABLE.match(line):
            table = _dotted(found[1])
            lines.setdefault(table, number)
        elif found := _KEY.match(line):
            lines.setdefault((*table, *_dotted(found[1])), number)
    return lines


def _dotted(text: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in text.split("."))
