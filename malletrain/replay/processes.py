"""Pieces of replays side by side, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing.sharedctypes import Synchronized
from typing import Any

from malletrain.replay.parts import Part
from malletrain.replay.result import Result
from malletrain.replay.scoring.figures import Score
from malletrain.replay.sizer import PolicyChoice

#: Called with the share done of each replay.
Progress = Callable[[list[float]], None]
#: Replays one part; the last argument is called with the share of it that is done.
RunPart = Callable[[Part, PolicyChoice, Callable[[float], None]], Result | Score]
#: What comes out of each replay's pieces, in their order.
Found = list[list[Result | Score]]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the replay number `of`, `share` of the whole."""

    of: int
    share: float
    part: Part
    choice: PolicyChoice


def run_here(pieces: Iterable[Piece], replays: int, run: RunPart, progress: Progress | None) -> Found:
    """One piece after the other."""
    done = [0.0] * replays
    found: Found = [[] for _ in range(replays)]
    for piece in pieces:
        before = done[piece.of]

        def tell(share: float, piece: Piece = piece, before: float = before) -> None:
            done[piece.of] = before + share * piece.share
            if progress is not None:
                progress(done)

        found[piece.of].append(run(piece.part, piece.choice, tell))
        tell(1.0)
    return found


@contextmanager
def _no_modules_of_the_working_folder() -> Iterator[None]:
    """Processes that are started meanwhile import nothing from the working folder: others may write to it."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


@_no_modules_of_the_working_folder()
def run_in_processes(
    pieces: Iterable[Piece], replays: int, run: RunPart, progress: Progress | None, processes: int
) -> Found:
    """`processes` pieces at a time. Few pieces are made ahead: each has a part of the trace."""
    # Fresh interpreters: forking one that runs a progress bar's thread may hang.
    context = multiprocessing.get_context("spawn")
    done = [context.Value("d", 0.0) for _ in range(replays)]
    waiting: dict[Future[Result | Score], tuple[int, int]] = {}
    found: dict[tuple[int, int], Result | Score] = {}
    with ProcessPoolExecutor(processes, context, _begin, (done, run)) as pool:
        left: Iterator[tuple[int, Piece]] = enumerate(pieces)
        while True:
            for at, piece in islice(left, processes + 1 - len(waiting)):
                waiting[pool.submit(_work, piece)] = piece.of, at
            if not waiting:
                break
            over = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED).done
            found |= {waiting.pop(each): each.result() for each in over}
            if progress is not None:
                progress([each.value for each in done])
    return [[found[key] for key in sorted(found) if key[0] == of] for of in range(replays)]


_inputs: Any = None


def _begin(done: Sequence[Synchronized[float]], run: RunPart) -> None:
    """In each process: what is the same for all pieces is handed over once."""
    global _inputs
    _inputs = done, run


def _work(piece: Piece) -> Result | Score:
    done, run = _inputs
    told = 0.0

    def tell(share: float) -> None:
        nonlocal told
        value = done[piece.of]
        with value.get_lock():
            value.value += (share - told) * piece.share
        told = share

    result: Result | Score = run(piece.part, piece.choice, tell)
    return result
