"""What the doctor finds of the network."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.cli.admin.surroundings import network_findings
from malletrain.config.sections import ApiSection, Config
from malletrain.slurm.site.site_facts import Finding, Level


def found(**api: object) -> list[Finding]:
    return list(network_findings(Config(api=ApiSection(**api))))  # type: ignore[arg-type]


def test_where_the_api_listens_and_what_is_encrypted() -> None:
    plain, every = found()
    assert (plain.level, "encrypted" in plain.what) == (Level.OK, True)
    assert (every.level, "api.host" in every.remedy) == (Level.WARNING, True)
    [one] = found(host="10.0.0.5")
    assert one.level is Level.OK
    [tls] = found(host="127.0.0.1", url="https://head:8471")
    assert (tls.level, "by TLS alone" in tls.what) == (Level.OK, True)
    [both] = found(host="10.0.0.5", url="https://head:8471")
    assert (both.level, "without it" in both.what) == (Level.WARNING, True)


def listening(folder: Path, uids: dict[str, int], address: str = "00000000") -> Path:
    """The kernel's lists, with a socket of each uid on port 8470 of an address."""
    for name in ("tcp", "tcp6"):
        lines = ["  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"]
        if name in uids:
            lines.append(
                f"   0: {address}:2116 00000000:0000 0A 00000000:00000000 00:00000000 00000000 {uids[name]} 0 7"
            )
        lines.append("   1: 0100007F:2116 00000000:0000 06 00000000:00000000 00:00000000 00000000 4711 0 8")
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize(
    ("uids", "level", "words"),
    [
        ({"tcp": 990}, Level.WARNING, "socket unit"),
        ({"tcp6": 0}, Level.OK, "root"),
        ({"tcp": 990, "tcp6": 4711}, Level.ERROR, "by 4711"),
        ({"tcp": 990, "tcp6": 991}, Level.ERROR, "by 990, 991"),
        ({"tcp": 4711}, Level.ERROR, "by 4711"),
        ({}, None, ""),
    ],
)
def test_who_holds_the_daemons_port(
    uids: dict[str, int], level: Level | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("malletrain.cli.admin.surroundings.user_name", str)
    ours = network_findings(Config(), proc=listening(tmp_path, uids))
    told = [each for each in ours if "port 8470" in each.what]
    assert [(each.level, words in each.what) for each in told] == ([] if level is None else [(level, True)])


@pytest.mark.parametrize(
    ("family", "address", "level"),
    [("tcp", "00000000", Level.WARNING), ("tcp", "0302010A", Level.WARNING), ("tcp6", "0" * 32, Level.OK),
     ("tcp6", "B80D01200000000000000000" + "01000000", Level.WARNING)],
)  # fmt: skip
def test_a_socket_unit_that_holds_the_port_of_some_addresses_alone(
    family: str, address: str, level: Level, tmp_path: Path
) -> None:
    """Root's socket unit, edited to listen on one address, or on one family's."""
    proc = listening(tmp_path, {family: 0}, address)
    (told,) = [each for each in network_findings(Config(), proc=proc) if "port 8470" in each.what]
    assert told.level is level
    assert ("ListenStream=8470" in told.remedy) == (level is Level.WARNING)


def test_a_kernel_without_ipv6_has_no_other_family(tmp_path: Path) -> None:
    (listening(tmp_path, {"tcp": 0}) / "tcp6").unlink()
    (told,) = [each for each in network_findings(Config(), proc=tmp_path) if "port 8470" in each.what]
    assert told.level is Level.OK
