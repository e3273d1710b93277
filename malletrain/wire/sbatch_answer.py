"""What sbatch printed, read for the number of the job that it submitted. Pure; standard library only.

`--parsable` prints `4711` or `4711;cluster`. Wrappers and submit plug-ins of sites print banners and notes besides,
or leave `--parsable` out.
"""

import re

_ALONE = re.compile(r"(\d+)(?:;\S+)?")
_IN_WORDS = re.compile(r"submitted (?:batch )?job:? (\d+)\b", re.IGNORECASE)
#: What colours a terminal, and names its window.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[@-~]|\][^\x07\x1b]*\x07?|\([0-9A-Z])")


def job_id(printed: str) -> int | None:
    """The job's number where nothing else was printed; else None: look for the job in Slurm first."""
    match = _ALONE.fullmatch(printed.strip())
    return int(match[1]) if match else None


def likely_job_id(printed: str) -> int | None:
    """The number among other words, where just one can be meant: in sbatch's own words, or alone on a line."""
    text = _ESCAPES.sub("", printed)
    alone = (_ALONE.fullmatch(line.strip()) for line in text.splitlines())
    found = set(_IN_WORDS.findall(text)) or {match[1] for match in alone if match}
    return int(found.pop()) if len(found) == 1 else None


def jobs_marked(queue: str, mark: str) -> list[int]:
    """The jobs whose comment holds `mark`, in what `squeue -h -o "%F %k"` printed."""
    rows = (line.strip().partition(" ") for line in queue.splitlines())
    return sorted({int(number) for number, _, comment in rows if number.isdecimal() and mark in comment})
