"""The documents as a site: `scripts/docs` builds it, and each page is in it and requests nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = re.compile(
    r'<(?:script|img|iframe)[^>]+src="(https?:[^"]+)"|<link[^>]+rel="stylesheet"[^>]+href="(https?:[^"]+)"'
)


def test_each_page_of_docs_itself_has_its_place_in_the_navigation() -> None:
    named = (ROOT / "scripts/site/conf.py").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f'"{page.name}"' not in named] == []


def made(command: list[str | Path], environ: dict[str, str]) -> None:
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    if "No matching distribution" in done.stderr or "Connection" in done.stderr:
        pytest.skip(f"Sphinx cannot be installed here: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
def test_the_documents_become_a_site_without_a_dead_link(tmp_path: Path) -> None:
    made([ROOT / "scripts/docs", tmp_path], dict(os.environ))
    for page in (ROOT / "docs").rglob("*.md"):
        built = tmp_path / page.relative_to(ROOT / "docs").with_suffix(".html")
        assert built.exists(), page
        assert not ELSEWHERE.findall(built.read_text()), f"{page}: asks another server"
    assert "MalleTrain" in (tmp_path / "index.html").read_text()
    assert (tmp_path / "searchindex.js").exists()


@pytest.mark.nightly
def test_each_release_is_kept_beside_the_others(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    environ = {**os.environ, "MALLETRAIN_DOCS_VENV": str(ROOT / "build/docs-venv"),
               "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org",
               "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org"}  # fmt: skip
    for version in ("0.1", "0.2"):
        made([clone / "scripts/docs", "release", version], environ)

    def published(path: str) -> str:
        shown = ["git", "show", f"docs-site:{path}"]
        return subprocess.run(shown, cwd=clone, check=True, capture_output=True, text=True).stdout

    for version in ("0.1", "0.2"):
        assert "MalleTrain" in published(f"{version}/index.html")
    first = published("index.html")
    assert "url=0.2/index.html" in first and "0.1/index.html" in first
    status = subprocess.run(["git", "status", "--short"], cwd=clone, check=True, capture_output=True, text=True)
    assert status.stdout == "", "the checkout is as before"
