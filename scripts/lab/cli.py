"""The command line of slurm-lab."""

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Sequence

from scripts.lab import cluster, namespace, processes, users
from scripts.lab.api import Lab
from scripts.lab.conf import PROFILES, RELEASES, LabConfig
from scripts.lab.errors import LabError, UsageError
from scripts.lab.layout import Layout
from scripts.lab.processes import Process
from scripts.lab.users import Identity

EXAMPLES = """\
examples:
  scripts/slurm-lab up /tmp/lab --nodes 8 --profile fast
  scripts/slurm-lab exec /tmp/lab -- sinfo
  scripts/slurm-lab up /tmp/lab2 --users --accounting && scripts/slurm-lab exec /tmp/lab2 --as alice -- sbatch job.sh
  scripts/slurm-lab down /tmp/lab

exit status: 0 done; 1 it failed (the reason is on standard error); 2 it cannot be done here, nothing was started.
exec returns the command's own status.
"""


def main(arguments: Sequence[str]) -> int:
    """Runs one command; returns the exit status."""
    own = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    options = parser().parse_args(own)
    options.command = list(arguments[len(own) + 1 :])
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        return int(options.act(options))
    except UsageError as error:
        print(f"slurm-lab: {error}", file=sys.stderr)
        return 2
    except (LabError, OSError) as error:
        print(f"slurm-lab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _interrupted(number: int, frame: object) -> None:
    """SIGTERM ends an `up` as Ctrl-C does: nothing stays behind."""
    raise KeyboardInterrupt


def parser() -> argparse.ArgumentParser:
    """The options, as `--help` shows them."""
    top = argparse.ArgumentParser(
        prog="slurm-lab",
        description="A private, real Slurm cluster on this machine: own munge, ports and files, nothing outside DIR.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    up = commands.add_parser("up", help="bring a fresh lab up in DIR; returns when every node is idle")
    up.add_argument("dir", metavar="DIR", help="its directory: absent, empty, or a lab that is down")
    up.add_argument("--nodes", type=int, default=8, metavar="N", help="number of nodes (default 8)")
    up.add_argument(
        "--controller-only", action="store_true", help="slurmctld alone with N powered-down cloud nodes, up to 60000"
    )
    up.add_argument("--profile", choices=PROFILES, default="fast", help="fast: for tests; site: as large sites run")
    up.add_argument("--release", choices=RELEASES, help="Slurm of this Debian release (default: this machine's)")
    up.add_argument("--accounting", action="store_true", help="with MariaDB and slurmdbd; limits are enforced")
    up.add_argument("--users", action="store_true", help=f"make plain users {', '.join(users.TEST_USERS)} (root)")
    up.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a line of slurm.conf, replaced or added; KEY+=VALUE appends to a list; repeatable",
    )
    up.add_argument("--while", dest="ends_with", type=int, metavar="PID", help="go down when process PID ends")
    up.add_argument("--deadline", type=float, metavar="S", help="give up after S s (default 120 and 0.1 a node)")
    up.set_defaults(act=_up)

    down = commands.add_parser("down", help="end the lab in DIR and all its jobs, and remove its files")
    down.add_argument("dir", metavar="DIR")
    down.add_argument("--keep-logs", action="store_true", help="leave DIR/log")
    down.set_defaults(act=_down)

    execute = commands.add_parser("exec", help="run a command against the lab: exec DIR [--as USER] -- CMD...")
    execute.add_argument("dir", metavar="DIR")
    execute.add_argument("--as", dest="user", metavar="USER", help="run it as this user (root only)")
    execute.set_defaults(act=_exec)

    status = commands.add_parser("status", help="say what runs; exit status 0 if all daemons do")
    status.add_argument("dir", metavar="DIR")
    status.set_defaults(act=_status)

    forget = commands.add_parser("forget-users", help="remove the users that labs made on this machine (root)")
    forget.set_defaults(act=_forget_users)

    check = commands.add_parser("check", help="say whether a lab can be brought up here; makes and installs nothing")
    check.add_argument("--users", action="store_true", help="one with plain users")
    check.set_defaults(act=_check)

    watch = commands.add_parser("watch")  # no help: for the lab itself
    watch.add_argument("dir")
    watch.add_argument("pid", type=int)
    watch.add_argument("start_ticks", type=int)
    watch.set_defaults(act=_watch)
    return top


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set {text}: must be KEY=VALUE")
    return key, value


def _up(options: argparse.Namespace) -> int:
    same = ("nodes", "controller_only", "profile", "release", "accounting", "users")
    chosen = {name: getattr(options, name) for name in same}
    config = LabConfig(**chosen, settings=tuple(_setting(text) for text in options.set))
    known = cluster.up(options.dir, config, options.deadline, options.ends_with)
    layout = Layout.of(options.dir)
    variables = cluster.environment(layout, known.toolchain)
    if known.toolchain.plugin_directory is None:
        del variables["PATH"]
    else:
        variables["PATH"] = f"{known.toolchain.path.split(':')[0]}:$PATH"
    for key, value in variables.items():
        print(f"export {key}={value if key == 'PATH' else shlex.quote(value)}")
    return 0


def _check(options: argparse.Namespace) -> int:
    cluster.check(LabConfig(users=options.users))
    return 0


def _down(options: argparse.Namespace) -> int:
    cluster.down(options.dir, options.keep_logs)
    return 0


def _exec(options: argparse.Namespace) -> int:
    if not options.command:
        raise UsageError("exec: no command: exec DIR [--as USER] -- CMD...")
    lab = Lab.at(options.dir)
    environment, command = lab.env_for(options.user), options.command
    if options.user:
        who = Identity.of(options.user)
        if who.uid != os.geteuid():
            if os.geteuid() != 0:
                raise UsageError(f"exec: only root can run commands as {options.user}")
            namespace.check()
            command = namespace.as_user(who, command)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        print(f"slurm-lab: {options.command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


def _status(options: argparse.Namespace) -> int:
    lab = Lab.at(options.dir)
    dead = [name for name in lab.daemons if not lab.is_running(name)]
    release = lab.release or "this machine's Slurm"
    print(f"{lab.path}: {len(lab.nodes)} nodes, profile {lab.profile}, {release}")
    missing = f"; dead: {', '.join(dead)}" if dead else ""
    print(f"daemons: {len(lab.daemons) - len(dead)} of {len(lab.daemons)} run{missing}")
    if lab.is_running("slurmctld") and lab.is_running("munged"):
        print(lab.run(["sinfo"], timeout=20).stdout, end="")
    return 1 if dead else 0


def _watch(options: argparse.Namespace) -> int:
    """Runs as the lab's warden: takes it down when the process it is bound to has ended."""
    processes.wait_for_end(Process(options.pid, options.start_ticks, "owner"))
    cluster.down(options.dir)
    return 0


def _forget_users(options: argparse.Namespace) -> int:
    made = users.forget()
    print(f"removed {', '.join(made)}" if made else "no lab made a user here")
    return 0
