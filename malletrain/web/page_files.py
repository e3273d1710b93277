"""The page's own files, read once from the package, with what a browser needs to keep them."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file as it travels."""

    body: bytes
    zipped: bytes
    media_type: str
    tag: str


def page_files() -> Mapping[str, PageFile]:
    """All files by their path below the page's address; `` is the page itself."""
    found = dict(_below(files("malletrain.web") / "page", ""))
    return found | {"": found["index.html"]}


def _below(folder: Traversable, prefix: str) -> Iterator[tuple[str, PageFile]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _below(each, f"{prefix}{each.name}/")
        elif media_type := _TYPES.get(each.name[each.name.rfind(".") :]):
            body = each.read_bytes()
            tag = hashlib.sha256(body).hexdigest()[:32]
            yield prefix + each.name, PageFile(body, gzip.compress(body, mtime=0), media_type, f'"{tag}"')
