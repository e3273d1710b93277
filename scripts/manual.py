"""Man pages and shell completion of every command, made from the commands themselves.

    python -m scripts.manual   writes site-configs/man, site-configs/completion and docs/reference/commands.md anew

`tests/cli/test_manual.py` compares, so that they stay what the commands are.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from malletrain.cli.main import COMMANDS, cli
from malletrain.daemon.main import command as daemon_command
from malletrain.slurm.submission.mtbatch_options import ALLOWED, Option, Use
from scripts import commands_page

FOLDER = Path(__file__).resolve().parents[1] / "site-configs"

_SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


def files() -> dict[str, str]:
    """What lies below site-configs, by path."""
    found = {"man/man1/malletrain.1": _overview(), "man/man1/mtbatch.1": _mtbatch()}
    for name in COMMANDS:
        found |= dict(_pages(cli.get_command(click.Context(cli), name), f"malletrain {name}"))
    found |= dict(_pages(daemon_command, "malletraind", section=8))
    for program, group in (("malletrain", cli), ("malletraind", daemon_command)):
        for shell, made in _SHELLS.items():
            variable = f"_{program.upper()}_COMPLETE"
            found[f"completion/{program}.{shell}"] = made(group, {}, program, variable).source().strip() + "\n"
    words = " ".join(f"--{option.name}" + ("=" if option.takes else "") for option in ALLOWED.values())
    found["completion/mtbatch.bash"] = f"complete -o nospace -o default -W '{words}' mtbatch\n"
    return found


def _pages(command: click.Command | None, name: str, section: int = 1) -> Iterator[tuple[str, str]]:
    if command is None:
        return
    context = click.Context(command, info_name=name, show_default=True)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            yield from _pages(command.get_command(context, child), f"{name} {child}", section)
    page = name.replace(" ", "-")
    lines = [_head(page, section, command.get_short_help_str(200)), ".SH SYNOPSIS", f".B {_roff(name)}"]
    lines += [
        _roff(" ".join(command.collect_usage_pieces(context))),
        ".SH DESCRIPTION",
        *_paragraphs(command.help or ""),
    ]
    rows = [row for param in command.get_params(context) if (row := param.get_help_record(context))]
    if rows:
        lines.append(".SH OPTIONS")
        for option, text in rows:
            lines += [".TP", f".B {_roff(option)}", _roff(text)]
    if command.epilog:
        lines += [".SH EXAMPLES", *_example(command.epilog)]
    lines += [".SH SEE ALSO", "malletrain(1), mtbatch(1), malletraind(8)"]
    yield f"man/man{section}/{page}.{section}", "\n".join(lines) + "\n"


def _overview() -> str:
    lines = [_head("malletrain", 1, "malleable PyTorch jobs on transiently idle nodes of a Slurm cluster")]
    lines += [".SH SYNOPSIS", ".B malletrain", "COMMAND [OPTIONS]", ".SH COMMANDS"]
    for name, entry in COMMANDS.items():
        lines += [".TP", f".BR malletrain-{_roff(name)} (1)", _roff(entry.summary)]
    return "\n".join([*lines, ".SH SEE ALSO", "mtbatch(1), malletraind(8)"]) + "\n"


def _mtbatch() -> str:
    lines = [_head("mtbatch", 1, "submit a malleable PyTorch job"), ".SH SYNOPSIS", ".B mtbatch"]
    lines += ["[OPTIONS] SCRIPT [ARGUMENTS...]", ".SH DESCRIPTION"]
    lines.append("The job trains on whatever nodes are idle, and leaves when the main queue wants them.")
    for title, use in (("MALLETRAIN", Use.OURS), ("SBATCH", Use.FORWARD), ("COMMAND", Use.COMMAND)):
        lines.append(f".SH OPTIONS OF {title}")
        for option in ALLOWED.values():
            if option.use is use:
                lines += [".TP", f".B {_roff(_signature(option))}", _roff(option.help)]
    return "\n".join([*lines, ".SH SEE ALSO", "malletrain(1), sbatch(1)"]) + "\n"


def _signature(option: Option) -> str:
    return (f"-{option.short}, " if option.short else "") + f"--{option.name}" + ("=VALUE" if option.takes else "")


def _head(page: str, section: int, summary: str) -> str:
    return f'.TH {page.upper()} {section} "" MalleTrain\n.SH NAME\n{_roff(page)} \\- {_roff(summary.rstrip("."))}'


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        yield ".PP"
        yield _roff(" ".join(paragraph.replace("\b", "").split()))


def _example(text: str) -> Iterator[str]:
    yield ".nf"
    for line in text.replace("\b", "").strip().splitlines():
        yield _roff(re.sub(r"^Examples?:\s*", "", line).strip() or " ").strip()
    yield ".fi"


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + escaped if escaped[:1] in (".", "'") else escaped


def main() -> None:
    """Write them."""
    for folder in ("man", "completion"):
        shutil.rmtree(FOLDER / folder, ignore_errors=True)
    for path, text in files().items():
        (FOLDER / path).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / path).write_text(text, encoding="utf-8")
    commands_page.PAGE.write_text(commands_page.page(), encoding="utf-8")
    print(f"{len(files())} files below {FOLDER}", file=sys.stderr)


if __name__ == "__main__":
    main()
