"""The register: one of any number of callers decides a term, and a shared folder that fails decides nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from malletrain.store.pair.register import KEPT_TERMS, Register, RegisterUnavailable, Term


def test_one_of_many_decides_each_term(tmp_path: Path) -> None:
    callers = [Register(tmp_path) for _ in range(8)]
    assert callers[0].read() is None
    for number in range(1, 30):
        with ThreadPoolExecutor(8) as threads:
            wanted = [Term(number, number, f"http://{i}", 0, 1.0) for i in range(8)]
            won = list(threads.map(lambda pair: pair[0].decide(pair[1]), zip(callers, wanted, strict=True)))
        assert won.count(True) == 1
        assert callers[0].read() == wanted[won.index(True)]
    assert len(list(tmp_path.glob("term-*"))) == KEPT_TERMS
    assert not list(tmp_path.glob(".*")), "no draft is left"


def test_a_folder_that_is_missing_or_hangs_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RegisterUnavailable, match=r"failover\.shared"):
        Register(tmp_path / "none").read()
    (tmp_path / "term-000000000001").write_text("{}")
    with pytest.raises(RegisterUnavailable, match="not a term"):
        Register(tmp_path).read()
    slow = Register(tmp_path, timeout_s=0.01)
    release = Event()
    monkeypatch.setattr(slow, "_numbers", lambda: [int(release.wait(10))])
    with pytest.raises(RegisterUnavailable, match="no answer within"):
        slow.read()
    release.set()
