"""The table of habits: which wrong ones `malletrain check` finds, and how; which right ones it calls equal.

    python -m scripts.bench.elastic.habits [--write] [--keep FILE] [HABIT...]

Each habit is a training loop of tests/elastic/train_habits.py; all take half an hour on two cores. `--write` puts
their rows into the table of docs/reference/habits.md; `--keep` names a file of verdicts, which a later call goes on
from.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.elastic.coordinator import ROOT
from tests.elastic.train_habits import HABITS, VERDICTS, Kind
from tests.script_check.test_check import SCRIPT_OF_HABITS

PAGE = ROOT / "docs" / "reference" / "habits.md"
HEAD = "| Habit | Is | Found by | Said |\n|---|---|---|---|\n"

RUN = "from malletrain.cli.main import main; main()"

#: Of these verdicts the row says all: the message adds which parameter differs most, and by how much.
SILENT = ("check", "equal")

#: Characters of a message that a row shows.
MAX_SAID = 45


def verdict_of(habit: str) -> dict[str, str]:
    """What a check says, in a folder of its own."""
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "go").touch()  # the check itself holds steps back, the script need not
        environ = os.environ | {"MALLETRAIN_TEST_DIR": home, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", RUN, "check", "--json", SCRIPT_OF_HABITS, habit, "--epochs", "30"]
        done = subprocess.run(command, env=environ, cwd=home, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    return {"verdict": report["verdict"], "text": report["text"]}


def row(habit: str, found: dict[str, str]) -> str:
    kinds = {"wrong": "an invariant", "different": "check"}
    by = kinds.get(found["verdict"], found["verdict"])
    said = " ".join(found["text"].split()).replace("|", "\\|") if by not in SILENT else ""
    said = said if len(said) <= MAX_SAID else said[:MAX_SAID].rsplit(" ", 1)[0] + " ..."
    kind = {Kind.RIGHT: "right", Kind.STATISTICAL: "random"}.get(HABITS[habit].kind, "wrong")
    missed = "" if found["verdict"] in VERDICTS[habit] else " **missed**"
    return f"| `{habit}` | {kind} | {by}{missed} | {said} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("habits", nargs="*", default=[*VERDICTS])
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    kept: dict[str, dict[str, str]] = {}
    if options.keep is not None and options.keep.exists():
        kept = json.loads(options.keep.read_text())
    for habit in options.habits:
        if habit not in kept:
            kept[habit] = verdict_of(habit)
            if options.keep is not None:
                options.keep.write_text(json.dumps(kept, indent=1))
        print(row(habit, kept[habit]), end="", flush=True)
    if options.write:
        before, _, rows = PAGE.read_text().partition(HEAD)
        written = {line.split("`")[1]: line for line in rows.splitlines(keepends=True)}
        written |= {habit: row(habit, kept[habit]) for habit in options.habits}
        PAGE.write_text(before + HEAD + "".join(written[habit] for habit in VERDICTS if habit in written))


if __name__ == "__main__":
    main()
