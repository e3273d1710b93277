"""Records the corpus anew: `python -m tests.corpus.record [GROUP ...]`.

`--whole DIR` writes every case whole into DIR instead: do so before and after a change, and compare the two folders.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import tests.kernels  # noqa: F401  before what loads NumPy
from tests.corpus.cases import RECORDED, files
from tests.corpus.groups import GROUPS


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"one of {', '.join(GROUPS)}; by default all")
    parser.add_argument("--whole", type=Path, metavar="DIR", help="write every case whole into DIR, record nothing")
    given = parser.parse_args()
    unknown = set(given.groups) - set(GROUPS)
    if unknown:
        parser.error(f"no such group: {', '.join(sorted(unknown))}")
    for group in given.groups or GROUPS:
        cases = list(GROUPS[group]())
        if given.whole is None:
            shutil.rmtree(RECORDED / group, ignore_errors=True)
            for name, text in files(group, cases).items():
                _write(RECORDED / name, text)
        else:
            for case in cases:
                _write(given.whole / group / case.name, case.text)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
