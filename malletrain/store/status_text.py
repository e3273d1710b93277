"""The status of a large site as JSON text: what has not changed since the last answer is not written again.

Of 10,000 nodes and 1,000 jobs most are the same from one answer to the next, and writing their rows took most of an
answer's processor time.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from malletrain.domain.errors import MalletrainError
from malletrain.domain.snapshot import Snapshot
from malletrain.wire.rows import JobRow, NodeRow, StatusRow

#: Of a pilot that holds a node: its job, its name, and when its time limit runs out.
PilotOfNode = tuple[int, str, float | None]


def text_of(value: Any) -> str:
    """JSON as Starlette's JSONResponse writes it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


#: Shorter texts (bytes) are not kept: those of some 1,500 nodes.
KEPT_FROM_BYTES = 250_000

#: A text is kept for so many times what it took, at most for so long (seconds).
KEPT_TIMES, MAX_KEPT_S = 40.0, 2.0


@dataclass(frozen=True)
class _Kept:
    text: bytes
    made_at: float
    keep_s: float


class KeptTexts:
    """Long texts, kept for a moment: the more processor time they take, the longer.

    A text that many ask for is written anew in a thread of its own from half of its time on, so that nobody waits
    for it. Safe from any thread.

    Args:
        elapsed: seconds of a clock that never jumps.
        taken: seconds of processor time of the calling thread.
        start: runs a call beside this one.
    """

    def __init__(
        self,
        elapsed: Callable[[], float] = time.monotonic,
        taken: Callable[[], float] = time.thread_time,
        start: Callable[[Callable[[], None]], None] = lambda call: threading.Thread(target=call, daemon=True).start(),
    ) -> None:
        self._elapsed, self._taken, self._start = elapsed, taken, start
        self._lock = threading.Lock()
        self._kept: dict[Hashable, _Kept] = {}
        self._under_way: set[Hashable] = set()

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """The text that was made for `key` a moment ago, or what `make` returns. Raises what `make` raises."""
        kept = self.kept(key, make)
        return self._make(key, make) if kept is None else kept

    def kept(self, key: Hashable, make: Callable[[], bytes]) -> bytes | None:
        """The text that was made for `key` a moment ago, if there is one. Does not block."""
        with self._lock:
            kept = self._kept.get(key)
            age = 0.0 if kept is None else self._elapsed() - kept.made_at
            if kept is None or age > kept.keep_s:
                return None
            begins = age > kept.keep_s / 2 and key not in self._under_way
            if begins:
                self._under_way.add(key)
        if begins:
            self._start(lambda: self._make_in_thread(key, make))
        return kept.text

    def _make(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        at, began = self._elapsed(), self._taken()
        text = make()
        took = self._taken() - began
        with self._lock:
            self._kept.pop(key, None)
            if len(text) >= KEPT_FROM_BYTES:
                self._kept[key] = _Kept(text, at, min(MAX_KEPT_S, KEPT_TIMES * took))
        return text

    def _make_in_thread(self, key: Hashable, make: Callable[[], bytes]) -> None:
        try:
            self._make(key, make)
        except MalletrainError:
            pass  # whoever asks next, once the kept text is too old, gets the error
        finally:
            with self._lock:
                self._under_way.discard(key)


@dataclass
class _Nodes:
    """The rows of one snapshot's nodes without pilots, written."""

    snapshot: Snapshot
    names: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


class StatusText:
    """Writes statuses. Safe to call from many threads: they take turns."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._nodes: _Nodes | None = None
        self._pilots: dict[str, tuple[PilotOfNode, str]] = {}
        self._jobs: dict[int, tuple[Hashable, str]] = {}

    def write(
        self,
        rest: StatusRow,
        snapshot: Snapshot | None,
        with_pilots: Mapping[str, PilotOfNode],
        jobs: Sequence[tuple[int, Hashable, Callable[[], JobRow]]],
        strays: Collection[str] = (),
    ) -> bytes:
        """The text of a status.

        Args:
            rest: the status, its nodes and jobs empty.
            snapshot: whose nodes are shown; None: none are.
            with_pilots: the pilots that hold nodes, by the node's name.
            strays: nodes of jobs in the harvest partition that are no pilots.
            jobs: number, all that the row is made from, and what makes it.
        """
        with self._turn:
            nodes = "" if snapshot is None else ",".join(self._node_texts(snapshot, with_pilots, strays))
            shown = ",".join(self._job_texts(jobs))
        parts = []
        for name, value in rest.to_json().items():
            lines = {"nodes": nodes, "jobs": shown}.get(name)
            parts.append(f"{text_of(name)}:{text_of(value) if lines is None else f'[{lines}]'}")
        return f"{{{','.join(parts)}}}".encode()

    def _node_texts(
        self, snapshot: Snapshot, with_pilots: Mapping[str, PilotOfNode], strays: Collection[str]
    ) -> list[str]:
        known = self._nodes
        if known is None or known.snapshot is not snapshot:
            known = self._nodes = _Nodes(snapshot)
            for node in snapshot.nodes:
                holders = snapshot.holders.get(node.name, ())
                row = NodeRow(node.name, node.state.value, holder=holders[0].id if holders else "")
                known.names.append(node.name)
                known.texts.append(text_of(row.to_json()))
        texts = {
            name: text_of(NodeRow(name, "stray", holder=snapshot.holders[name][0].id).to_json())
            for name in strays
            if name in snapshot.holders
        }
        texts |= {name: self._pilot_text(name, pilot) for name, pilot in with_pilots.items()}
        self._pilots = {name: self._pilots[name] for name in with_pilots}
        if not texts:
            return known.texts
        return [texts.get(name) or text for name, text in zip(known.names, known.texts, strict=True)]

    def _pilot_text(self, name: str, pilot: PilotOfNode) -> str:
        known = self._pilots.get(name)
        if known is None or known[0] != pilot:
            known = self._pilots[name] = (pilot, text_of(NodeRow(name, "pilot", *pilot).to_json()))
        return known[1]

    def _job_texts(self, jobs: Sequence[tuple[int, Hashable, Callable[[], JobRow]]]) -> list[str]:
        found: dict[int, tuple[Hashable, str]] = {}
        for number, made_from, make in jobs:
            known = self._jobs.get(number)
            if known is None or known[0] != made_from:
                known = (made_from, text_of(make().to_json()))
            found[number] = known
        self._jobs = found
        return [text for _, text in found.values()]
