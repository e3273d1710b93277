"""What is made of a site: snapshots of recorded outputs of Slurm, rules of configurations, faults."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.corpus import doors, doors_slurm
from tests.corpus.cases import Case, canonical

FIXTURES = Path(__file__).parents[1] / "slurm" / "fixtures"

#: Files are dated so where their texts do not say when they were made.
MADE_AT = 1_700_000_000


def cases() -> Iterator[Case]:
    """Snapshots, then configurations."""
    for release in sorted(path for path in FIXTURES.iterdir() if path.is_dir()):
        for nodes in ("scontrol-show-node.txt", "scontrol-show-node.json", "sinfo.txt", "sinfo.json"):
            for queue in ("squeue.txt", "squeue.json"):
                if (release / nodes).exists() and (release / queue).exists():
                    yield _snapshot(release, nodes, queue)
        for name, text in GOOD.items():
            config, partitions = ((release / f"{each}.txt").read_text() for each in ("config", "partitions"))
            rules = doors_slurm.site_rules(text, config, partitions)
            yield Case(
                f"rules/{release.name}-{name}", canonical(rules), whole=name == "full" and "24" in release.name
            )
    with doors.folder() as folder:
        for name, text in BAD.items():
            (folder / "malletrain.toml").write_text(text)
            done = doors.malletrain("snapshot", "--config", "malletrain.toml")
            yield Case(f"config/{name}", done.text, done.err.replace("\n", " | ")[:200], name == "everything")


def _snapshot(release: Path, nodes: str, queue: str) -> Case:
    with doors.folder() as folder:
        for file in (nodes, queue, "reservations.txt"):
            shutil.copy(release / file, folder)
            os.utime(folder / file, (MADE_AT, MADE_AT))
        plain = doors.malletrain("snapshot", "--from", ".")
        tasks = doors.malletrain("snapshot", "--from", ".", "--partition", "harvest")
    seen = plain.json
    words = f"{len(seen['nodes'])} nodes, {len(seen['jobs'])} jobs, {len(tasks.json['jobs'])} with tasks"
    return Case(f"snapshot/{release.name}-{nodes}-{queue}", canonical([seen, tasks.json]) + plain.err, words)


GOOD = {
    "small": '[slurm]\npartition = "harvest"\naccount = "hacct"\n',
    "full": """\
operators = ["root", "ops"]
[slurm]
partition = "harvest"
account = "hacct"
qos = "hqos"
[pool]
keep_idle = 3
keep_leaves = 1
max_pilots = 4
include = ["n[000-005]"]
exclude = ["n003"]
[pilot]
max_minutes = 45
max_nodes = 4
margin_s = 25.0
leave_patience_s = 20.0
[loop]
tick_s = 20.0
horizon_s = 240.0
[sizing]
objective = "fair"
alpha = 0.7
user_share = 0.5
max_resizes = 3
max_wait_minutes = 10.0
profile = "passive"
user_weights = { ann = 2.0 }
account_weights = { ml = 1.5 }
account_shares = { ml = 3.0, bio = 1.0 }
[[sizing.limits]]
name = "watts"
users = ["ann"]
available = 900.0
per_node = 1.5
by_account = { ml = 2.0 }
[[sizing.limits]]
name = "bio"
accounts = ["bio"]
most_nodes = 7
least_nodes = 2
[[sizing.budgets]]
name = "ml"
accounts = ["ml"]
node_hours = 100.0
period = "week"
[breaker]
preemptions_per_hour = 5
pause_minutes = 10.0
""",
}

BAD = {
    "everything": """\
operatos = ["ann"]
tick_s = 3
[slurm]
partition = "har vest"
acount = "x"
[pilot]
margin_s = "autom"
max_minutes = 90
[loop]
tick_s = 5
watch_interval_s = 9
[pool]
include = ["n[1-"]
[sizing]
objective = "profit"
policy = "best"
[[sizing.limits]]
most_nodes = -1
[api]
port = 99999
[zzz]
a = 1
""",
    "no-toml": "[slurm\n",
    "section": "slurm = 3\n",
    "twice": "[pool]\nkeep_idle = 1\nkeep_idle = 2\n",
    "conf-missing": '[slurm]\nconf = "/nonexistent/slurm.conf"\n',
    "kind": '[pool]\nkeep_idle = true\n[sizing]\nalpha = nan\n[log]\nlevel = "loud"\n',
}
