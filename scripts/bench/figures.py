"""The tables of docs/figures.md: kept in docs/figures.json, written into the page, measured anew.

    python -m scripts.bench.figures                 status 1 where the page says something else than the file
    python -m scripts.bench.figures --write         puts the file's tables into the page
    python -m scripts.bench.figures --run WORDS     runs the benches of rows whose `what` has WORDS, and writes both

A table is a list of rows. A row of a measurement has `what`, `aim`, `measured`, `command` (after
`python -m scripts.bench.`; `note` beside it), `date`, `commit`, and, where the bench writes JSON (`--json`), `form`:
how `measured` is made of it, in Python's format language: "{run[results][0][exact_ms][median]:.1f} ms".
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scripts.bench.shared import options_of

ROOT = Path(__file__).resolve().parents[2]
PAGE, FILE = ROOT / "docs" / "figures.md", ROOT / "docs" / "figures.json"

#: Where a table stands in the page.
MARKS = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Tables = dict[str, dict[str, Any]]


def tables() -> Tables:
    """Every table by name: `columns`, none for measurements, and `rows`."""
    found: Tables = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def keep(found: Tables) -> None:
    """Write the file, and its tables into the page."""
    FILE.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")


def written(page: str, found: Tables) -> str:
    """The page with these tables.

    Raises:
        KeyError: the page has a table that the file has not.
    """
    return MARKS.sub(lambda mark: f"{mark[1]}{markdown(found[mark[2]])}{mark[3]}", page)


def markdown(table: dict[str, Any]) -> str:
    columns = table.get("columns") or ["What", "Aim", "Measured", "Command"]
    lines = [columns, *(row if isinstance(row, list) else cells(row) for row in table["rows"])]
    head, *rest = [f"|{'|'.join(line)}|\n" for line in lines]
    return f"{head}{'|---' * len(columns)}|\n{''.join(rest)}"


def cells(row: dict[str, str]) -> list[str]:
    """A row of a measurement, as the page has it."""
    made = [f"`{row['command']}`" if row["command"] else "", row.get("note", ""), row.get("commit", "")]
    return [row["what"], row["aim"], row["measured"], ", ".join(part for part in made if part)]


def measured(row: dict[str, str]) -> dict[str, str]:
    """The row, measured here and now.

    Raises:
        CalledProcessError: the bench failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "run.json"
        argv = [sys.executable, "-m", *shlex.split(f"scripts.bench.{row['command']}"), "--json", str(answer)]
        subprocess.run(argv, check=True, cwd=ROOT, stdout=sys.stderr)
        run = json.loads(answer.read_text(encoding="utf-8"))
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {
        **row,
        "measured": row["form"].format(run=run),
        "note": f"load {os.getloadavg()[0]:.0f}",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit.stdout.strip(),
    }


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--run", metavar="WORDS")
    asked = parser.parse_args()
    found = tables()
    if asked.run is not None:
        for table in found.values():
            rows = table["rows"]
            table["rows"] = [
                measured(row) if isinstance(row, dict) and "form" in row and asked.run in row["what"] else row
                for row in rows
            ]
    if asked.run is not None or asked.write:
        keep(found)
        return 0
    page = PAGE.read_text(encoding="utf-8")
    return int(written(page, found) != page)


if __name__ == "__main__":
    sys.exit(main())
