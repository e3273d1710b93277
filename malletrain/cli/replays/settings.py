"""What `malletrain replay` takes from the table [replay] of the file that --config names.

Each setting is declared as an option of click would be, for its type, default and help; its key is its name with
underscores.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from malletrain.config import REPLAY_TABLE
from malletrain.domain.errors import InvalidInput

SETTINGS: tuple[click.Option, ...] = (
    click.Option(["--alpha"], type=float, help="Fairness, 0 to 1."),
    click.Option(
        ["--objective"], type=click.Choice(["throughput", "jct", "srpt", "fair"]), help="What sizes are best for."
    ),
    click.Option(
        ["--procs-per-node"], type=click.IntRange(1, 100_000), metavar="N", help="For logs that count processors."
    ),
    click.Option(
        ["--costs-from"],
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="JOURNAL",
        help="Activation and stalls as a daemon measured them.",
    ),
    click.Option(["--ideal"], is_flag=True, help="No tick, no limits on pilots, no reserve."),
    click.Option(
        ["--tick"], type=click.FloatRange(0, 1e6), metavar="S", help="Decide every S seconds; 0: at every event."
    ),
    click.Option(
        ["--engine"],
        type=click.Choice(["fast", "loop"]),
        default="fast",
        show_default=True,
        help="loop: the daemon's own, a hundred times slower.",
    ),
    click.Option(["--pilot-limit"], type=click.FloatRange(1), metavar="S", help="A pilot's longest time limit."),
    click.Option(["--at-once"], type=click.IntRange(1), metavar="N", help="Training jobs at a time; others wait."),
    click.Option(
        ["--budget", "budgets"],
        multiple=True,
        metavar="[ACCOUNT=]H/PERIOD",
        help="Node-hours, as 500/week or vision=20/day.",
    ),
    click.Option(
        ["--node-class", "node_classes"],
        multiple=True,
        metavar="NAME=A:B[@F]",
        help="Nodes A to B are F times as fast: a100=0:64@3.",
    ),
    click.Option(["--keep-idle"], type=click.IntRange(0), metavar="N", help="Nodes that stay idle."),
    click.Option(["--max-pilots"], type=click.IntRange(1), metavar="N", help="Most pilots at a time."),
    click.Option(["--pilot-nodes"], type=click.IntRange(1, 256), metavar="N", help="Most nodes of a pilot."),
    click.Option(
        ["--likely-outages"],
        type=click.Choice(["leave-out", "count"]),
        default="leave-out",
        show_default=True,
        help="Idle time that was probably an outage.",
    ),
    click.Option(["--include"], multiple=True, metavar="NODES", help="Only these nodes."),
    click.Option(["--exclude"], multiple=True, metavar="NODES", help="Never these nodes."),
    click.Option(
        ["--ignore-partition"],
        multiple=True,
        metavar="NAME",
        help="Its jobs count as idle time: a harvest partition.",
    ),
    click.Option(["--watts"], metavar="TRAINING,IDLE", help="A node's watts: adds energy."),
    click.Option(
        ["--promise", "with_promise"],
        is_flag=True,
        help="What a promise to the main queue would have cost.",
    ),
    click.Option(["--timezone"], metavar="ZONE", default="UTC", show_default=True, help="For times that name none."),
    click.Option(
        ["--seed"], type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="For all random choices."
    ),
    click.Option(["--processes"], type=click.IntRange(1, 1024), help="Replays at once."),
    click.Option(["--price"], type=click.FloatRange(min=0), help="Worth of a node-hour, for the report."),
    click.Option(["--currency"], default="EUR", show_default=True, help="The price's currency."),
)


def key_of(setting: click.Option) -> str:
    """Its key under [replay]."""
    return setting.opts[0].removeprefix("--").replace("-", "_")


_BY_KEY: Mapping[str, click.Option] = {key_of(setting): setting for setting in SETTINGS}
KEYS = tuple(sorted(_BY_KEY))


class ReplayCommand(click.Command):
    """A command whose settings are parameters, too, and come from the file that `config_file` names."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise _now_a_key(error) from None
        path = ctx.params.get("config_file")
        table = {} if path is None else table_of(path)
        ctx.params |= {str(each.name): _value(ctx, each, table, path) for each in SETTINGS}
        return rest


def table_of(path: Path) -> dict[str, Any]:
    """The table of that file; none where the file cannot be read, which whoever reads the rest of it says.

    Raises:
        InvalidInput: a key is not known, with those that are.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")).get(REPLAY_TABLE, {})
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        raise InvalidInput(str(path), f"{REPLAY_TABLE} must be a table: [{REPLAY_TABLE}]")
    for key in found.keys() - _BY_KEY.keys():
        raise InvalidInput(str(path), f"{REPLAY_TABLE}.{key} is not known; known are {', '.join(KEYS)}")
    return found


def _value(ctx: click.Context, setting: click.Option, table: Mapping[str, Any], path: Path | None) -> Any:
    key = key_of(setting)
    value = table.get(key)
    if value is None:
        said = setting.default if isinstance(setting.default, str | int) else None
        return () if setting.multiple else bool(said) if setting.is_flag and not setting.secondary_opts else said
    if setting.multiple != isinstance(value, list) or setting.is_flag != isinstance(value, bool):
        what = "a list" if setting.multiple else "true or false" if setting.is_flag else "one value"
        raise InvalidInput(str(path), f"{REPLAY_TABLE}.{key} must be {what}")
    try:
        as_typed = [str(each) for each in value] if setting.multiple else value if setting.is_flag else str(value)
        return setting.type_cast_value(ctx, as_typed)
    except click.BadParameter as error:
        raise InvalidInput(str(path), f"{REPLAY_TABLE}.{key}: {error.message}") from None


def _now_a_key(error: click.NoSuchOption) -> click.UsageError:
    """The same error; of an option of an earlier release, what stands in its place."""
    for setting in SETTINGS:
        if error.option_name in (*setting.opts, *setting.secondary_opts):
            off = error.option_name in setting.secondary_opts
            value = str(not off).lower() if setting.is_flag else "[...]" if setting.multiple else "..."
            line = f"{key_of(setting)} = {value}"
            return click.UsageError(
                f"{error.option_name} is a setting of a file now: {line} under [{REPLAY_TABLE}] "
                "in what --config names"
            )
    return error
