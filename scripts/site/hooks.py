"""Beyond mkdocs.yml: the README as the first page, the navigation, and links to files outside docs."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

#: Folders of docs, by the heading that they have in the navigation; quick starts come from mkdocs.yml.
FOLDERS = {"How-to": "how-to", "Look up": "reference", "Understand": "explanation", "Decisions": "adr"}
SINGLE_PAGES = {"Learn": ["tutorial.md", "gallery.md"],
                "About": ["figures.md", "faq.md", "architecture.md", "glossary.md", "security.md", "reliability.md",
                          "contributing.md"]}  # fmt: skip

_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Every page is in the navigation."""
    nav = list(config.nav or [])
    nav += [{"Learn": SINGLE_PAGES["Learn"]}]
    for title, folder in FOLDERS.items():
        pages = sorted(path.name for path in (DOCS / folder).glob("*.md"))
        pages.sort(key=lambda name: name != "README.md")
        nav.append({title: [f"{folder}/{name}" for name in pages]})
    nav += [{"About": [*SINGLE_PAGES["About"], "CHANGELOG.md", "SECURITY.md"]}]
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Pages that lie outside docs, and the files that pages link to."""
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text()))
    for name in ("CHANGELOG.md", "SECURITY.md"):
        files.append(File.generated(config, name, content=(ROOT / name).read_text()))
    for path in sorted(_linked()):
        files.append(File.generated(config, f"source/{path.relative_to(ROOT)}", abs_src_path=str(path)))
    return files


def _linked() -> set[Path]:
    """Files outside docs that pages link to, other than the pages above."""
    pages = [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]
    found = {(page.parent / target).resolve() for page in pages for target, _ in _LINK.findall(page.read_text())}
    return {path for path in found if path.is_file() and DOCS not in path.parents and path.suffix != ".md"}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as they are in the repository become links of the site."""
    at = PurePosixPath(page.file.src_uri)
    outside = at.name in ("index.md", "CHANGELOG.md", "SECURITY.md") and at.parent == PurePosixPath(".")
    here = ROOT if outside else DOCS / at.parent

    def moved(match: re.Match[str]) -> str:
        target = (here / match[1]).resolve()
        if target.is_dir():
            first = "README.md" if (target / "README.md").exists() else min(p.name for p in target.glob("*.md"))
            target = target / first
        if target == ROOT / "README.md":
            there = "index.md"
        elif target.is_relative_to(DOCS):
            there = target.relative_to(DOCS).as_posix()
        elif target.suffix == ".md":
            there = target.name
        else:
            there = f"source/{target.relative_to(ROOT).as_posix()}"
        return f"]({os.path.relpath(there, at.parent)}{match[2] or ''})"

    return _LINK.sub(moved, markdown)
