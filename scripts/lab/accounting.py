"""A private MariaDB (Unix socket only) and slurmdbd, with the accounts and the QOS that MalleTrain is meant for.

Accounts: `main` (default of every user) and `harvest`; QOS `harvest` has UsageFactor=0, so that what runs in holes
costs its owner no fair share. The user `malletrain` coordinates the account `harvest`: that is all the daemon needs.
"""

import os
import pwd
import secrets
from pathlib import Path

from scripts.lab.conf import LabConfig, cluster_name
from scripts.lab.errors import LabError
from scripts.lab.layout import Layout, publish
from scripts.lab.packages import Toolchain, run
from scripts.lab.users import TEST_USERS

COORDINATOR = "malletrain"
DATABASE_USER = "slurm"
COMMAND_TIMEOUT_S = 60.0


def write_files(layout: Layout, toolchain: Toolchain, port: int, user: str) -> None:
    """Writes slurmdbd.conf and an empty database directory; LabError if MariaDB cannot make one."""
    text = slurmdbd_conf(layout, port, user, secrets.token_hex(16), toolchain.plugin_directory)
    publish(layout.root / "slurmdbd.conf", text, 0o600)
    _make_database(layout, toolchain, user)


def slurmdbd_conf(layout: Layout, port: int, user: str, password: str, plugins: Path | None = None) -> str:
    """The text of slurmdbd.conf(5). Pure."""
    return (
        f"DbdHost=localhost\nDbdAddr=127.0.0.1\nDbdPort={port}\nSlurmUser={user}\n"
        f"AuthType=auth/munge\nAuthInfo=socket={layout.munge_socket}\n"
        "StorageType=accounting_storage/mysql\nStorageHost=localhost\n"
        f"StorageUser={DATABASE_USER}\nStoragePass={password}\nStorageLoc=slurm_acct\n"
        f"PidFile={layout.run}/slurmdbd.pid\nLogFile={layout.log}/slurmdbd.log\nDebugLevel=info\n"
        + (f"PluginDir={plugins}\n" if plugins else "")
    )


def database_command(layout: Layout, toolchain: Toolchain) -> list[str]:
    """The command line of the database server, sized for a test: it answers on its socket, and on no port."""
    return [
        toolchain.program("mariadbd"),
        "--no-defaults",
        f"--basedir={toolchain.base}",
        f"--user={pwd.getpwuid(os.geteuid()).pw_name}",
        f"--datadir={layout.database}",
        f"--tmpdir={layout.scratch}",
        f"--socket={layout.database_socket}",
        f"--pid-file={layout.run}/mariadbd.pid",
        "--skip-networking",
        "--innodb-buffer-pool-size=64M",
        "--innodb-lock-wait-timeout=900",  # slurmdbd asks for this much
        "--innodb-flush-log-at-trx-commit=0",  # nothing here outlives the lab
        "--performance-schema=OFF",
        "--loose-innodb-snapshot-isolation=OFF",  # on by default since MariaDB 11.6; slurmdbd does not stand it
    ]


def daemon_variables(layout: Layout) -> dict[str, str]:
    """What slurmdbd needs to find the socket: slurmdbd.conf has no key for it, libmariadb reads this variable."""
    return {"MYSQL_UNIX_PORT": str(layout.database_socket)}


def database_ready(layout: Layout, toolchain: Toolchain) -> bool:
    """Whether the database answers."""
    try:
        _sql(layout, toolchain, "select 1")
    except LabError:
        return False
    return True


def create_database_user(layout: Layout, toolchain: Toolchain) -> None:
    """Gives slurmdbd its database user, with the password of slurmdbd.conf; LabError if that fails."""
    lines = (layout.root / "slurmdbd.conf").read_text().splitlines()
    password = next(line.partition("=")[2] for line in lines if line.startswith("StoragePass="))
    user = f"{DATABASE_USER}@localhost"
    _sql(layout, toolchain, f"create user {user} identified by '{password}'; grant all on *.* to {user};")


def association_commands(cluster: str, config: LabConfig, daemons_user: str) -> list[str]:
    """The commands for sacctmgr, one a line. Pure."""
    people = [*TEST_USERS] if config.users else []
    # As a plain user one's own jobs are all there is: the caller stands for researcher and daemon alike.
    people += [daemons_user] if daemons_user not in ("root", *people) else []
    lines = [f"add cluster {cluster}", f"add account main cluster={cluster} set Organization=lab"]
    if config.harvest:
        lines += [
            "add qos harvest set UsageFactor=0",
            f"add account harvest cluster={cluster} set Organization=lab",
            "modify account harvest set QOS=harvest DefaultQOS=harvest",
        ]
    names = ",".join(people)
    if people:
        lines.append(f"add user {names} account=main cluster={cluster} DefaultAccount=main")
    if people and config.harvest:
        lines.append(f"add user {names} account=harvest cluster={cluster}")
        coordinator = COORDINATOR if config.users else daemons_user
        lines.append(f"add coordinator account=harvest name={coordinator}")
    return lines


def create_associations(layout: Layout, toolchain: Toolchain, config: LabConfig) -> None:
    """Creates cluster, accounts, QOS, users and the coordinator; LabError with sacctmgr's words if it refuses."""
    user = pwd.getpwuid(os.geteuid()).pw_name
    environment = {"PATH": toolchain.path, "SLURM_CONF": str(layout.slurm_conf)}
    for line in association_commands(cluster_name(layout), config, user):
        sacctmgr = [toolchain.program("sacctmgr"), "--immediate", "--quiet", *line.split()]
        run(sacctmgr, environment, timeout_s=COMMAND_TIMEOUT_S)


def _make_database(layout: Layout, toolchain: Toolchain, user: str) -> None:
    command = [
        toolchain.program("mariadb-install-db"),
        "--no-defaults",
        "--force",  # or it insists that the machine's name can be looked up
        f"--basedir={toolchain.base}",
        f"--datadir={layout.database}",
        f"--user={user}",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
    ]
    # A server that starts deletes every #sql* file in its temporary folder, those of other servers too.
    run(command, {"PATH": toolchain.path, "TMPDIR": str(layout.scratch)})


def _sql(layout: Layout, toolchain: Toolchain, statement: str) -> None:
    """Statements go through standard input: a password in the command line could be read by anyone. LabError if one
    fails."""
    command = [toolchain.program("mariadb"), "--no-defaults", "--user=root", f"--socket={layout.database_socket}"]
    run(command, {"PATH": toolchain.path}, input=statement, timeout_s=COMMAND_TIMEOUT_S)
