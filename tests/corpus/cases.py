"""Cases of the corpus, and how they are written down.

A group's page, recorded/GROUP.txt, has a line for each case: name, digest of its text, and a few words of it. Cases
marked `whole` also lie in recorded/GROUP/ as they are.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

RECORDED = Path(__file__).parent / "recorded"

#: Digits of a number that are recorded: the last bits differ between processors' arithmetic.
DIGITS = 9
_LONG_NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+(?:e[-+]?\d+)?(?![\w.])")


@dataclass(frozen=True, slots=True)
class Case:
    """One input's outcome. `words`: what a reader sees of it on the page; `whole`: its text is recorded too."""

    name: str
    text: str
    words: str = ""
    whole: bool = False

    @property
    def line(self) -> str:
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:12]
        return " ".join(f"{self.name} {digest} {self.words}".split())


def canonical(value: object, indent: int | None = 1) -> str:
    """JSON with sorted keys and rounded numbers."""
    return json.dumps(_rounded(value), sort_keys=True, ensure_ascii=False, allow_nan=False, indent=indent) + "\n"


def lines(rows: Iterable[object]) -> str:
    """Canonical JSON, a line for each row."""
    return "".join(canonical(row, None) for row in rows)


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return (float(f"{value:.{DIGITS}g}") + 0.0) if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, str) and value.startswith("{"):
        return _LONG_NUMBER.sub(lambda found: repr(_rounded(float(found[0]))), value)  # a column of JSON
    return value


def page(cases: Iterable[Case]) -> str:
    """The page of a group. Names are unique."""
    found = list(cases)
    names = [case.name for case in found]
    doubled = {name for name in names if names.count(name) > 1}
    if doubled:
        raise ValueError(f"several cases are called {', '.join(sorted(doubled))}")
    return "".join(f"{case.line}\n" for case in found)


def files(group: str, cases: Iterable[Case]) -> dict[str, str]:
    """What is recorded of a group: text by path below `RECORDED`."""
    found = list(cases)
    return {f"{group}.txt": page(found)} | {f"{group}/{case.name}": case.text for case in found if case.whole}


def recorded(group: str) -> dict[str, str]:
    """The same, as it was recorded; empty where it was not."""
    paths = [RECORDED / f"{group}.txt", *sorted((RECORDED / group).glob("**/*"))]
    return {str(path.relative_to(RECORDED)): path.read_text("utf-8") for path in paths if path.is_file()}
