"""Where commands find the daemon: the order of places, and files that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.wire import address
from malletrain.wire.address import Address, AddressError, find, of_site, read, user_client_file, user_daemon_file
from tests.messages import naming


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_order_of_places(home: dict[str, str], tmp_path: Path) -> None:
    system = tmp_path / "etc.toml"
    address.write(Address("http://own:1", "own"), user_daemon_file(home))
    assert find(home, system).url == "http://own:1"
    put(system, 'url = "http://site:2/"\npartition = "harvest"\n')
    assert find(home, system) == Address("http://site:2", "harvest", source=str(system))
    put(user_client_file(home), 'url = "http://mine:3"\n')
    assert find(home, system).url == "http://mine:3"
    found = find({**home, "MALLETRAIN_URL": "http://env:4/"}, system)
    assert (found.url, found.source) == ("http://env:4", "MALLETRAIN_URL")


def test_the_url_of_the_environment_keeps_the_files_partition(home: dict[str, str], tmp_path: Path) -> None:
    system = put(tmp_path / "etc.toml", 'partition = "harvest"\naccount = "ml"\nqos = "spare"\n')
    found = find({**home, "MALLETRAIN_URL": "http://env:4"}, system)
    assert (found.partition, found.account, found.qos) == ("harvest", "ml", "spare")
    with pytest.raises(AddressError, match=naming("MALLETRAIN_URL")):
        find(home, system)
    assert of_site(home, system).partition == "harvest"


def test_a_home_that_may_not_be_looked_into_has_no_file(tmp_path: Path) -> None:
    """As root's, which sudo keeps in HOME for another user; its error, for root too, is that of a name too long."""
    system = put(tmp_path / "etc.toml", 'url = "http://site:2"\n')
    assert find({"HOME": f"/{'x' * 300}"}, system).url == "http://site:2"


def test_relative_xdg_folders_are_ignored(home: dict[str, str], tmp_path: Path) -> None:
    assert user_client_file({**home, "XDG_CONFIG_HOME": "x"}) == tmp_path / ".config/malletrain/client.toml"
    assert user_client_file({**home, "XDG_CONFIG_HOME": "/x"}) == Path("/x/malletrain/client.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("url = 3", r"c\.toml: url: .* quotes"),
        ("ulr = 'x'", r"c\.toml: ulr: unknown key; known here: url, partition, account, qos"),
        ("url = 'ftp://x'", r"c\.toml: url: 'ftp://x' is no URL"),
        ("url = 'http://x:99999999'", "is no URL"),
        ("url = 'http://[::1'", "is no URL"),
        ("url", r"c\.toml: not TOML"),
    ],
)
def test_a_file_that_is_wrong_says_where(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(AddressError, match=said):
        read(put(tmp_path / "c.toml", text))


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(AddressError, match=naming(tmp_path, "Is a directory")):
        read(tmp_path)
    (tmp_path / "c.toml").write_bytes(b"\xff")
    with pytest.raises(AddressError, match="not TOML"):
        read(tmp_path / "c.toml")


names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)


@given(names, names, names)
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, partition: str, account: str, qos: str
) -> None:
    file = tmp_path_factory.mktemp("address") / "state" / "client.toml"
    written = Address("http://h:1", partition, account, qos, str(file))
    address.write(written, file)
    assert read(file) == written
    assert [path.name for path in file.parent.iterdir()] == ["client.toml"]
    assert file.stat().st_mode & 0o777 == 0o600


@given(st.text(max_size=60))
def test_whatever_the_text_it_is_an_address_or_an_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = put(tmp_path_factory.mktemp("address") / "c.toml", text)
    try:
        assert read(file).source == str(file)
    except AddressError as error:
        assert "\n" not in str(error)
