"""`malletrain setup`: what Slurm needs at this very site, printed as a script, or done; and taken back again."""

import difflib
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click

from malletrain.cli.admin import site_setup
from malletrain.cli.admin.site_setup import Accounts, Wanted
from malletrain.cli.common_options import PATH, CommandFailed
from malletrain.domain.errors import InvalidInput
from malletrain.slurm.command import Commands
from malletrain.slurm.site import site_facts
from malletrain.slurm.site.site_facts import SiteFacts
from malletrain.wire.munge import user_id

#: sacctmgr writes to a database, slurmctld may be busy (seconds).
_COMMAND_TIMEOUT_S = 60.0


@click.command(
    epilog="""\b
Example:
  malletrain setup --users ann,bob
  sudo malletrain setup --users ann,bob --apply
  sudo malletrain setup --undo --apply"""
)
@click.option("--partition", default="harvest", metavar="NAME", help="The pilots' partition.")
@click.option("--nodes", default="ALL", metavar="LIST", help="Its nodes; ALL excludes cloud and power-saving ones.")
@click.option("--account", default="harvest", metavar="NAME", help="Their account.")
@click.option("--qos", default="harvest", metavar="NAME", help="Their QOS.")
@click.option("--daemon-user", default="malletrain", metavar="USER", help="The daemon's user.")
@click.option("--users", default="", show_default=False, metavar="USER,...", help="Researchers who may use it.")
@click.option("--conf", "conf", type=PATH, metavar="FILE", help="Another slurm.conf.")
@click.option("--undo", is_flag=True, help="Take it back.")
@click.option("--apply", "for_real", is_flag=True, help="Do it, as root; keeps slurm.conf.before-malletrain.")
def setup(users: str, conf: Path | None, undo: bool, for_real: bool, **names: str) -> None:
    """Prepare this site's Slurm; without --apply, only print how.

    Run it on slurmctld's machine, and again after an upgrade. No main job is touched. Preemption that a site has
    stays; one that suspends is refused.
    """
    commands = Commands(os.environ, _COMMAND_TIMEOUT_S)
    facts = site_facts.read(commands)
    if names["nodes"] == "ALL":
        names["nodes"] = site_setup.without_costly_nodes(facts)
    people = tuple(filter(None, users.split(",")))
    wanted = Wanted(**names, users=people, preempted=facts.preempt_mode in ("REQUEUE", "CANCEL"))
    if not (conf or facts.words.get("SLURM_CONF")):
        raise InvalidInput("slurm.conf", "`scontrol show config` does not say where it is: give --conf")
    file = conf or Path(facts.words["SLURM_CONF"])
    known = _accounts(commands, wanted.account) if facts.accounting else Accounts()
    lines = list(_undoing(wanted, facts, file, known) if undo else _doing(wanted, facts, file, known))
    if not lines:
        click.echo("nothing to do: " + ("Slurm was not set up" if undo else "Slurm is set up already"))
        return
    if not undo:
        lines.append("# Then see what Slurm does, before malletraind runs: malletrain doctor --try")
    script = "\n".join(["set -e", *lines]).encode("utf-8", "surrogateescape")
    click.echo(script)
    if for_real and subprocess.run(["/bin/sh"], input=script, env=commands.environment, check=False).returncode:
        raise CommandFailed("a step failed, and none after it was tried: mend what it says above, and run this again")


def _doing(wanted: Wanted, facts: SiteFacts, file: Path, known: Accounts) -> Iterator[str]:
    if facts.accounting:
        for user in (wanted.daemon_user, *wanted.users):
            if user_id(user) is None:
                why = "create it first (site-configs/systemd/malletrain.sysusers): slurmctld looks it up only once"
                raise InvalidInput(f"user {user}", f"does not exist on this machine: {why}")
        enforced = facts.words.get("AccountingStorageEnforce", "none") != "none"
        if why := site_setup.shut_out(wanted, known, enforced):
            raise InvalidInput("accounts", why)
        if grants := site_setup.grants(wanted, known):
            yield "# The account of the pilots, who may use it, and its coordinator"
            yield from map(shlex.join, grants)
    old = _read(file)
    if facts.preempt_type.endswith("/qos") and (listings := site_setup.listings(wanted, facts.qos or {})):
        yield "# Every other QOS preempts the pilots'"
        yield from map(shlex.join, listings)
    new = site_setup.with_harvest(old, wanted, facts.partitions, facts.accounting)
    if new != old:
        yield "# The harvest partition, which all others preempt; these take no jobs of the pilots' account"
        if site_setup.BEGIN not in old:
            yield shlex.join(["cp", "-p", str(file), f"{file}.before-malletrain"])
        yield from _edit(file, old, new)


def _undoing(wanted: Wanted, facts: SiteFacts, file: Path, known: Accounts) -> Iterator[str]:
    old = _read(file)
    if site_setup.BEGIN in old:
        if wanted.partition in facts.partitions:
            yield "# Running and waiting pilots; the partition must be empty before it goes"
            yield shlex.join(["scancel", f"--partition={wanted.partition}"])
            wait = 'while [ -n "$(squeue -h -a -p "$0" -o %i)" ]; do sleep 1; done'
            # Seconds: pilots leave within KillWait and the epilog.
            yield shlex.join(["timeout", "300", "sh", "-c", wait, wanted.partition])
        yield "# slurm.conf as it was before"
        yield from _edit(file, old, site_setup.without_harvest(old))
    elif wanted.partition in facts.partitions:
        why = f"partition {wanted.partition} was not made by `malletrain setup`: remove it by hand"
        raise InvalidInput(str(file), why)
    yield from map(shlex.join, site_setup.listings(wanted, facts.qos or {}, "-"))
    if facts.accounting and (takings := site_setup.takings(wanted, known)):
        yield "# Account and QOS of the pilots"
        yield from map(shlex.join, takings)


def _edit(file: Path, old: str, new: str) -> Iterator[str]:
    """What changes the file, which many sites link to one that the nodes share, and has Slurm read it."""
    name = str(file.resolve())
    yield f"patch {shlex.quote(name)} <<'MALLETRAIN'"
    yield from difflib.unified_diff(old.splitlines(), new.splitlines(), name, name, lineterm="", n=1)
    yield "MALLETRAIN"
    yield "# Slurm reads it; copy it to the nodes before, unless slurmd gets it from slurmctld"
    yield "scontrol reconfigure"


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
