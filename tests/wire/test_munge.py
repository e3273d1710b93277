"""Credentials of a real munged: what they prove, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.wire import munge
from tests.messages import naming


@pytest.mark.parametrize("payload", [b"", b"malletrain-session-v1 http://x", b"a\n\nb\0\xff", b"x" * 4096])
def test_what_goes_in_comes_out_with_its_maker(munged: str, payload: bytes) -> None:
    opened = munge.decode(munge.encode(payload, munged), munged)
    assert (opened.uid, opened.gid, opened.payload) == (os.getuid(), os.getgid(), payload)
    assert abs(opened.encoded_at - time.time()) < 60


def test_a_credential_opens_once(munged: str) -> None:
    credential = munge.encode(b"x", munged)
    munge.decode(credential, munged)
    with pytest.raises(munge.CredentialRejected, match=naming("each request")):
        munge.decode(credential, munged)


def test_an_expired_one_is_told_apart(munged: str) -> None:
    """One second is the least that munge takes; its clock is read until it has passed."""
    made = subprocess.run(
        ["munge", f"--socket={munged}", "--no-input", "--ttl=1"], capture_output=True, text=True, check=True
    ).stdout
    end = time.time() + 2.1
    while (left := end - time.time()) > 0:
        time.sleep(left)
    with pytest.raises(munge.CredentialRejected, match="has expired"):
        munge.decode(made, munged)


@pytest.mark.parametrize(
    "bad", ["", " ", "MUNGE:AAAA:", "MUNGE:", "hello", "MUNGE:ü:", "MUNGE:A\nB:", "x" * 9000, "MUNGE:\0:"]
)
def test_what_is_no_credential_is_invalid(munged: str, bad: str) -> None:
    with pytest.raises(munge.CredentialRejected) as refused:
        munge.decode(bad, munged)
    assert "\n" not in str(refused.value)


def test_a_damaged_one_is_invalid(munged: str) -> None:
    good = munge.encode(b"x", munged)
    middle = len(good) // 2
    damaged = good[:middle] + ("A" if good[middle] != "A" else "B") + good[middle + 1 :]
    with pytest.raises(munge.CredentialRejected):
        munge.decode(damaged, munged)


def test_without_munged_the_line_says_what_to_do(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "no.socket")
    for call in (lambda: munge.encode(b"x", nowhere), lambda: munge.decode("MUNGE:AAAA:", nowhere)):
        with pytest.raises(munge.MungeUnavailable, match=r"no\.socket.*systemctl start munge") as refused:
            call()
        assert "\n" not in str(refused.value)


def test_without_munge_at_all_the_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", no_library)
    munge._library.cache_clear()
    with pytest.raises(munge.MungeUnavailable, match="install munge"):
        munge.encode(b"x")


def test_a_payload_that_is_too_long_is_refused(munged: str) -> None:
    with pytest.raises(munge.MungeError, match="at most 4096"):
        munge.encode(b"x" * 4097, munged)


def test_the_statement_binds_purpose_and_daemon() -> None:
    made = munge.Credential(1, 1, munge.statement("p-v1", "http://a:1/"), 0.0)
    made.check("p-v1", "http://b:1", "http://a:1")
    for purpose, audiences in (("p-v2", ("http://a:1",)), ("p-v1", ("http://b:1",)), ("p-v1", ())):
        with pytest.raises(munge.CredentialRejected, match=naming("another purpose", *audiences)):
            made.check(purpose, *audiences)


@given(text=st.text(max_size=60) | st.binary(max_size=60).map(lambda b: f"MUNGE:{b.hex()}:"))
@settings(max_examples=25)
def test_whatever_is_sent_is_refused_in_one_line(munged: str, text: str) -> None:
    with pytest.raises(munge.CredentialRejected) as refused:
        munge.decode(text, munged)
    assert "\n" not in str(refused.value)


def test_it_is_quick_to_load() -> None:
    """What a pilot runs first must not pull in half the world."""
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, malletrain.wire.munge; print(*sys.modules)"],
        capture_output=True, text=True, check=True, cwd=Path.cwd(),
    ).stdout.split()  # fmt: skip
    heavy = {"asyncio", "http.client", "ssl", "pydantic", "sqlalchemy", "torch", "json", "malletrain.domain"}
    assert heavy.isdisjoint(loaded)
