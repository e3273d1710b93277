"""Where people's commands find the daemon, and what else they need to know of the site: one small TOML file.

The administrator puts it at /etc/malletrain/client.toml on login nodes, a user may keep their own, and
`malletraind --user` writes one while it runs. Standard library only.
"""

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from malletrain.wire.daemon_url import first_url, parts_of
from malletrain.wire.errors import WireError

SYSTEM_CLIENT_FILE = Path("/etc/malletrain/client.toml")

#: Names of harvest jobs that a client file may give, so that users need not type them: keys of `Address`.
KEYS = ("url", "partition", "account", "qos", "ca", "python")


class AddressError(WireError):
    """No file says where the daemon is, or the one that should cannot be used."""


@dataclass(frozen=True, slots=True)
class Address:
    """The daemon's `url`, and the partition, account and QOS of pilots where known.

    `ca`: a PEM file with the certificates to trust for an https URL. `python` runs pilots where a user's own
    environment has none for them. `source` says which file or variable named them.
    """

    url: str
    partition: str = ""
    account: str = ""
    qos: str = ""
    source: str = ""
    ca: str = ""
    python: str = ""


def find(environ: Mapping[str, str], system_file: Path = SYSTEM_CLIENT_FILE) -> Address:
    """The daemon's address: MALLETRAIN_URL, else the user's client.toml, else the system's, else the user's daemon.

    MALLETRAIN_URL replaces the URL alone: partition, account and QOS still come from the first file that is there.
    Raises AddressError: nothing names a daemon, or a file that is there is wrong."""
    found = of_site(environ, system_file)
    if url := environ.get("MALLETRAIN_URL", ""):
        return at(url, found, "MALLETRAIN_URL")
    if found.url:
        return found
    raise AddressError(
        f'no daemon is known: set MALLETRAIN_URL, or write url = "http://HOST:8470" into {system_file} or '
        f"{user_client_file(environ)}, or start your own with `malletraind --user`"
    )


def at(url: str, site: Address, source: str) -> Address:
    """`site`, but with its daemon at `url`, as `source` says.
    Raises AddressError: `url` is none."""
    return replace(site, url=_checked(url, source), source=source)


def of_site(environ: Mapping[str, str], system_file: Path = SYSTEM_CLIENT_FILE) -> Address:
    """What is known of the site with no daemon asked; empty fields where nothing is.
    Raises AddressError: a file that is there is wrong."""
    for path in (user_client_file(environ), system_file, user_daemon_file(environ)):
        if os.access(path, os.F_OK):  # not in another's home, which may not be looked into (sudo keeps HOME)
            return read(path)
    return Address(url="")


def user_client_file(environ: Mapping[str, str]) -> Path:
    """A user's own client.toml (XDG Base Directory Specification: XDG_CONFIG_HOME)."""
    return _xdg(environ, "XDG_CONFIG_HOME", ".config") / "malletrain" / "client.toml"


def user_daemon_file(environ: Mapping[str, str]) -> Path:
    """What `malletraind --user` writes while it runs (XDG_STATE_HOME), in a home that login nodes share."""
    return _xdg(environ, "XDG_STATE_HOME", ".local/state") / "malletrain" / "client.toml"


def write(address: Address, path: Path) -> None:
    """Write a client file whole or not at all, for its owner's eyes only."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    # A JSON string is a TOML string.
    lines = [
        f"{key} = {json.dumps(getattr(address, key), ensure_ascii=False)}" for key in KEYS if getattr(address, key)
    ]
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write("\n".join(lines) + "\n")
    draft.replace(path)


def read(path: Path) -> Address:
    """One client file.
    Raises AddressError: it cannot be read, is not TOML, has an unknown key or a value that is not text."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AddressError(f"{path}: cannot be read: {os.strerror(error.errno or 0)}") from error
    except (ValueError, RecursionError) as error:
        raise AddressError(f"{path}: not TOML: {error}") from error
    for key, value in values.items():
        if key not in KEYS:
            raise AddressError(f"{path}: {key}: unknown key; known here: {', '.join(KEYS)}")
        if not isinstance(value, str):
            raise AddressError(f'{path}: {key}: must be text in quotes, such as {key} = "..."')
    if "url" in values:
        values["url"] = _checked(values["url"], f"{path}: url")
    return Address(**{"url": "", **values}, source=str(path))


def _checked(text: str, where: str) -> str:
    """The URL that `text` gives, or begins with.
    Raises AddressError: it is none."""
    url = first_url(text)
    try:
        parts_of(url)
    except WireError as error:
        raise AddressError(f"{where}: {error}") from error
    return url


def _xdg(environ: Mapping[str, str], variable: str, fallback: str) -> Path:
    base = environ.get(variable, "")
    if base and Path(base).is_absolute():
        return Path(base)
    return Path(environ.get("HOME") or "/nonexistent") / fallback
