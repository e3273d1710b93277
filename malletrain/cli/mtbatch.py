"""`mtbatch`: submits a malleable job. Options are sbatch's, read by `slurm.submission`. Runs on the base wheel."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import click

from malletrain import __version__
from malletrain.domain.errors import InvalidInput, MalletrainError
from malletrain.slurm.command import Commands
from malletrain.slurm.submission import batch_request, directives, job_python
from malletrain.slurm.submission import submit as submitting
from malletrain.slurm.submission.mtbatch_options import ALLOWED, Option, Use
from malletrain.slurm.submission.sbatch import BatchRequest, InvalidBatch, Submission
from malletrain.wire import address
from malletrain.wire.address import Address
from malletrain.wire.daemon import DaemonClient, client_at
from malletrain.wire.daemon_url import with_trust
from malletrain.wire.errors import WireError


def submit(argv: Sequence[str], environ: Mapping[str, str], cwd: str) -> str:
    """Do what `mtbatch ARGV` asks for; what to print. Raises `MalletrainError, WireError`: nothing was started, and
    nothing is left behind."""
    line = directives.from_command_line(argv)
    chosen = {name: option.value for name, option in line.options.texts.items()}
    if "help" in chosen:
        return usage()
    if "version" in chosen:
        return f"mtbatch {__version__}"
    site = _site(line.options, environ)
    if not site.url:
        raise InvalidInput(site.source or "--url", 'names no daemon: add url = "http://HOST:8470", or give --url')
    daemon = client_at(site, environ)
    request = _read(line, daemon, environ, cwd)
    request = replace(request, python=job_python.find(environ, request.python, site.python))
    commands = Commands(environ)
    submitting.check_partition(commands, request.partition)
    kinds = submitting.node_kinds(commands, request.partition)
    submitting.check_nodes(kinds, request)
    if not request.gres:
        request = replace(request, gres=submitting.whole_gres(kinds, request.constraint))
    if "dry-run" in chosen:
        request = submitting.fit(commands, request)
        with suppress(WireError):  # it need not run for this
            request = submitting.as_the_site_submits(daemon, request)
        trusting = with_trust(environ, site.ca)
        made = request.materialize("JOB", daemon.url, request.python, trusting, __version__, "MARK")
        return describe(request, made, cwd)
    if request.to_check:
        request = replace(request, checked=job_python.checked_here(request, environ, _warn))
    job, array = submitting.Submitter(daemon, commands, environ, _warn).submit(request)
    if "quiet" in chosen:
        return ""
    if "parsable" in chosen:
        return str(job)
    held = f"held array {array}, {request.tasks} tasks"
    return f"Submitted malleable job {job} ({held}); follow it with: malletrain status {job}"


def _warn(words: str) -> None:
    print(f"mtbatch: {words}", file=sys.stderr)


def _read(line: directives.CommandLine, daemon: DaemonClient, environ: Mapping[str, str], cwd: str) -> BatchRequest:
    """The request; every fault of options and script is found before anything is asked of Slurm."""
    if not line.script:
        raise InvalidBatch([*line.options.faults, "no script: give a script file, as mtbatch train.sh"])
    try:
        script = (Path(cwd) / line.script).read_bytes()
    except OSError as error:
        what = f"{line.script}: cannot be read: {os.strerror(error.errno or 0)}"
        raise InvalidBatch([*line.options.faults, what]) from error
    options = line.options.over(directives.from_environment(environ))
    site = daemon.address
    request = batch_request.request(script, line.script, options, line.arguments, site, cwd)
    if not site.partition:  # in no client file: ask the daemon
        site = replace(site, **{name: daemon.site().get(name, "") for name in ("partition", "account", "qos")})
        request = batch_request.request(script, line.script, options, line.arguments, site, cwd)
    if not request.partition:
        raise InvalidInput("--partition", f"name the harvest partition here, or in {address.SYSTEM_CLIENT_FILE}")
    return request


def _site(options: directives.BatchOptions, environ: Mapping[str, str]) -> Address:
    """Where the daemon is and what pilots are called: --url and --config before the usual places."""
    file, url = options.texts.get("config"), options.texts.get("url")
    if file is not None:
        found = address.read(Path(file.value))
    else:
        found = address.find(environ) if url is None else address.of_site(environ)
    return found if url is None else address.at(url.value, found, "--url")


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
            "# The script (MARK: a word by which the array is found where sbatch does not print its number):",
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
    written = click.HelpFormatter(width=94)
    written.write_usage("mtbatch", "[OPTIONS] SCRIPT [ARGUMENTS...]")
    written.write_paragraph()
    with written.indentation():
        written.write_text(
            "Submit a malleable PyTorch job: it trains on whatever nodes are idle, between MIN and MAX, and leaves "
            "when the main queue wants them. Every other option of sbatch is refused by name,"
            " with what to do instead."
        )
    for title, use in groups:
        with written.section(title):
            written.write_dl([(_names(each), each.help) for each in ALLOWED.values() if each.use is use])
    written.write_paragraph()
    written.write_text("Example:  mtbatch --nodes=1-8 train.sh        mtbatch --dry-run train.sh")
    return written.getvalue().rstrip()


def _names(option: Option) -> str:
    short = f"-{option.short}, " if option.short else "    "
    return f"{short}--{option.name}" + ("=VALUE" if option.takes else "")


def main(argv: list[str] | None = None) -> NoReturn:
    """The entry point: exit status 0, or 2 with a line on stderr for each fault."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments:
        print(usage(), file=sys.stderr)
        sys.exit(2)
    try:
        said = submit(arguments, os.environ, str(Path.cwd()))
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
