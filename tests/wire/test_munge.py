"""Credentials by the library and by the programs: the same answers, the same refusals, from a real munged."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.wire import munge


@pytest.fixture(params=["library", "programs"])
def means(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "programs":
        monkeypatch.setattr(munge, "_library", lambda: None)
    elif munge._library() is None:
        pytest.skip("libmunge.so.2 is not installed")
    yield request.param


@pytest.mark.parametrize("payload", [b"", b"malletrain-session-v1 http://x", b"a\n\nb\0\xff", b"x" * 4096])
def test_what_goes_in_comes_out_with_its_maker(means: str, munged: str, payload: bytes) -> None:
    opened = munge.decode(munge.encode(payload, munged), munged)
    assert (opened.uid, opened.gid, opened.payload) == (os.getuid(), os.getgid(), payload)
    assert abs(opened.encoded_at - time.time()) < 60


def test_a_credential_opens_once(means: str, munged: str) -> None:
    credential = munge.encode(b"x", munged)
    munge.decode(credential, munged)
    with pytest.raises(munge.CredentialReplayed, match="make a new one for each request"):
        munge.decode(credential, munged)


def test_only_the_named_user_opens_a_restricted_one(means: str, munged: str) -> None:
    assert munge.decode(munge.encode(b"x", munged, os.getuid()), munged).payload == b"x"
    with pytest.raises(munge.CredentialInvalid):
        munge.decode(munge.encode(b"x", munged, os.getuid() + 1), munged)


def test_an_expired_one_is_told_apart(means: str, munged: str) -> None:
    """One second is the least that munge takes; its clock is read until it has passed."""
    made = subprocess.run(
        ["munge", f"--socket={munged}", "--no-input", "--ttl=1"], capture_output=True, text=True, check=True
    ).stdout
    end = time.time() + 2.1
    while (left := end - time.time()) > 0:
        time.sleep(left)
    with pytest.raises(munge.CredentialExpired, match="has expired"):
        munge.decode(made, munged)


@pytest.mark.parametrize(
    "bad", ["", " ", "MUNGE:AAAA:", "MUNGE:", "hello", "MUNGE:ü:", "MUNGE:A\nB:", "x" * 9000, "MUNGE:\0:"]
)
def test_what_is_no_credential_is_invalid(means: str, munged: str, bad: str) -> None:
    with pytest.raises(munge.CredentialInvalid) as refused:
        munge.decode(bad, munged)
    assert "\n" not in str(refused.value)


def test_a_damaged_one_is_invalid(means: str, munged: str) -> None:
    good = munge.encode(b"x", munged)
    middle = len(good) // 2
    damaged = good[:middle] + ("A" if good[middle] != "A" else "B") + good[middle + 1 :]
    with pytest.raises(munge.CredentialInvalid):
        munge.decode(damaged, munged)


def test_without_munged_the_line_says_what_to_do(means: str, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "no.socket")
    for call in (lambda: munge.encode(b"x", nowhere), lambda: munge.decode("MUNGE:AAAA:", nowhere)):
        with pytest.raises(munge.MungeUnavailable, match=r"no\.socket.*systemctl start munge") as refused:
            call()
        assert "\n" not in str(refused.value)


def test_without_munge_at_all_the_line_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(munge, "_library", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(munge.MungeUnavailable, match="install munge"):
        munge.encode(b"x")


def test_programs_that_hang_or_babble_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(munge, "_library", lambda: None)
    monkeypatch.setattr(munge, "PROGRAM_TIMEOUT_S", 0.2)
    for name, script in (("munge", "exec /bin/sleep 60"), ("unmunge", "echo hello")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(munge.MungeUnavailable, match=r"no answer in 0 s"):
        munge.encode(b"x")
    with pytest.raises(munge.MungeError, match="unmunge printed something else"):
        munge.decode("MUNGE:AAAA:")


def test_the_payload_is_never_in_argv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(munge, "_library", lambda: None)
    (tmp_path / "munge").write_text('#!/bin/sh\necho "$0 $@" | /usr/bin/tr "\\n" " "\n')
    (tmp_path / "munge").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "secret" not in munge.encode(b"secret", "/run/m.socket")


def test_a_payload_that_is_too_long_is_refused(munged: str) -> None:
    with pytest.raises(munge.MungeError, match="at most 4096"):
        munge.encode(b"x" * 4097, munged)


def test_the_statement_binds_purpose_and_daemon() -> None:
    made = munge.Credential(1, 1, munge.statement("p-v1", "http://a:1/"), 0.0)
    made.check("p-v1", "http://b:1", "http://a:1")
    for purpose, audiences in (("p-v2", ("http://a:1",)), ("p-v1", ("http://b:1",)), ("p-v1", ())):
        with pytest.raises(munge.CredentialInvalid, match="another purpose"):
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
