"""The documents as a site, by Sphinx with furo: `scripts/docs` stages the pages into a folder and builds it there.

Run as a program, `conf.py FOLDER` stages: the README is the first page, and links to files outside docs lead to
copies of these below `source/`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

#: The navigation: a caption, and its pages in order or the folder whose pages it has.
NAVIGATION: dict[str, list[str] | str] = {
    "Quick starts": [
        f"quick-start/{name}.md"
        for name in ("sysadmin", "researcher", "analyst", "transcript-sysadmin", "transcript-researcher")
    ],
    "Learn": ["tutorial.md", "gallery.md"],
    "How-to": "how-to",
    "Look up": "reference",
    "Understand": "explanation",
    "Decisions": "adr",
    "About": [
        "figures.md",
        "faq.md",
        "architecture.md",
        "glossary.md",
        "security.md",
        "reliability.md",
        "contributing.md",
        "CHANGELOG.md",
        "SECURITY.md",
    ],
}

#: Pages that lie outside docs, by their name on the site.
OUTSIDE = {"index.md": ROOT / "README.md", "CHANGELOG.md": ROOT / "CHANGELOG.md", "SECURITY.md": ROOT / "SECURITY.md"}

_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")

# What Sphinx reads.
project = "MalleTrain"
html_title = "MalleTrain"
html_theme = "furo"
html_copy_source = False
html_show_sourcelink = False
extensions = ["myst_parser"]
myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 4
exclude_patterns = ["source"]


def stage(folder: Path) -> None:
    """Write every page, and every file that a page links to, into the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in DOCS.rglob("*"):
        if path.is_file():
            _put(folder, path.relative_to(DOCS).as_posix(), path)
    for name, path in OUTSIDE.items():
        _put(folder, name, path)
    with (folder / "index.md").open("a", encoding="utf-8") as index:
        index.write("".join(_contents()))


def _put(folder: Path, name: str, path: Path) -> None:
    there = folder / name
    there.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != ".md":
        shutil.copyfile(path, there)
        return
    text = path.read_text(encoding="utf-8")
    text = re.sub(r'(src(?:set)?=")docs/', r"\1", text)  # of the README's <picture>
    # A place in a table that links lead to.
    text = re.sub(r'<a id="([\w-]+)"></a>', r"[]{#\1}", text)
    there.write_text(_LINK.sub(lambda link: _moved(link, folder, name, path), text), encoding="utf-8")


def _moved(link: re.Match[str], folder: Path, name: str, path: Path) -> str:
    """A link of the repository, as a link of the site."""
    target = (path.parent / link[1]).resolve()
    if target.is_dir():
        target = min(target.glob("*.md"))
    pages = {page: site for site, page in OUTSIDE.items()}
    if target in pages:
        there = pages[target]
    elif target.is_relative_to(DOCS):
        there = target.relative_to(DOCS).as_posix()
    else:
        there = f"source/{target.relative_to(ROOT).as_posix()}"
        (folder / there).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(target, folder / there)
    return f"]({os.path.relpath(there, Path(name).parent)}{link[2] or ''})"


def _contents() -> Iterator[str]:
    for caption, pages in NAVIGATION.items():
        names = (
            sorted(f"{pages}/{page.name}" for page in (DOCS / pages).glob("*.md"))
            if isinstance(pages, str)
            else pages
        )
        yield f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(names) + "\n```\n"


if __name__ == "__main__":
    stage(Path(sys.argv[1]))
