"""Slurm of another Debian release than this machine's, side by side with it: no root, no chroot, no mounts.

apt resolves and fetches the release's packages into a private folder, they are unpacked, and the programs are given
their own loader and library path (patchelf, as Nix does). So they run like any program, on any release of the
machine, and the jobs they start run in the machine's own system, with its Python. (In a chroot the jobs would be in
there, too.) A release takes some seconds once and is kept in a cache.
"""

import fcntl
import os
import shutil
from pathlib import Path

from scripts.lab.errors import LabError, UsageError
from scripts.lab.packages import SYSTEM_PATH, Toolchain, run

MIRROR_VARIABLE = "DEBIAN_MIRROR"
DEFAULT_MIRROR = "http://deb.debian.org/debian"
# A mirror that lags, or a snapshot, serves an index past its Valid-Until date. It is signed all the same; whether an
# old one will do is for the caller to say.
EXPIRED_VARIABLE = "SLURM_LAB_ACCEPT_EXPIRED"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PACKAGES = (
    *(
        "munge",
        "slurmctld",
        "slurmd",
        "slurmdbd",
        "slurm-client",
        "slurm-wlm-basic-plugins",
        "slurm-wlm-mysql-plugin",
    ),
    *("mariadb-server-core", "mariadb-client-core", "patchelf"),
)
PROGRAMS = (
    *("munge", "munged", "unmunge", "remunge", "slurmctld-wlm", "slurmd-wlm", "slurmdbd", "slurmstepd-wlm"),
    *("sacct", "sacctmgr", "salloc", "sattach", "sbatch", "sbcast", "scancel", "scontrol", "scrontab", "sdiag"),
    *("sinfo", "sprio", "squeue", "sreport", "srun", "sshare", "sstat", "strigger", "scrun"),
    *("mariadb", "mariadbd", "my_print_defaults", "resolveip"),
)
# What a release must borrow from another. libmariadb 3.4.10, which trixie's point releases and forky bring, refuses
# queries of slurmdbd, which then ends ("5027 Number of columns in result (=1) set execeeds maxmimum allowed number of
# columns (=0)", from _check_mysql_concat_is_sane). Bookworm's is of the 3.3 series and has the same interface.
BORROWED = dict.fromkeys(("trixie", "forky"), (("libmariadb3", "bookworm"),))
COMPLETE = "complete"  # written last: a tree without it is rebuilt


def cache_directory() -> Path:
    """Where releases are kept: below $XDG_CACHE_HOME, else ~/.cache; for root where plain users can run them."""
    if set_by_user := os.environ.get("XDG_CACHE_HOME"):
        base = Path(set_by_user)
    elif os.geteuid() == 0:
        base = Path("/var/cache")
    else:
        base = Path.home() / ".cache"
    return base.absolute() / "malletrain" / "roots"


def release_toolchain(release: str) -> Toolchain:
    """The programs of a Debian release, fetched if they are not in the cache.

    UsageError where apt or Debian's keys are missing, LabError where fetching fails.
    """
    tree = cache_directory() / release
    tree.parent.mkdir(parents=True, exist_ok=True)
    with (tree.parent / f"{release}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several labs may want it at once
        mark = tree / COMPLETE
        if not mark.exists() or mark.read_text() != str(tree):  # the path is written into the programs
            if tree.exists():
                shutil.rmtree(tree)
            _fetch(release, tree)
            _relocate(tree)
            mark.write_text(str(tree))
    return Toolchain(
        path=f"{tree}/bin:{SYSTEM_PATH}",
        plugin_directory=_libraries(tree) / "slurm-wlm",
        stepd=tree / "usr/sbin/slurmstepd-wlm",
        base=tree / "usr",
    )


def apt_configuration(tree: Path, accept_expired: bool) -> str:
    """An apt.conf(5) that touches nothing of the machine's: own lists, own cache, nothing installed. Pure."""
    own = tree / "apt"
    settings = {
        "Dir::State": own / "state",
        "Dir::State::status": own / "status",
        "Dir::Cache": own / "cache",
        "Dir::Etc": own / "etc",
        "Dir::Etc::parts": "/dev/null",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",  # root's apt would else fetch as _apt, who may not write here
        "Acquire::Languages": "none",
        "Acquire::Check-Valid-Until": "false" if accept_expired else "true",
        "Debug::NoLocking": "true",
    }
    return "".join(f'{key} "{value}";\n' for key, value in settings.items())


def _fetch(release: str, tree: Path) -> None:
    """Downloads and unpacks the packages and all they depend on."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise UsageError(f"--release {release}: needs apt-get and dpkg-deb, which this machine lacks")
    if not KEYRING.exists():
        raise UsageError(f"--release {release}: install debian-archive-keyring first ({KEYRING} is missing)")
    own = tree / "apt"
    for directory in (own / "etc", own / "state/lists/partial", own / "cache/archives/partial"):
        directory.mkdir(parents=True)
    (own / "status").touch()
    mirror = os.environ.get(MIRROR_VARIABLE, DEFAULT_MIRROR)
    accept_expired = os.environ.get(EXPIRED_VARIABLE) == "1"
    borrowed = BORROWED.get(release, ())
    suites = [release, *dict.fromkeys(other for _, other in borrowed)]
    sources = "".join(f"deb [signed-by={KEYRING}] {mirror} {suite} main\n" for suite in suites)
    (own / "etc/sources.list").write_text(sources)
    (own / "apt.conf").write_text(apt_configuration(tree, accept_expired))
    environment = {**os.environ, "APT_CONFIG": str(own / "apt.conf"), "LC_ALL": "C"}
    try:
        run(["apt-get", "-q", "update"], environment)
    except LabError as error:
        if "is expired" in str(error):
            raise UsageError(
                f"--release {release}: {mirror} serves an expired index: set {MIRROR_VARIABLE} to a fresher mirror, "
                f"or {EXPIRED_VARIABLE}=1 to take it as it is (its signature is checked all the same)"
            ) from error
        raise
    run(["apt-get", "-q", "-y", f"--target-release={release}", "--download-only", "install", *PACKAGES], environment)
    for name in ("bin", "sbin", "lib", "lib64"):
        (tree / f"usr/{name}").mkdir(parents=True, exist_ok=True)
    for name in ("sbin", "lib", "lib64"):  # merged /usr, as every Debian since bookworm
        (tree / name).symlink_to(f"usr/{name}")
    packages = sorted((own / "cache/archives").glob("*.deb"))
    for name, other in borrowed:
        (own / name).mkdir()
        run(["apt-get", "-q", "download", f"{name}/{other}"], environment, cwd=own / name)
        packages += (own / name).glob("*.deb")  # after, and so in place of, the release's own
    for package in packages:
        unpack = f"dpkg-deb --fsys-tarfile '{package}' | tar -x --keep-directory-symlink --no-same-owner -C '{tree}'"
        run(["bash", "-o", "pipefail", "-c", unpack], environment)
    shutil.rmtree(own)


def _relocate(tree: Path) -> None:
    """Makes the programs run from `tree`: their loader, and the path of their and their plugins' libraries."""
    libraries = _libraries(tree)
    path = f"{libraries}/slurm-wlm:{libraries}"
    loader = next(iter([*libraries.glob("ld-linux*"), *(tree / "usr/lib64").glob("ld-linux*")]))
    patch = [str(loader), "--library-path", str(libraries), str(tree / "usr/bin/patchelf")]
    programs = [p for name in PROGRAMS for p in (tree / f"usr/bin/{name}", tree / f"usr/sbin/{name}") if p.exists()]
    # The old kind of path (DT_RPATH) also holds for what a library or plugin loads in turn.
    run([*patch, "--force-rpath", "--set-interpreter", str(loader), "--set-rpath", path, *map(str, programs)], None)
    plugins = [p for p in (libraries / "slurm-wlm").glob("*.so*") if not p.is_symlink()]
    run([*patch, "--force-rpath", "--set-rpath", path, *map(str, plugins)], None)
    # Only these: the release's other programs (bash, ...) still expect to be in their own system.
    bin_directory = tree / "bin"
    bin_directory.mkdir()
    for program in [*programs, tree / "usr/bin/mariadb-install-db"]:
        (bin_directory / program.name.removesuffix("-wlm")).symlink_to(program)  # as alternatives(8) do


def _libraries(tree: Path) -> Path:
    """The release's library directory of this architecture, such as usr/lib/x86_64-linux-gnu."""
    found = sorted(p.parent for p in tree.glob("usr/lib/*-linux-gnu*/libc.so.6"))
    if not found:
        raise LabError(f"{tree}: no C library in it: remove it and try again")
    return found[0]
