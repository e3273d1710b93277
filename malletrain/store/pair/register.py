"""The register: which of two daemons is the active one, decided on a file system that both machines mount.

Each decision ("term") is a file of its own, named by its number and made by link(2), which succeeds for one of any
number of callers, on NFS too (open(2), O_EXCL). So of two daemons that decide at once, one wins, without clocks or
locks: a compare-and-set. The file says who is active in which epoch, and whether the other has all that was
acknowledged.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from malletrain.domain.errors import MalletrainError

_NAME = re.compile(r"term-(\d{12})")

#: Terms that are kept, for people to look at.
KEPT_TERMS = 20

#: Seconds that an operation on the shared file system may take: a dead NFS server holds its callers for ever.
REGISTER_TIMEOUT_S = 2.0


class RegisterUnavailable(MalletrainError):
    """The shared folder does not answer, or cannot be used: nothing was decided."""

    exit_status = 1


@dataclass(frozen=True, slots=True)
class Term:
    """One decision.

    Attributes:
        number: of the decision; 1, 2, ...
        epoch: the fencing token: higher with each takeover and each start of an active daemon.
        holder: URL of the active daemon.
        pairing: number of the term in which the passive daemon held all that was acknowledged, and since which
            nothing is acknowledged that it does not hold; 0: it may lack something, and must not take over.
        at: Unix seconds, for people.
    """

    number: int
    epoch: int
    holder: str
    pairing: int = 0
    at: float = 0.0


class Register:
    """The decisions in `folder`. Each call returns within `REGISTER_TIMEOUT_S` or raises `RegisterUnavailable`."""

    def __init__(self, folder: Path, timeout_s: float = REGISTER_TIMEOUT_S) -> None:
        self._folder = folder
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="register")

    def read(self) -> Term | None:
        """The last decision; None before the first."""
        found: Term | None = self._within(self._read)
        return found

    def decide(self, term: Term) -> bool:
        """Make `term` the decision of its number; False when there is one of that number already.

        Raises:
            RegisterUnavailable: no answer; it may yet become the decision.
        """
        decided: bool = self._within(lambda: self._decide(term))
        return decided

    def close(self) -> None:
        """Wait for nothing: a thread that hangs in a dead file system is left to it."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _within(self, work: Any) -> Any:
        try:
            return self._threads.submit(work).result(self._timeout_s)
        except FutureTimeout as error:
            raise RegisterUnavailable(
                f"{self._folder}: no answer within {self._timeout_s:g} s: is its file server up?"
            ) from error
        except OSError as error:
            raise RegisterUnavailable(
                f"{self._folder}: {error.strerror or error}: both daemons' user must be able to write there "
                "(failover.shared)"
            ) from error

    def _read(self) -> Term | None:
        numbers = self._numbers()
        for number in reversed(numbers):
            with suppress(FileNotFoundError):  # removed meanwhile: there are later ones
                return _parse(self._path(number))
        return None

    def _decide(self, term: Term) -> bool:
        draft = self._folder / f".draft-{secrets.token_hex(8)}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(asdict(term), file)
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(draft, self._path(term.number))
            # The answer to link(2) may be lost on NFS: the count of links tells (open(2), O_EXCL).
            won = draft.stat().st_nlink == 2
        finally:
            draft.unlink(missing_ok=True)
        self._sync()
        for number in self._numbers()[:-KEPT_TERMS]:
            self._path(number).unlink(missing_ok=True)
        return won

    def _numbers(self) -> list[int]:
        return sorted(int(match[1]) for path in self._folder.iterdir() if (match := _NAME.fullmatch(path.name)))

    def _path(self, number: int) -> Path:
        return self._folder / f"term-{number:012d}"

    def _sync(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _parse(path: Path) -> Term:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return Term(
            int(value["number"]), int(value["epoch"]), str(value["holder"]), int(value["pairing"]), float(value["at"])
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RegisterUnavailable(
            f"{path}: not a term of malletraind: find out who wrote it, and move it away"
        ) from error
