"""Every bench with what it shows.

python -m scripts.bench              the list
python -m scripts.bench.NAME --help  one bench's options, needs and time
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent

#: What benches share or run, and no bench.
HELPERS = ("elastic.train_large", "published", "shared")


def listed() -> dict[str, str]:
    """First line of each module's docstring, by the name after `scripts.bench.`."""
    found = {}
    for path in sorted(FOLDER.rglob("*.py")):
        about = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found[".".join(path.relative_to(FOLDER).with_suffix("").parts)] = about.partition("\n")[0]
    return {name: about for name, about in found.items() if name not in ("__main__", *HELPERS)}


def main() -> int:
    for name, about in listed().items():
        print(f"{name:<24} {about}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
