"""Answers that take long, kept for a moment: many who look at a large site cost one look."""

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

#: The answers to so many questions are kept.
MAX_KEPT = 256


def text_of(value: Any) -> bytes:
    """JSON as Starlette's JSONResponse writes it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


class KeptAnswers:
    """Texts by what was asked. Safe from any thread. `keep_s`: for how long (seconds) a text is kept, by its bytes
    and the seconds that it took."""

    def __init__(self, keep_s: Callable[[int, float], float], elapsed: Callable[[], float] = time.monotonic) -> None:
        self._keep_s, self._elapsed = keep_s, elapsed
        self._kept: OrderedDict[Hashable, tuple[float, bytes]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """The text that was made for `key` a moment ago, or what `make` returns. Raises what `make` raises."""
        if (kept := self.kept(key)) is not None:
            return kept
        begun = self._elapsed()
        text = make()
        done = self._elapsed()
        self._kept[key] = (done + self._keep_s(len(text), done - begun), text)
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return text

    def kept(self, key: Hashable) -> bytes | None:
        """The text that was made for `key` a moment ago, if there is one. Does not block."""
        until, text = self._kept.get(key, (0.0, None))
        return text if self._elapsed() < until else None
