"""Follow the quick starts in a clean Debian, and write down what happened and how long it took.

    python3 -m tests.package.first_job [--package FILE] [--bind PATH]... [--write]

Builds the package unless it is given. Ends with status 1 where a command fails or a page takes longer than promised.
`--write` replaces the transcripts in docs/quick-start. `--bind`: what the clean root shall see of this machine, as
/etc/pip.conf and a folder of wheels.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

from scripts.package import tree
from scripts.package.__main__ import deb
from tests.package.clean_root import CleanRoot, CleanRootError

PAGES = tree.ROOT / "docs/quick-start"
CACHE = Path.home() / ".cache/malletrain"

#: Lines of a step's output that a transcript shows.
SHOWN_LINES = 5

#: Which pages are followed, by whom, and the minutes within which they must be through.
ROLES = {"sysadmin": ("root", 10), "researcher": ("ann", 5)}

_MARK = "@@ step"


@dataclass(frozen=True, slots=True)
class Step:
    """One block of commands: when it began, in seconds after the page was begun, and what it printed."""

    commands: str
    began_s: float
    output: str


@dataclass(frozen=True, slots=True)
class Followed:
    """A page that was followed to its end."""

    role: str
    steps: tuple[Step, ...]
    took_s: float


def commands_of(page: Path) -> list[str]:
    """The blocks of shell commands of a page, in their order."""
    return re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def mark_of(commands: list[str]) -> str:
    """The comment by which a transcript says whose commands it ran."""
    return f"<!-- commands {sha256(chr(10).join(commands).encode()).hexdigest()[:16]} -->"


def minutes_in_transcript(text: str) -> float:
    """How long the page took, as the transcript says."""
    found = re.search(r"^Took (\d+) min (\d+) s", text, re.MULTILINE)
    if found is None:
        raise ValueError("the transcript does not say how long it took")
    return int(found[1]) + int(found[2]) / 60


def follow(root: CleanRoot, role: str) -> Followed:
    """Run a page's blocks in one shell, as they stand.

    Raises:
        CleanRootError: a command failed, with what was printed until then.
    """
    user, _ = ROLES[role]
    blocks = commands_of(PAGES / f"{role}.md")
    script = ["set -e"]
    for block in blocks:
        script += [f'printf "{_MARK} %s\\n" "$EPOCHREALTIME"', block]
    script.append(f'printf "{_MARK} %s\\n" "$EPOCHREALTIME"')
    began = time.time()
    said = root.run("\n".join(script), user).stdout
    _, *parts = said.split(f"{_MARK} ")
    steps, times = [], []
    for part in parts:
        moment, _, output = part.partition("\n")
        times.append(float(moment) - began)
        steps.append(output)
    return Followed(role, tuple(Step(*each) for each in zip(blocks, times, steps, strict=False)), times[-1])


def transcript(done: Followed) -> str:
    """The page of docs/quick-start."""
    user, minutes = ROLES[done.role]
    lines = [
        f"# Transcript: the {done.role}'s quick start",
        "",
        mark_of([step.commands for step in done.steps]),
        "",
        f"What the commands of [the page]({done.role}.md) printed, as {user}, in a clean Debian 12 with Slurm on two",
        "cores. Times include pip's downloads, except torch. By `python3 -m tests.package.first_job --write`.",
        "",
        f"Took {int(done.took_s // 60)} min {int(done.took_s % 60)} s (promised: under {minutes} minutes).",
    ]
    for number, step in enumerate(done.steps, 1):
        output = _shortened(step.output)
        if output:
            lines += ["", f"Block {number}, after {step.began_s:.0f} s:", "", "```text", output, "```"]
    return "\n".join(lines) + "\n"


def _shortened(output: str) -> str:
    """Its first lines: enough to compare with."""
    lines = [line.rstrip()[:120] for line in output.strip("\n").splitlines()]
    return "\n".join(lines if len(lines) <= SHOWN_LINES else [*lines[: SHOWN_LINES - 1], "..."])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, help="the .deb; built if not given")
    parser.add_argument("--bind", action="append", default=[], metavar="PATH[:THERE]")
    parser.add_argument("--write", action="store_true", help="write the transcripts into docs/quick-start")
    options = parser.parse_args()
    late = False
    with tempfile.TemporaryDirectory() as scratch:
        package = options.package or deb(Path(scratch), "/usr/bin/python3", partial(tree.environment, wheel=None))
        with CleanRoot(CACHE, options.bind) as root:
            root.copy_in(package, f"/root/{package.name}")
            for role, (_, minutes) in ROLES.items():
                try:
                    done = follow(root, role)
                except CleanRootError as error:
                    print(f"{role}: {error}", file=sys.stderr)
                    return 1
                print(f"{role}: {done.took_s:.0f} s (promised: {minutes * 60} s)")
                late = late or done.took_s > minutes * 60
                if options.write:
                    (PAGES / f"transcript-{role}.md").write_text(transcript(done))
    return int(late)


if __name__ == "__main__":
    sys.exit(main())
