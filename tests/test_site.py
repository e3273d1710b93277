"""The documents as a site: `scripts/docs` builds it, and each page is in it and requests nothing from elsewhere."""

from __future__ import annotations

import json
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
    hooks = (ROOT / "scripts/site/hooks.py").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f'"{page.name}"' not in hooks] == []


@pytest.mark.nightly
def test_the_documents_become_a_site_without_a_dead_link(tmp_path: Path) -> None:
    done = subprocess.run(
        [ROOT / "scripts/docs", "--site-dir", tmp_path], env=os.environ, capture_output=True, text=True, timeout=300
    )
    if "No matching distribution" in done.stderr or "Connection" in done.stderr:
        pytest.skip(f"MkDocs cannot be installed here: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stdout + done.stderr
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html")
        built = tmp_path / (name.parent / "index.html" if name.stem == "README" else name)
        assert built.exists(), page
        assert not ELSEWHERE.findall(built.read_text()), f"{page}: asks another server"
    assert "MalleTrain" in (tmp_path / "search/search_index.json").read_text()


@pytest.mark.nightly
def test_each_release_is_kept_beside_the_others(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    environ = {**os.environ, "MALLETRAIN_DOCS_VENV": str(ROOT / "build/docs-venv"),
               "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org",
               "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org"}  # fmt: skip
    for version in ("0.1", "0.2"):
        done = subprocess.run(
            [clone / "scripts/docs", "release", version], env=environ, capture_output=True, text=True, timeout=300
        )
        if "No matching distribution" in done.stderr or "Connection" in done.stderr:
            pytest.skip(f"MkDocs cannot be installed here: {done.stderr[-200:]}")
        assert done.returncode == 0, done.stdout + done.stderr

    def published(path: str) -> str:
        return subprocess.run(
            [*git, "show", f"docs-site:{path}"], cwd=clone, check=True, capture_output=True, text=True
        ).stdout

    assert [(each["version"], each["aliases"]) for each in json.loads(published("versions.json"))] == [
        ("0.2", ["latest"]), ("0.1", [])
    ]  # fmt: skip
    assert "MalleTrain" in published("0.1/index.html")
    assert "latest/" in published("index.html")
