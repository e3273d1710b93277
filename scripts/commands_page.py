"""docs/reference/commands.md: every program, command and option, from the programs' own help.

`python -m scripts.manual` writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from malletrain.cli.main import COMMANDS, cli
from malletrain.cli.replayed_site import ReplaySettings
from malletrain.daemon.main import command as daemon_command
from malletrain.slurm.submission.mtbatch_options import ALLOWED, FROM_ENVIRONMENT, Option, Use

PAGE = Path(__file__).resolve().parents[1] / "docs/reference/commands.md"

_HEAD = """\
# Commands

<!-- Written by `python -m scripts.manual` from the programs' own help. -->

`mtbatch` submits, `malletrain` shows and steers, `malletraind` is the daemon. `--help` shows an example of each.

- Exit status: 0 done; 1 refused, not found, or partly done; 2 wrong input, or no answer; nothing was started.
- Each error is one line on standard error that says what to do. `--json` prints JSON for programs.
- The daemon is found by [client.toml](config.md#where-peoples-commands-find-the-daemon-clienttoml).

## mtbatch

`mtbatch [OPTIONS] SCRIPT [ARGUMENTS...]` submits a malleable job. SCRIPT is a shell script as for sbatch.
Options stand on the command line, which wins, or in `#SBATCH` or `#MALLETRAIN` lines.

```sh
mtbatch --nodes=1-8 train.sh --epochs 90
mtbatch --dry-run train.sh
```
"""


def page() -> str:
    """The whole page."""
    lines = [_HEAD, *_mtbatch()]
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        if command is not None:
            lines += _chapter(command, f"malletrain {name}")
    return "\n".join([*lines, *_chapter(daemon_command, "malletraind")]).rstrip() + "\n"


def _mtbatch() -> Iterator[str]:
    for option in ALLOWED.values():
        if option.use is Use.OURS or (option.use is Use.COMMAND and option.name not in ("help", "version")):
            yield f"- {_names(option)}: {option.help}"
    passed = ", ".join(_names(option) for option in ALLOWED.values() if option.use is Use.FORWARD)
    yield f"\nPassed on to sbatch: {passed}. Account, partition and QOS are the harvest ones by default.\n"
    yield "Every other option is refused by name, with what to do instead. Of sbatch's variables these count:"
    yield ", ".join(f"`{name}`" for name in FROM_ENVIRONMENT) + ".\n"


def _names(option: Option) -> str:
    return f"`--{option.name}`" + (f"/`-{option.short}`" if option.short else "")


def _chapter(command: click.Command, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name, show_default=True)
    yield f"## {name}\n\n{_synopsis(command, context)}{_line(command.help or '')}\n"
    if isinstance(command, click.Group):
        yield from _children(command)
    rows = list(filter(None, (_option(each, context) for each in command.params)))
    if rows:
        yield "\n".join([*rows, ""])
    if name == "malletrain replay":
        yield "Keys of `[replay]` in the file of `--config`:\n"
        for key, field in ReplaySettings.model_fields.items():
            yield f"- `{key}`: {field.description}" + (f" [default: {field.default}]" if field.default else "")
        yield ""


def _children(group: click.Group) -> Iterator[str]:
    """One item for each, with its options below it; an option that all have stands once, first."""
    options = {
        name: [_option(each, click.Context(child, show_default=True)) for each in child.params]
        for name, child in group.commands.items()
    }
    common = [row for row in next(iter(options.values())) if row and all(row in rows for rows in options.values())]
    yield "\n".join(common)
    for name, child in group.commands.items():
        yield f"- `{name} {_synopsis(child, click.Context(child)).strip('`: ')}`: {_line(child.help or '')}"
        yield from (f"  {row}" for row in options[name] if row and row not in common)
    yield ""


def _synopsis(command: click.Command, context: click.Context) -> str:
    arguments = [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
    return f"`{' '.join(arguments)}`: " if arguments else ""


def _option(option: click.Parameter, context: click.Context) -> str:
    found = option.get_help_record(context)
    if not isinstance(option, click.Option) or found is None or {"--help", "--version"} & set(option.opts):
        return ""
    short, _, name = re.sub(r" (INTEGER|FLOAT)( RANGE)?", " N", found[0]).rpartition(", --")
    names = f"`--{name}`/`{short}`" if short else f"`{name}`"
    # Bounds of a number are said by the error that is beyond them.
    text = re.sub(r"; (\d\S*<=)?x[<>]=?\S+(?=\])| *\[(\d\S*<=)?x[<>]=?\S+\]", "", found[1])
    return f"- {names}" + ("" if text == "JSON, for programs." else f": {_line(text)}")


def _line(text: str) -> str:
    return " ".join(text.replace("\b", "").split())
