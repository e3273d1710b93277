"""Where a task's output lies: the file names of sbatch(1), such as `/home/ada/%x-%A_%a.out`."""

from __future__ import annotations

import re
from collections.abc import Callable

_SYMBOL = re.compile(r"%(\d*)([A-Za-z%])")


def output_file(pattern: str, task: str, job: str, user: str, quote: Callable[[str], str] = str) -> str:
    """The file of task `12_3` of the job named `job`; `*` for what is not known beforehand, such as the node.

    `quote` is applied to all that is known, as `glob.escape` is for a search.
    """
    array, _, index = task.partition("_")
    known = {"A": array, "a": index, "x": job, "u": user, "%": "%"}
    pieces, at = [], 0
    for symbol in _SYMBOL.finditer(pattern):
        width, letter = symbol.groups()
        value = known.get(letter)
        if value is not None and width and letter in "Aa":
            value = value.zfill(int(width))
        pieces += [quote(pattern[at : symbol.start()]), "*" if value is None else quote(value)]
        at = symbol.end()
    return "".join([*pieces, quote(pattern[at:])])
