"""What is wrong with a file, each fault with its key and in words that say what to do."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from pydantic import ValidationError

from malletrain.config.sections import SECTIONS, TABLES, Config


class ConfigError(Exception):
    """The configuration cannot be used. `faults` names everything that is wrong with it."""

    exit_status = 2

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


def faults_of(error: ValidationError, file: str) -> list[str]:
    """The faults that pydantic found, one line a key."""
    words: dict[str, list[str]] = {}
    for detail in error.errors(include_url=False):
        # Beside keys and indices a location names the member of a union that was tried: leave those out.
        path = tuple(str(part) for part in detail["loc"] if not _is_union_member(part))
        what = detail["msg"].removeprefix("Value error, ")
        if detail["type"] == "extra_forbidden":
            what = _unknown(tuple(part for part in path if not part.isdigit()))
        elif detail["type"] in ("model_type", "model_attributes_type", "dict_type"):
            what = f"is a section: write [{path[-1]}] on a line of its own, its keys below"
        else:
            what += f" (given: {detail['input']!r:.60})"
        words.setdefault(".".join(path), []).append(what)
    return [f"{file}: {key}: {', or '.join(dict.fromkeys(said))}" for key, said in words.items()]


def _is_union_member(part: str | int) -> bool:
    return isinstance(part, str) and (
        part.startswith(("literal[", "constrained-", "function-")) or part in ("float", "int")
    )


def _unknown(keys: tuple[str, ...]) -> str:
    section = SECTIONS.get(keys[0]) if len(keys) > 1 else Config
    section = TABLES.get(keys[:2], section) if len(keys) > 2 else section
    known = list(section.model_fields) if section else []
    close = difflib.get_close_matches(keys[-1], known, n=1, cutoff=0.6)
    return f"unknown key; did you mean {close[0]}?" if close else f"unknown key; known here: {', '.join(known)}"
