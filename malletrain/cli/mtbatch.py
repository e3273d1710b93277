"""`mtbatch`: submits a malleable job. sbatch's own options and directives, read by `slurm.sbatch`; the flow is here.

    read script -> ask Slurm about the partition -> announce the job -> sbatch a held array -> tell the daemon

Whatever fails, nothing is left behind: an array that the daemon does not know is cancelled again, and so is a job
without an array. Runs on the base wheel.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from malletrain import __version__
from malletrain.cli.connect import Daemon
from malletrain.domain.errors import InvalidInput, MalletrainError
from malletrain.slurm import directives, sbatch
from malletrain.slurm.command import Commands
from malletrain.slurm.formats import text
from malletrain.slurm.options import ALLOWED, Option, Use
from malletrain.slurm.sbatch import BatchRequest, Defaults, InvalidBatch, Submission
from malletrain.wire import address
from malletrain.wire.address import Address
from malletrain.wire.errors import WireError
from malletrain.wire.http import DaemonRefused, Http

#: Seconds for sbatch; it takes 13 to 36 ms (measured), more on a controller under load.
SBATCH_TIMEOUT_S = 60.0

_ARRAY_ID = re.compile(r"(\d+)(?:;\S+)?\s*\Z")
_GRES = re.compile(r"(?P<name>[A-Za-z0-9_]+)(?::(?P<type>[^:(,]+))?:(?P<count>\d+[KMGT]?)\Z")

#: Shares of a GRES that is asked for whole already (slurm.conf(5), GresTypes): both together are refused.
_SHARING = frozenset({"shard", "mps"})


def submit(argv: Sequence[str], environ: Mapping[str, str], cwd: str) -> str:
    """Do what `mtbatch ARGV` asks for; what to print.

    Raises:
        MalletrainError, WireError: nothing was started, and nothing is left behind.
    """
    line = directives.from_command_line(argv)
    given = {name: option.value for name, option in line.options.given.items()}
    if "help" in given:
        return usage()
    if "version" in given:
        return f"mtbatch {__version__}"
    site = _site(line.options, environ)
    daemon = Daemon(Http(_url(site), munge_socket=environ.get("MUNGE_SOCKET") or None), site)
    request = _read(line, daemon, environ, cwd)
    commands = Commands(environ)
    check_partition(commands, request.partition)
    if not request.gres:
        request = replace(request, gres=whole_gres(commands, request.partition))
    if "dry-run" in given:
        return describe(request, request.materialize("JOB", daemon.url, sys.executable, environ, __version__), cwd)
    job, array = _submit(daemon, commands, request, environ)
    if "quiet" in given:
        return ""
    if "parsable" in given:
        return str(job)
    held = f"held array {array}, {request.tasks} tasks"
    return f"Submitted malleable job {job} ({held}); follow it with: malletrain status {job}"


def _read(line: directives.CommandLine, daemon: Daemon, environ: Mapping[str, str], cwd: str) -> BatchRequest:
    """The request; every fault of options and script is found before anything is asked of Slurm."""
    if not line.script:
        raise InvalidBatch([*line.options.faults, "no script: give a script file, as mtbatch train.sh"])
    try:
        script = (Path(cwd) / line.script).read_bytes()
    except OSError as error:
        what = f"{line.script}: cannot be read: {os.strerror(error.errno or 0)}"
        raise InvalidBatch([*line.options.faults, what]) from error
    options = line.options.over(directives.from_environment(environ))
    known = daemon.address
    request = sbatch.request(
        script, line.script, options, line.arguments, Defaults(known.partition, known.account, known.qos), cwd
    )
    if not known.partition:  # no file says: the daemon knows
        told = daemon.site()
        defaults = Defaults(told.get("partition", ""), told.get("account", ""), told.get("qos", ""))
        request = sbatch.request(script, line.script, options, line.arguments, defaults, cwd)
    ignored = [f"{line.script}: --{name} is not built yet: leave it out" for name in _unbuilt(request)]
    if ignored:
        raise InvalidBatch(ignored)
    if not request.partition:
        raise InvalidInput("--partition", f"name the harvest partition here, or in {address.SYSTEM_CLIENT_FILE}")
    return request


def _unbuilt(request: BatchRequest) -> list[str]:
    """Options that the daemon does not know yet: refused, never ignored."""
    given = {"budget": request.budget_node_hours, "batch-min": request.batch_min, "batch-max": request.batch_max}
    return [name for name, value in given.items() if value is not None]


def _site(options: directives.Options, environ: Mapping[str, str]) -> Address:
    """Where the daemon is and what pilots are called: --url and --config before the usual places."""
    file, url = options.given.get("config"), options.given.get("url")
    if file is not None:
        found = address.read(Path(file.value))
    elif url is not None:
        found = address.of_site(environ)
    else:
        found = address.find(environ)
    if url is not None:
        found = address.at(url.value, found, "--url")
    return found


def _url(site: Address) -> str:
    if not site.url:
        raise InvalidInput(site.source or "--url", 'names no daemon: add url = "http://HOST:8470", or give --url')
    return site.url


def check_partition(commands: Commands, partition: str) -> None:
    """Make sure that the partition exists, is up, and gives way. The daemon checks more; this is for a quick answer.

    Raises:
        InvalidInput: pilots cannot run there.
        ClusterUnavailable: Slurm does not answer.
    """
    known = text.partitions(commands.ask(["scontrol", "-a", "-o", "show", "partition"]))
    facts = known.get(partition)
    if facts is None:
        names = ", ".join(sorted(known)) or "none"
        raise InvalidInput(f"partition {partition}", f"does not exist; there are: {names}")
    if facts.get("State") != "UP":
        raise InvalidInput(
            f"partition {partition}", f"is {facts.get('State', 'in no known state')}: ask the site's staff"
        )
    if facts.get("PreemptMode") not in ("REQUEUE", "CANCEL"):
        raise InvalidInput(
            f"partition {partition}",
            f"its jobs are not preempted (PreemptMode={facts.get('PreemptMode', 'OFF')}), so pilots would stand in "
            "the main queue's way: ask the site's staff for a harvest partition",
        )


def whole_gres(commands: Commands, partition: str) -> str:
    """All GRES of a node of the partition, as sbatch's --gres takes it; empty where nodes have none, or differ.

    Where they differ nothing is asked for: an exclusive job is given the whole node, GRES included (sbatch(1),
    --exclusive).
    """
    kinds = {row.strip() for row in commands.ask(["sinfo", "-h", "-p", partition, "-o", "%G"]).splitlines()} - {""}
    if len(kinds) != 1:
        return ""
    wanted = []
    # `gpu:a100:4(S:0-1),shard:16`: what is in brackets says where they are.
    for part in re.sub(r"\([^)]*\)", "", kinds.pop()).split(","):
        match = _GRES.match(part)
        if match is not None and match["name"] not in _SHARING:
            wanted.append(part)
    return ",".join(wanted)


def _submit(daemon: Daemon, commands: Commands, request: BatchRequest, environ: Mapping[str, str]) -> tuple[int, int]:
    """Announce, submit, tell the daemon: all of it or nothing; the job's and the array's numbers."""
    try:
        job = daemon.submit(request.announcement()).id
    except DaemonRefused as refused:
        raise NotTaken(f"the daemon does not take the job: {refused}") from refused
    array: int | None = None
    try:
        array = run_sbatch(request.materialize(job, daemon.url, sys.executable, environ, __version__), request.chdir)
        daemon.attach(job, array, request.tasks)
    except BaseException as error:  # Ctrl-C too: what was begun is undone, then the error goes on
        undone = _undo(daemon, commands, job, array)
        if isinstance(error, (MalletrainError, WireError)):
            raise NotTaken(f"{error}; {undone}") from error
        print(f"mtbatch: {undone}", file=sys.stderr)
        raise
    return job, array


def run_sbatch(submission: Submission, cwd: str) -> int:
    """Call sbatch in `cwd`; the array's job id.

    Raises:
        NotTaken: it refused, with its own words, or gave no answer.
    """
    try:
        done = subprocess.run(
            list(submission.argv),
            input=submission.script,
            capture_output=True,
            env=dict(submission.environment),
            cwd=cwd,
            timeout=SBATCH_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        what = f"the directory {cwd} does not exist" if not Path(cwd).is_dir() else "sbatch is not on PATH"
        raise NotTaken(what) from error
    except OSError as error:
        raise NotTaken(f"sbatch cannot be run in {cwd}: {os.strerror(error.errno or 0)}") from error
    except subprocess.TimeoutExpired as error:
        raise NotTaken(
            f"sbatch gave no answer in {SBATCH_TIMEOUT_S:.0f} s; if `squeue -u $USER` shows a held array, scancel it"
        ) from error
    words = "; ".join(part.strip() for part in done.stderr.decode("utf-8", "replace").splitlines() if part.strip())
    if done.returncode != 0:
        raise NotTaken(f"sbatch refuses: {words or f'exit status {done.returncode}'}")
    match = _ARRAY_ID.match(done.stdout.decode("utf-8", "replace"))
    if match is None:
        raise NotTaken(f"sbatch printed no job id but {done.stdout[:80]!r}; look at `squeue -u $USER`")
    if words:  # a warning of Slurm's or of a submit plug-in
        print(f"mtbatch: {words}", file=sys.stderr)
    return int(match[1])


def _undo(daemon: Daemon, commands: Commands, job: int, array: int | None) -> str:
    """Take back what was begun; what became of that, in words."""
    left = []
    if array is not None:
        try:
            answer = commands.run(["scancel", str(array)])
            why = answer.error
        except MalletrainError as error:
            why = str(error)
        if why:
            left.append(f"the held array {array} is still there ({why}): scancel {array}")
    try:
        daemon.ask(job, "cancel")
    except WireError as error:
        left.append(f"job {job} is still announced ({error}): malletrain cancel {job}")
    return "; ".join(left) or "nothing was left behind"


class NotTaken(MalletrainError):
    """The job could not be submitted, and what was begun is undone."""


def describe(request: BatchRequest, submission: Submission, cwd: str) -> str:
    """What would be done, step by step with its reason: the text of `mtbatch --dry-run`."""
    shown = submission.script.decode("utf-8", "replace").rstrip("\n")
    return "\n".join(
        (
            "# 1. announce the job to the daemon, which gives it the number JOB: POST /v1/jobs",
            json.dumps(request.announcement()),
            f"# 2. submit a held array of {request.tasks} tasks, one for each node it may hold and some to spare, in",
            f"#    {request.chdir or cwd}, with the script below as its input:",
            " ".join(submission.argv),
            "# 3. tell the daemon the array's number, so that it looks at each task before it uses one:",
            f'#    POST /v1/jobs/JOB/arrays {{"array_id": ARRAY, "tasks": {request.tasks}}}',
            "# The script:",
            shown,
        )
    )


def usage() -> str:
    """The text of `mtbatch --help`."""
    groups = (
        ("Options of MalleTrain (in the script: #MALLETRAIN or #SBATCH lines)", Use.OURS),
        ("Options of sbatch that are passed on (in the script: #SBATCH lines)", Use.FORWARD),
        ("Options of the command", Use.COMMAND),
    )
    lines = [
        "Usage: mtbatch [OPTIONS] SCRIPT [ARGUMENTS...]",
        "",
        "  Submit a malleable PyTorch job: it trains on whatever nodes are idle, between MIN and",
        "  MAX, and leaves when the main queue wants them. Every other option of sbatch is refused",
        "  by name, with what to do instead.",
    ]
    for title, use in groups:
        lines += ["", f"{title}:"]
        for option in ALLOWED.values():
            if option.use is use:
                lines += _option_lines(option)
    return "\n".join([*lines, "", "  Example:  mtbatch --nodes=1-8 train.sh        mtbatch --dry-run train.sh"])


def _option_lines(option: Option) -> list[str]:
    name = f"--{option.name}" + ("=VALUE" if option.takes else "")
    left = f"  {f'-{option.short}, ' if option.short else '    '}{name}"
    words = [" " * 28 + part for part in textwrap.wrap(option.help, 62)]
    if len(left) > 26:
        return [left, *words]
    return [f"{left:<28}{words[0].strip()}", *words[1:]]


def main(argv: list[str] | None = None) -> NoReturn:
    """The entry point: exit status 0, or 2 with a line on stderr for each fault."""
    given = sys.argv[1:] if argv is None else argv
    if not given:
        print(usage(), file=sys.stderr)
        sys.exit(2)
    try:
        said = submit(given, os.environ, str(Path.cwd()))
    except (MalletrainError, WireError) as error:
        for fault in str(error).splitlines():
            print(f"mtbatch: {fault}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    if said:
        # Bytes: a script may hold any, and a locale may know few.
        sys.stdout.buffer.write(said.encode("utf-8", "replace") + b"\n")
    sys.exit(0)
