"""docs/reference/sites.md, made from the table of traits. `python -m tests.gauntlet.page --write` writes it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from malletrain.slurm.site.site_facts import Level
from tests.gauntlet import traits
from tests.gauntlet.traits import Trait

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "sites.md"

_HEAD = """# Slurm sites

What `malletrain doctor` says of a site, and what `malletrain doctor --try` sees there. Each row is played on a real
Slurm of each release that knows the trait: `scripts/test --nightly tests/gauntlet`; `scripts/test` plays a few a day.
Each lab has a munge socket of its own, and root as SlurmUser. *Lives*: a pilot begins, main jobs take its node
without the daemon's help and with it. *Refused*: `malletraind` does not start. This page is made from the table
(`python -m tests.gauntlet.page --write`).
"""

_SECTIONS: Mapping[str, Mapping[str, Trait]] = {
    "Nodes' names": traits.NAMES,
    "Clusters": traits.CLUSTERS,
    "Preemption": traits.PREEMPTION,
    "Nodes": traits.SIZES,
    "Partitions, QOS and accounts": traits.GATES,
    "What filters and prints": traits.FILTERS,
    "The rest of slurm.conf": traits.OTHERS,
}

_BECOMES = {
    traits.HARVESTED: "lives",
    traits.SUBMISSION_REFUSED: "sbatch refuses it",
    traits.NOT_STARTED: "stays held",
    traits.NOT_BEGUN: "does not begin",
    traits.NOT_PREEMPTED: "is not preempted",
    traits.SUSPENDED: "is suspended",
    traits.NOT_TRIED: "no idle node",
    traits.NOT_PLAYED: "not played",
    traits.MAIN_REFUSED: "begins; a main job of root's is refused",
}


def page() -> str:
    """The text of the page."""
    tables = (f"\n## {title}\n\n{_table(rows)}" for title, rows in _SECTIONS.items())
    return _HEAD + "".join(tables)


def _table(rows: Mapping[str, Trait]) -> str:
    plain = [row for row in rows.values() if not row.says and row.tried == traits.HARVESTED]
    lines = [f"Lives, and nothing is said: {'; '.join(map(_site, plain))}.", ""] if plain else []
    if len(plain) < len(rows):
        lines += ["|The site has|Doctor says|A pilot|", "|---|---|---|"]
    for row in rows.values():
        if row not in plain:
            level = "" if row.level is Level.OK else f"{row.level.value}: "
            becomes = _BECOMES[row.tried] + ("; refused" if row.refused else "")
            lines.append(f"|{_site(row)}|{level}{row.says}|{becomes}|")
    return "\n".join(lines).rstrip() + "\n"


def _site(row: Trait) -> str:
    return row.site + ("" if row.since == (22, 5) else f" ({row.since[0]}.{row.since[1]:02} and later)")


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page())
    else:
        print(page(), end="")
