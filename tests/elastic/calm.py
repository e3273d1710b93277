"""A world in which nothing happens, for step commits without a daemon."""

from __future__ import annotations


class Calm:
    """Nothing happens in this world."""

    def check(self, generation: int) -> None:
        pass

    def fault(self, generation: int, how: str, detail: str) -> None:
        raise RuntimeError(f"{how}: {detail}")

    def ready_for(self) -> int:
        return 0

    def is_ending(self) -> bool:
        return False
