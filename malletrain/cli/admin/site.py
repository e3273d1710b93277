"""`malletrain snapshot` and `malletrain doctor`: a site as MalleTrain sees it, without the daemon."""

import itertools
import json
import math
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from malletrain import config as configuration
from malletrain.cli.admin.surroundings import network_findings, python_findings, reserve_findings
from malletrain.cli.common_options import PATH, config_file
from malletrain.config.sections import Config
from malletrain.domain.errors import InvalidInput
from malletrain.slurm import read_files
from malletrain.slurm.command import Commands
from malletrain.slurm.read_commands import CommandReader
from malletrain.slurm.site import doctor as site_doctor
from malletrain.slurm.site import site_facts
from malletrain.slurm.site.rehearsal import Rehearsal
from malletrain.slurm.site.site_facts import Finding, Harvest, Level
from malletrain.wire import address
from malletrain.wire.errors import WireError
from malletrain.wire.munge import user_name


@click.command(
    epilog="""\b
Example:
  malletrain snapshot | jq '[.nodes[].state] | group_by(.) | map({(.[0]): length}) | add'"""
)
@click.option(
    "--from",
    "folder",
    metavar="DIR",
    type=PATH,
    help="Saved outputs: scontrol-show-node, sinfo, squeue, reservations; .txt, .json or .gz.",
)
@config_file
@click.option("--partition", metavar="NAME", help="Instead of the configured partition.")
def snapshot(folder: Path | None, config_file: Path | None, partition: str | None) -> None:
    """Print the cluster as MalleTrain sees it, as JSON.

    Times are Unix seconds.
    """
    if folder is not None:
        seen = read_files.snapshot(folder, task_by_task=partition)
    else:
        config = configuration.load_or_defaults(config_file)
        reader = CommandReader(_commands(config), time.time, partition or config.slurm.partition)
        seen = reader.snapshot()
    shown = asdict(seen)
    del shown["leaves"]
    json.dump(as_json(shown), sys.stdout, ensure_ascii=True)
    sys.stdout.write("\n")


@click.command(
    epilog="""\b
Example:
  malletrain doctor --config /etc/malletrain/malletrain.toml"""
)
@config_file
@click.option("--json", "as_text", is_flag=True, help="JSON: level, what, remedy.")
@click.option("--try", "tries", is_flag=True, help="Also play a pilot and two main jobs on an idle node: a minute.")
@click.option("--main", metavar="OPTIONS", default="", show_default=False, help="sbatch's, for main jobs of --try.")
def doctor(config_file: Path | None, as_text: bool, tries: bool, main: str) -> None:
    """Check a site, as root or the daemon's user on its machine, and name a remedy for each fault.

    malletraind must not run beside --try: it would end the pilot. Exit status 1: pilots could not run, or would harm
    main jobs.
    """
    config = configuration.load_or_defaults(config_file)
    slurm = config.slurm
    harvest = Harvest(slurm.partition, slurm.account, slurm.qos, max_nodes=config.pilot.max_nodes)
    uid, python = _daemons_user(config), ""
    with suppress(WireError):  # what client.toml names for pilots
        python = address.of_site(os.environ).python
    found = site_doctor.examine(
        _commands(config),
        harvest,
        time.time,
        max_pilot_s=config.pilot.max_minutes * 60.0,
        preemptible=config.slurm.preemptible_partitions,
        actuator=config.actuator.socket,
        include=config.pool.include,
        user=user_name(uid),
    )
    found += (
        _charging(config),
        *room_for_journal(config),
        *reserve_findings(_commands(config), config),
        *python_findings(_commands(config), harvest, python),
        *network_findings(config),
        *(Finding(Level.WARNING, gone) for gone in config.gone),
    )
    shown: list[Finding] = []
    for finding in itertools.chain(found, _tried(config, harvest, shlex.split(main), uid) if tries else ()):
        shown.append(finding)
        if not as_text:
            _show(finding)
    if as_text:
        click.echo(json.dumps([asdict(finding) for finding in shown], indent=1))
    if any(finding.level is Level.ERROR for finding in shown):
        sys.exit(1)


def _show(finding: Finding) -> None:
    colours = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "red"}
    click.echo(click.style(f"{finding.level.value:8}", fg=colours[finding.level]) + finding.what)
    if finding.remedy:
        click.echo(f"{'':8}-> {finding.remedy}")


def _daemons_user(config: Config) -> int:
    """The caller; for root who has the journal's folder, where there is one."""
    store = Path(config.store.path).parent
    return store.stat().st_uid if os.geteuid() == 0 and store.is_dir() else os.getuid()


def _tried(config: Config, harvest: Harvest, main: Sequence[str], uid: int) -> Iterator[Finding]:
    """What Slurm does with a pilot of this user. Its jobs are cancelled also where this is interrupted or
    terminated."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    commands = _commands(config)
    played = Rehearsal(commands, site_facts.read(commands), harvest, main, config.pilot.sbatch, uid)
    yield from played.findings()


def _charging(config: Config) -> Finding:
    """Whose account budgets and reports count for."""
    what = {
        "default_account": "their owners' default accounts in Slurm",
        "default_wckey": "their owners' default wckeys in Slurm",
        "pilots": f"account {config.slurm.account or '(none)'}, in which pilots run",
    }[config.charging.account]
    named = f"; {len(config.charging.users)} users have one of their own" if config.charging.users else ""
    said = f"jobs are charged to {what} (charging.account){named}"
    of_accounts = bool(config.sizing.budgets or config.sizing.account_weights)
    if config.charging.account != "pilots" or not of_accounts:
        return Finding(Level.OK, said)
    remedy = 'set charging.account = "default_account"'
    return Finding(Level.WARNING, f"{said}: rules by account bind all jobs alike", remedy)


def room_for_journal(config: Config) -> Iterator[Finding]:
    """Whether the journal has room, where this machine has its folder."""
    try:
        free_mb, least = shutil.disk_usage(Path(config.store.path).parent).free / 1e6, config.store.min_free_mb
    except OSError:
        return
    said = f"{free_mb:.0f} MB are free for the journal"
    remedy = f"make room on the file system of {config.store.path}"
    few = f"{said}, below {least} (store.min_free_mb): nothing new starts"
    yield Finding.error(few, remedy) if free_mb < least else Finding.ok(said)


def as_json(value: Any) -> Any:
    """What a snapshot has, in values that JSON has: sets sorted, endless times null."""
    if isinstance(value, dict):
        return {name: as_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple | frozenset):
        return [as_json(each) for each in (sorted(value) if isinstance(value, frozenset) else value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _commands(config: Config) -> Commands:
    if config.slurm.conf and not Path(config.slurm.conf).is_file():
        raise InvalidInput("slurm.conf", f"{config.slurm.conf} is not a file")
    return Commands(config.slurm.environment(os.environ))
