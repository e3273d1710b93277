"""What a guard does with what it finds."""

from __future__ import annotations

import logging
from typing import Literal

from malletrain.elastic.errors import ElasticError

log = logging.getLogger("malletrain.elastic")

#: How strict the guards are: `Session(check=...)`.
Check = Literal["error", "warn", "off"]


class Objections:
    """Raises or logs objections, by the session's check.

    Args:
        check: `error` raises each objection; otherwise each is logged once.
    """

    def __init__(self, check: Check) -> None:
        self._raises = check == "error"
        self._warned: set[str] = set()

    def raise_or_warn(self, message: str, key: str = "") -> None:
        """Object to what was found.

        Args:
            message: what is wrong, and the cure.
            key: of objections that are logged once for all; by default the message.

        Raises:
            ElasticError: the check is `error`.
        """
        if self._raises:
            raise ElasticError(message)
        self.warn(message, key)

    def warn(self, message: str, key: str = "") -> None:
        """Log a message, unless one of this key has been logged."""
        if (key or message) not in self._warned:
            self._warned.add(key or message)
            log.warning("%s", message)
