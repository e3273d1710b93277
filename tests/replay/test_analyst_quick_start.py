"""The analyst's quick start, followed: what its first command asks of Slurm is what its last one reads."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/quick-start/analyst.md"


def test_the_log_that_the_page_asks_for_is_read_and_reported(tmp_path: Path) -> None:
    asks, _install, replays = (
        re.sub(r"^ {3}", "", block, flags=re.MULTILINE)
        for block in re.findall(r"^ *```sh\n(.*?)^ *```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    )
    words = shlex.split(asks.partition(">")[0])
    assert words[:3] == ["sacct", "-a", "-P"]
    fields = words[words.index("-o") + 1].split(",")
    rows = []
    for number in range(200):  # four nodes, one job after the other on each, an hour of each three idle
        node, turn = number % 4, number // 4
        begin, end = turn * 3, turn * 3 + 2
        at = [f"2026-10-{1 + hour // 24:02d}T{hour % 24:02d}:00:00" for hour in (begin, begin, end)]
        known = {"JobID": str(number), "State": "COMPLETED", "NNodes": "1", "NodeList": f"n{node + 1}"}
        rows.append("|".join((known | dict(zip(("Submit", "Start", "End"), at, strict=True)))[f] for f in fields))
    (tmp_path / "october.txt").write_text("\n".join(["|".join(fields), *rows]) + "\n")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", replays], cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "of ideal" in done.stdout, "the column that the page explains"
    page = (tmp_path / "october" / "index.html").read_text()
    idle = re.search(r"([\d.]+)% of 4 nodes", page)
    assert idle is not None
    assert 32 < float(idle[1]) < 34, "an hour of each three"
