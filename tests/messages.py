"""What a message for people must say, whatever its words: names, figures, keys, options, commands (ADR 25)."""

from __future__ import annotations

import re


def naming(*each: object) -> str:
    """A pattern that finds these in one line of a message, each by itself and in this order."""
    return ".*".join(rf"(?<![\w])(?<!\w\.){re.escape(str(one))}(?!\.?\w)" for one in each)


def says(message: object, *each: object) -> bool:
    """Whether one line of a message has these facts."""
    return re.search(naming(*each), str(message)) is not None
