"""`malletrain setup`: what Slurm needs at this very site, printed as a script, or done; and taken back again."""

import difflib
import os
import pwd
import shlex
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from malletrain.cli.admin import site_setup
from malletrain.cli.admin.site_setup import Accounts, Wanted
from malletrain.cli.common_options import PATH
from malletrain.domain.errors import InvalidInput, MalletrainError
from malletrain.slurm.command import Commands
from malletrain.slurm.site import site_facts
from malletrain.slurm.site.site_facts import SiteFacts

#: sacctmgr writes to a database, slurmctld may be busy (seconds).
_COMMAND_TIMEOUT_S = 60.0

#: Pilots leave within KillWait and the epilog; then the partition may go (seconds).
_EMPTY_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class _Step:
    """One step: commands to be run, or a file to be written."""

    title: str
    commands: tuple[tuple[str, ...], ...] = ()
    file: Path | None = None
    old: str = ""
    new: str = ""
    backup: bool = False


_RECONFIGURE = _Step(
    "Slurm reads it; copy it to the nodes before, unless slurmd gets it from slurmctld",
    (("scontrol", "reconfigure"),),
)


@click.command(
    epilog="""\b
Example:
  malletrain setup --users ann,bob
  sudo malletrain setup --users ann,bob --apply
  sudo malletrain setup --undo --apply"""
)
@click.option("--partition", default="harvest", show_default=True, metavar="NAME", help="The pilots' partition.")
@click.option(
    "--nodes",
    default="ALL",
    show_default=True,
    metavar="LIST",
    help="Its nodes; ALL excludes cloud and power-saving ones.",
)
@click.option("--account", default="harvest", show_default=True, metavar="NAME", help="Their account.")
@click.option("--qos", default="harvest", show_default=True, metavar="NAME", help="Their QOS.")
@click.option("--daemon-user", default="malletrain", show_default=True, metavar="USER", help="The daemon's user.")
@click.option("--users", default="", metavar="USER,...", help="Researchers who may use it.")
@click.option("--conf", "conf", type=PATH, metavar="FILE", help="Another slurm.conf.")
@click.option("--undo", is_flag=True, help="Take it back.")
@click.option("--apply", "for_real", is_flag=True, help="Do it, as root; keeps slurm.conf.before-malletrain.")
def setup(users: str, conf: Path | None, undo: bool, for_real: bool, **names: str) -> None:
    """Prepare this site's Slurm; without --apply, only print how.

    Run it on slurmctld's machine, and again after an upgrade. No main job is touched. A site where Slurm preempts
    already is refused.
    """
    commands = Commands(os.environ, _COMMAND_TIMEOUT_S)
    facts = site_facts.read(commands)
    if names["nodes"] == "ALL":
        names["nodes"] = site_setup.without_costly_nodes(facts)
    wanted = Wanted(**names, users=tuple(filter(None, users.split(","))))
    file = conf or _slurm_conf(commands)
    known = _accounts(commands, wanted.account) if facts.accounting else Accounts()
    steps = list(_undoing(wanted, facts, file, known) if undo else _doing(wanted, facts, file, known))
    if not steps:
        click.echo("nothing to do: " + ("Slurm was not set up" if undo else "Slurm is set up already"))
        return
    if for_real:
        for number, step in enumerate(steps, 1):
            click.echo(f"{number}. {step.title}")
            _carry_out(step, commands, wanted.partition if undo else "")
    else:
        click.echo("\n".join(_script(steps)))


def _doing(wanted: Wanted, facts: SiteFacts, file: Path, known: Accounts) -> Iterator[_Step]:
    if facts.accounting:
        for user in (wanted.daemon_user, *wanted.users):
            try:
                pwd.getpwnam(user)
            except KeyError:
                why = (
                    "create it first (site-configs/systemd/malletrain.sysusers): slurmctld looks up its uid only once"
                )
                raise InvalidInput(f"user {user}", f"does not exist on this machine: {why}") from None
        enforced = facts.words.get("AccountingStorageEnforce", "none") != "none"
        if why := site_setup.shut_out(wanted, known, enforced):
            raise InvalidInput("accounts", why)
        if grants := site_setup.grants(wanted, known):
            yield _Step("the account of the pilots, who may use it, and its coordinator", tuple(map(tuple, grants)))
    old = _read(file)
    new = site_setup.with_harvest(old, wanted, facts.partitions, facts.accounting)
    if facts.accounting and wanted.account:
        new = site_setup.with_main_doors_shut(new, wanted)
    if new != old:
        is_new = site_setup.BEGIN not in old
        done = [f"partition {wanted.partition}, and PreemptMode=OFF on each main partition"] * is_new
        done += [f"main partitions take no jobs of account {wanted.account}"] * ("DenyAccounts=" in new)
        yield _Step(f"{file}: {'; '.join(done)}", (), file, old, new, is_new)
        yield _RECONFIGURE


def _undoing(wanted: Wanted, facts: SiteFacts, file: Path, known: Accounts) -> Iterator[_Step]:
    old = _read(file)
    if site_setup.BEGIN in old:
        if wanted.partition in facts.partitions:
            yield _Step("cancel running and waiting pilots", (("scancel", f"--partition={wanted.partition}"),))
        new = site_setup.without_harvest(old)
        yield _Step(f"{file}: as it was before", (), file, old, new)
        yield _RECONFIGURE
    elif wanted.partition in facts.partitions:
        why = f"partition {wanted.partition} was not made by `malletrain setup`: remove it by hand"
        raise InvalidInput(str(file), why)
    if facts.accounting and (takings := site_setup.takings(wanted, known)):
        yield _Step("account and QOS of the pilots", tuple(map(tuple, takings)))


def _script(steps: list[_Step]) -> Iterator[str]:
    """The steps as a shell script with its reasons."""
    yield "set -e"
    for number, step in enumerate(steps, 1):
        yield f"# {number}. {step.title}"
        if step.file is not None:
            name = str(step.file)
            if step.backup:
                yield f"cp -p {shlex.quote(name)} {shlex.quote(f'{name}.before-malletrain')}"
            yield f"patch {shlex.quote(name)} <<'MALLETRAIN'"
            diff = difflib.unified_diff(step.old.splitlines(), step.new.splitlines(), name, name, lineterm="", n=1)
            yield from diff
            yield "MALLETRAIN"
        yield from (shlex.join(command) for command in step.commands)


def _carry_out(step: _Step, commands: Commands, emptied: str) -> None:
    """Do one step; `emptied`: a partition whose jobs were cancelled, which must be empty before it goes. Raises
    `MalletrainError`: it failed; what was done before stays, and the command may be run again."""
    if step.file is not None:
        if emptied:
            _wait_until_empty(commands, emptied)
        if step.backup:
            shutil.copy2(step.file, f"{step.file}.before-malletrain")
        file = step.file.resolve()  # many sites link it to a file that the nodes share
        new_file = file.with_name(f"{file.name}.malletrain-new")
        try:
            shutil.copy2(file, new_file)  # its mode
            new_file.write_text(step.new, encoding="utf-8", errors="surrogateescape")
            found = file.stat()
            os.chown(new_file, found.st_uid, found.st_gid)
            new_file.replace(file)
        except OSError as error:
            new_file.unlink(missing_ok=True)
            raise InvalidInput(str(step.file), f"cannot be written: {os.strerror(error.errno or 0)}") from error
    for command in step.commands:
        click.echo(f"   {shlex.join(command)}")
        answer = commands.run(list(command))
        if not answer.ok:
            raise SetupFailed(f"{shlex.join(command)}: {answer.error}")


def _wait_until_empty(commands: Commands, partition: str) -> None:
    end = time.monotonic() + _EMPTY_TIMEOUT_S
    while commands.ask(["squeue", "-h", "-a", "-p", partition, "-o", "%i"]).strip():
        if time.monotonic() > end:
            raise SetupFailed(f"jobs are still in partition {partition} after {_EMPTY_TIMEOUT_S:.0f} s: see squeue")
        time.sleep(1.0)


def _slurm_conf(commands: Commands) -> Path:
    for line in commands.ask(["scontrol", "show", "config"]).splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "SLURM_CONF":
            return Path(value.strip())
    raise InvalidInput("slurm.conf", "`scontrol show config` does not say where it is: give --conf")


def _accounts(commands: Commands, account: str) -> Accounts:
    def shown(*words: str) -> str:
        return commands.ask(["sacctmgr", "-n", "-P", "show", *words])

    return site_setup.accounts_from(
        shown("qos", "format=name"),
        shown("account", "withcoord", "format=account,coordinators"),
        shown("user", "withassoc", "format=user,account,defaultaccount"),
        account,
    )


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        why = f"cannot be read ({os.strerror(error.errno or 0)}): run this on slurmctld's machine, or give --conf"
        raise InvalidInput(str(file), why) from error


class SetupFailed(MalletrainError):
    """A step failed; the steps before it stay, and the command may be run again."""

    exit_status = 1
