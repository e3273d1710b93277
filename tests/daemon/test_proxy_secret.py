"""The secret that the site's proxy shows is in a file that nobody else reads, and cannot be guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain import config
from malletrain.config.sections import WebSection
from malletrain.domain.errors import InvalidInput
from malletrain.site_rules import proxy_secret_of


def web(file: Path) -> WebSection:
    proxy = 'proxy_header = "X-Remote-User"\nproxy_address = "10.0.0.1"'
    return config.parse(f'[web]\n{proxy}\nproxy_secret_file = "{file}"\n', "f.toml").web


def test_it_is_read_without_its_line_end(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("0123456789abcdef" * 4 + "\n")
    file.chmod(0o400)
    assert proxy_secret_of(web(file)) == "0123456789abcdef" * 4
    assert proxy_secret_of(WebSection()) == "", "without a proxy there is none"


@pytest.mark.parametrize("mode", [0o440, 0o404, 0o644])
def test_one_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "secret"
    file.write_text("0123456789abcdef" * 4)
    file.chmod(mode)
    with pytest.raises(InvalidInput, match=r"others can read .*chmod 400"):
        proxy_secret_of(web(file))


@pytest.mark.parametrize("text", ["", "\n", "short", "é" * 64])
def test_none_or_a_short_one_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "secret"
    file.write_text(text)
    file.chmod(0o400)
    with pytest.raises(InvalidInput, match=r"too short|cannot be read"):
        proxy_secret_of(web(file))


def test_one_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        proxy_secret_of(web(tmp_path / "none"))
