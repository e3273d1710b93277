"""Every link between the documents leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from malletrain import __version__

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)\s]+)\)", document.read_text())
    missing = [link for link in links if not (document.parent / link.split("#")[0]).exists()]
    assert not missing


def anchors(document: Path) -> set[str]:
    """Where a link into this page may lead: its headings, as the web shows them, and the anchors of its own."""
    text = re.sub(r"^ *```.*?^ *```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", re.sub(r"\]\([^)]*\)", "]", text), re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'id="([^"]+)"', text))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_anchors_are_there(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:|mailto:)([^)\s#]*\.md|)#([^)\s]+)\)", document.read_text())
    assert [
        link for link in links if link[1] not in anchors(document.parent / link[0] if link[0] else document)
    ] == []


def test_every_document_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        document = waiting.pop()
        if document in reached:
            continue
        reached.add(document)
        if document.is_dir():
            waiting += document.glob("*.md")
        elif document.suffix == ".md":
            links = re.findall(r"\]\((?!https?:|#|mailto:)([^)\s]+)\)", document.read_text())
            waiting += [(document.parent / link.split("#")[0]).resolve() for link in links]
    unread = [path for path in DOCUMENTS if path.resolve() not in reached and path.name != "CHANGELOG.md"]
    assert not unread


def test_the_architecture_names_files_that_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    packages = {path.name for path in (ROOT / "malletrain").iterdir() if path.is_dir() and path.name != "__pycache__"}
    table = text.split("## Packages")[1].split("Subpackages of")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == packages
    named = re.findall(rf"`((?:{'|'.join(sorted(packages))})/[\w/]+(?:\.py|/))`", text)
    assert named
    assert [name for name in named if not (ROOT / "malletrain" / name).exists()] == []


def test_malletrain_is_installed_from_its_file() -> None:
    """The bare name is nobody's on PyPI: whoever takes it would run code wherever a page is followed."""
    root = Path(__file__).resolve().parents[1]
    said = [*root.glob("malletrain/**/*.py"), *root.glob("scripts/**/*.py"), *root.glob("site-configs/man/**/*.1")]
    for path in [root / "README.md", *root.glob("docs/**/*.md"), *root.glob("site-configs/*.t*"), *said]:
        bare = re.search(r"pip install (?:-\S+ )*'?malletrain(?![\w/.-])", path.read_text())
        assert bare is None, f"{path}: {bare}"


def test_pages_name_the_files_of_this_release() -> None:
    """Those of a transcript are what was installed then."""
    pages = [page for page in DOCUMENTS if not page.name.startswith("transcript-") and page.name != "CHANGELOG.md"]
    for path in [*pages, *(ROOT / "site-configs").rglob("*.t*")]:
        named = re.findall(r"malletrain[-_](\d+\.\d+\.\d+)", path.read_text())
        assert set(named) <= {__version__}, path


def test_every_page_that_code_names_is_there() -> None:
    """Docstrings and messages cite pages by path: a page that moves takes these along."""
    folders = [ROOT / name for name in ("malletrain", "scripts", "tests", "site-configs", "examples")]
    files = [
        path for folder in folders for path in folder.rglob("*") if path.suffix in {".py", ".yml", ".toml", ".md"}
    ]
    named = {(path, page) for path in files for page in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text())}
    assert named
    assert [f"{path}: {page}" for path, page in sorted(named) if not (ROOT / page).exists()] == []


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {"$ scripts/demo", "$ scripts/test"} <= set(text.splitlines())
    pictures = [line for line in text.splitlines() if line.startswith("![")]
    assert len(pictures) == len(set(pictures)), "each picture once"


def test_every_picture_is_shown_on_a_page() -> None:
    texts = [document.read_text(encoding="utf-8") for document in DOCUMENTS]
    pictures = [path.name for path in (ROOT / "docs/pictures").iterdir()]
    assert pictures
    assert [name for name in pictures if not any(f"pictures/{name}" in text for text in texts)] == []
