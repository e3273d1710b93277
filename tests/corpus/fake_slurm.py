"""Slurm's commands over a few rows: what is asked is noted, what is answered is made of the rows."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

from malletrain.slurm.formats.hostlist import opened

Row = dict[str, str]

MARK = re.compile("\x1e[0-9a-f]{8}\x1e")

#: The fields of squeue -O behind the letters of -o.
LETTERS = {
    "i": "jobarrayid", "A": "jobid", "F": "arrayjobid", "K": "arraytaskid", "T": "state", "r": "reason",
    "u": "username", "P": "partition", "q": "qos", "D": "numnodes", "l": "timelimit", "V": "submittime",
    "S": "starttime", "e": "endtime", "N": "nodelist", "Y": "schednodes", "n": "reqnodes", "x": "excnodes",
    "f": "feature", "b": "gres", "E": "dependency", "Q": "prioritylong", "a": "account", "j": "name", "k": "comment",
    "m": "minmemory",
}  # fmt: skip

#: scontrol update: the field that a word changes.
UPDATES = {"NodeList": "reqnodes", "TimeLimit": "timelimit", "Requeue": "requeue", "NumNodes": "numnodes"}


class FakeSlurm:
    """A cluster's state, and the calls so far; marks that a caller makes up are noted as <M>.

    The state: `rows` of squeue by field, `nodes` by name, texts of other `scontrol show` by their word and of other
    commands by their name; `fails`: error by pattern of the whole command line; `refuses`: error by scontrol's verb
    and task; `rewrites`: fields of a task that a plug-in sets at each update.
    """

    def __init__(self, **state: Any) -> None:
        self.set(**state)

    def set(self, **state: Any) -> None:
        """Another cluster, and no calls so far."""
        self.state = copy.deepcopy({"rows": [], "nodes": {}} | state)
        self.calls: list[list[str]] = []

    def call(self, argv: Sequence[str]) -> tuple[int, str, str]:
        """Exit status, output, error."""
        self.calls.append([MARK.sub("<M>", word).replace("\x1f", "<US>").replace("\x1d", "<GS>") for word in argv])
        return answer(argv[0], list(argv[1:]), self.state)


def answer(name: str, argv: list[str], state: Any) -> tuple[int, str, str]:
    """Exit status and both texts."""
    line = " ".join([name, *argv])
    for pattern, error in state.get("fails", {}).items():
        if re.match(pattern, line):
            return 1, "", error + "\n"
    if name == "squeue":
        return 0, squeue(argv, state["rows"]), ""
    if name == "scontrol" and "show" in argv:
        return show(argv[argv.index("show") + 1 :], state)
    if name == "scontrol":
        return change(argv, state)
    if name == "sbatch":
        return 0, "4711\n", ""
    return 0, state.get(name, ""), ""


def squeue(argv: list[str], rows: list[Row]) -> str:
    """The rows that are asked for."""
    if "-j" in argv:
        wanted = set(argv[argv.index("-j") + 1].split(","))
        rows = [row for row in rows if {row["jobarrayid"], row["arrayjobid"], row["jobid"]} & wanted]
    if "-p" in argv:
        rows = [row for row in rows if row["partition"] == argv[argv.index("-p") + 1]]
    if "-t" in argv and "all" not in argv:
        rows = [row for row in rows if row["state"] == argv[argv.index("-t") + 1]]
    if "-O" in argv:
        columns = argv[argv.index("-O") + 1].split(",")
        pairs = [column.split(":0", 1) for column in columns]
        return "".join(row.get(field, "") + mark for row in rows for field, mark in pairs)
    form = argv[argv.index("-o") + 1]
    parts = re.split("%([a-zA-Z])", form)  # text, letter, text, ..., text
    return "".join(
        "".join(row.get(LETTERS[part], "") if i % 2 else part for i, part in enumerate(parts)) + "\n" for row in rows
    )


def show(what: list[str], state: Any) -> tuple[int, str, str]:
    """`scontrol show node [NAMES]`, or any other text that the cluster has."""
    if what[0] != "node":
        return 0, state.get(what[0], ""), ""
    nodes: dict[str, str] = state["nodes"]
    names = opened(what[1]) if len(what) > 1 else list(nodes)
    for name in names:
        if name not in nodes:
            return 1, "", f"Node {name} not found\n"
    return 0, "".join(f"NodeName={name} {nodes[name]}\n" for name in names), ""


def change(argv: list[str], state: Any) -> tuple[int, str, str]:
    """`scontrol update|release|uhold|requeuehold TASKS`."""
    verb = argv[0]
    fields = dict(word.split("=", 1) for word in argv[1:] if "=" in word)
    tasks = (fields.pop("JobId", None) or argv[-1]).split(",")
    errors = ""
    for task in tasks:
        error = state.get("refuses", {}).get(f"{verb} {task}")
        if error is not None:
            errors += f"{task}: {error}\n" if len(tasks) > 1 else f"slurm error: {error}\n"
            continue
        for row in (row for row in state["rows"] if row["jobarrayid"] == task):
            if verb == "update":
                row.update({UPDATES[word]: value.split("-")[-1] for word, value in fields.items() if word in UPDATES})
                if "TimeLimit" in fields:
                    row["timelimit"] = f"{fields['TimeLimit']}:00"
                row.update(state.get("rewrites", {}).get(task, {}))
            else:
                row["prioritylong"] = "1" if verb == "release" else "0"
    return (1 if errors else 0), "", errors
