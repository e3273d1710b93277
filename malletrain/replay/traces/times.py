"""Times and durations as Slurm and the other logs write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo

#: Words that stand for no time at all (sacct(1)).
NO_TIME = frozenset({"", "unknown", "none", "n/a", "na", "nan", "null", "(null)", "invalid", "-1"})

#: Times outside 1970-2200 are damage, not times.
EARLIEST, LATEST = 0.0, 7_258_118_400.0

_DURATION = re.compile(r"(?:(\d{1,6})-)?(?:(\d{1,6}):)?(\d{1,6}):(\d{1,2})(?:\.\d+)?$")


class TimeParser:
    """Turns text into Unix seconds, or None where there is no sound time.

    Reads ISO 8601 (also with a blank for the T), with an offset or without, and Unix seconds. A time without an
    offset is local to `zone`. The last answer is kept: logs repeat times.
    """

    def __init__(self, zone: tzinfo = UTC) -> None:
        self.zone = zone
        self._last: tuple[str, float | None] = ("", None)

    def __call__(self, text: str) -> float | None:
        if text == self._last[0]:
            return self._last[1]
        answer = self._parse(text.strip())
        self._last = (text, answer)
        return answer

    def _parse(self, text: str) -> float | None:
        if text.lower() in NO_TIME:
            return None
        try:
            if text[4:5] == "-":
                moment = datetime.fromisoformat(text)
                seconds = (moment if moment.tzinfo else moment.replace(tzinfo=self.zone)).timestamp()
            else:
                seconds = float(text)
        except (ValueError, OverflowError):
            return None
        return seconds if EARLIEST < seconds < LATEST else None


def is_no_time(text: str) -> bool:
    """Whether the log itself says that there is no such time (`Unknown`), as against an unreadable one."""
    return text.strip().lower() in NO_TIME


def duration(text: str) -> float | None:
    """Seconds of Slurm's `[DD-[HH:]]MM:SS[.mmm]`; None where it is none."""
    match = _DURATION.match(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds
