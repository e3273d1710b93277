"""Reading options: the `#SBATCH` and `#MALLETRAIN` lines of a script, and a command line. Every fault is collected.

Standard library only.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from malletrain.slurm.submission.mtbatch_options import ALLOWED, FROM_ENVIRONMENT, REFUSED, REFUSED_SHORT, SHORT, Use

_DIRECTIVE = re.compile(r"#(SBATCH|MALLETRAIN)(?:[ \t]+(.*))?\Z")
_SHELLS = {"sh", "bash"}

#: A script larger than this is refused by Slurm's default max_script_size (slurm.conf(5)).
MAX_SCRIPT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class OptionText:
    """An option as it was written, and where: `train.sh:3`, `command line`, `SBATCH_ACCOUNT`."""

    value: str
    where: str


@dataclass(frozen=True)
class BatchOptions:
    """Options by long name; of one written twice the last counts, as in sbatch. `faults` are complete lines."""

    texts: Mapping[str, OptionText] = field(default_factory=dict)
    faults: tuple[str, ...] = ()

    def over(self, weaker: BatchOptions) -> BatchOptions:
        """These options, completed by weaker ones."""
        return BatchOptions({**weaker.texts, **self.texts}, (*weaker.faults, *self.faults))


@dataclass(frozen=True)
class CommandLine:
    """`mtbatch [OPTIONS] SCRIPT [ARGUMENTS]`; no script: empty."""

    options: BatchOptions
    script: str
    arguments: tuple[str, ...]


def from_script(script: bytes, where: str) -> BatchOptions:
    """The options in the comment lines before the first command, where sbatch looks too."""
    texts: dict[str, OptionText] = {}
    faults: list[str] = []
    for number, line in enumerate(head(script), start=1):
        match = _DIRECTIVE.match(line)
        if match is None:
            continue
        at = f"{where}:{number}"
        try:
            words = shlex.split(match[2] or "", comments=True)
        except ValueError as error:
            faults.append(f"{at}: {str(error).lower()} in {line[:80]!r}")
            continue
        ours = match[1] == "MALLETRAIN"
        rest = _take(words, at, texts, faults, in_script=True, dashes_optional=ours)
        if rest:
            faults.append(f"{at}: {rest[0]!r} is not an option; options begin with --")
    return BatchOptions(texts, tuple(faults))


def from_command_line(argv: Sequence[str]) -> CommandLine:
    """The options before the script, its name, and what follows: its arguments."""
    texts: dict[str, OptionText] = {}
    faults: list[str] = []
    rest = _take(list(argv), "command line", texts, faults)
    return CommandLine(BatchOptions(texts, tuple(faults)), rest[0] if rest else "", tuple(rest[1:]))


def from_environment(environment: Mapping[str, str]) -> BatchOptions:
    """The input variables of sbatch that have a meaning here, checked like the options that they stand for."""
    texts = {o: OptionText(environment[v], v) for v, o in FROM_ENVIRONMENT.items() if environment.get(v)}
    faults = [f"{each.where}: holds a control character" for each in texts.values() if has_control(each.value)]
    return BatchOptions(texts, tuple(faults))


def has_control(text: str) -> bool:
    """Whether a text holds a character that steers a terminal or ends a line (C0, DEL, C1)."""
    return any(ord(char) < 32 or 127 <= ord(char) < 160 for char in text)


def head(script: bytes) -> Iterable[str]:
    """The lines before the first command: comments and empty ones (sbatch(1) stops there)."""
    for raw in script.split(b"\n"):
        line = raw.decode("utf-8", "surrogateescape").rstrip("\r")
        if line.strip() and not line.startswith("#"):
            return
        yield line


def interpreter(script: bytes, where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The shell that runs the script, with its options, and the faults of its first line."""
    first = script.split(b"\n", 1)[0].decode("utf-8", "surrogateescape")
    words = first[2:].split()
    if words and words[0].endswith("/env"):
        words = words[2:] if words[1:2] == ["-S"] else words[1:]
    name = words[0].rpartition("/")[2] if words else ""
    before, cr_lf, _ = script.partition(b"\r\n")  # sbatch refuses a script that holds a single such line
    line, size = before.count(b"\n") + 1, len(script)
    faults = (
        (not script.strip(), f"{where}: the script is empty"),
        (size > MAX_SCRIPT_BYTES, f"{where}: the script has {size} bytes; Slurm takes {MAX_SCRIPT_BYTES}"),
        (b"\0" in script, f"{where}: the script holds a NUL byte: it is no shell script"),
        (cr_lf, f"{where}:{line}: lines end in CR LF; convert the script with dos2unix"),
        (not first.startswith("#!"), f"{where}:1: the first line must name the shell, as #!/bin/bash"),
        (name not in _SHELLS, f"{where}:1: {name or first[:40]!r} is not sh or bash; call it from a shell script"),
    )
    for holds, fault in faults:
        if holds:
            return (), (fault,)
    return ("/bin/bash", *words[1:]), ()


def _take(
    words: list[str],
    where: str,
    texts: dict[str, OptionText],
    faults: list[str],
    *,
    in_script: bool = False,
    dashes_optional: bool = False,
) -> list[str]:
    """Options from the front of `words`; what is left begins with the first word that is none."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            break
        if word.startswith("--") or (dashes_optional and re.match(r"[a-z]", word)):
            name, equals, value = word.removeprefix("--").partition("=")
        elif word.startswith("-") and len(word) > 1:
            name = SHORT.get(word[1], "") or REFUSED_SHORT.get(word[1], "") or word[:2]
            equals, value = ("=", word[2:].removeprefix("=")) if len(word) > 2 else ("", "")
        else:
            at -= 1
            break
        option = ALLOWED.get(name)
        if option is None:
            faults.append(f"{where}: {_refusal(name)}")
            # Its value, when it has one apart, would be taken for the script's name.
            if not equals and name in REFUSED and at < len(words) and not words[at].startswith("-") and in_script:
                at += 1
            continue
        if in_script and option.use is Use.COMMAND:
            faults.append(f"{where}: --{name} belongs on the command line")
            continue
        if option.takes is False and equals:
            faults.append(f"{where}: --{name} takes no value")
            continue
        if option.takes and not equals:
            if at >= len(words):
                faults.append(f"{where}: --{name} needs a value")
                continue
            value = words[at]
            at += 1
        if has_control(value):
            faults.append(f"{where}: the value of --{name} holds a control character")
            continue
        if option.takes and not value:
            faults.append(f"{where}: --{name} needs a value")
            continue
        texts[name] = OptionText(value, where)
    return words[at:]


def _refusal(name: str) -> str:
    why = REFUSED.get(name)
    if why is not None:
        return f"--{name}: {why}"
    dashed = name if name.startswith("-") else f"--{name}"
    return f"{dashed[:60]} is not an option of mtbatch; see mtbatch --help"
