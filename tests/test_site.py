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
