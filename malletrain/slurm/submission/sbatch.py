"""What `mtbatch` submits: a request in, the exact `sbatch` call and script out. Standard library only.

    options -> batch_request.request() -> BatchRequest -> materialize() -> Submission(argv, script, environment)

Every option is a line in the script, so that a worker can submit it again when held tasks run low. Started by Slurm
it re-runs itself as a step under srun, whose tasks get SIGTERM at once on preemption (a batch shell
gets nothing until GraceTime is over), and there it is the user's own script, byte for byte.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from malletrain.domain.errors import MalletrainError
from malletrain.wire.daemon_url import CA_VARIABLE

_URL = re.compile(r"https?://[A-Za-z0-9.\-_\[\]:]+(?:/[A-Za-z0-9.\-_/]*)?\Z")
_SAFE = re.compile(r"[A-Za-z0-9_./=%+,:@-]|[^\x00-\x7f]")

#: Kept of Slurm's own variables when sbatch is called: where the cluster is. The rest describes another job.
_KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTER_NAME"})
_OF_ANOTHER_JOB = (
    "SBATCH_",
    "SLURM_",
    "SRUN_",
    "MALLETRAIN_STEP_OF",
    "MALLETRAIN_PAYLOAD",
    "MALLETRAIN_PART",
    "MALLETRAIN_SCRIPT_FROM",
    "MALLETRAIN_PYTHONPATH",
)


#: Options of each pilot, unless pilot.sbatch leaves them out, where a submit filter refuses them.
PILOT_OPTIONS = ("--exclusive", "--mem=0", "--time=1")

#: What else may stand there: nothing that says when, where, how long or as whom a pilot runs, or what it writes.
SITE_OPTIONS = ("cpus-per-task", "hint", "mail-user", "mcs-label", "mem", "ntasks-per-node", "wckey")

#: Exit status of a pilot whose node lacks its Python.
NO_PYTHON_STATUS = 119


class InvalidBatch(MalletrainError):
    """A script or its options are wrong. `faults` has one complete line for each fault, all of them."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class Submission:
    """One call of sbatch: `script` goes to its standard input. `environment` replaces the caller's."""

    argv: tuple[str, ...]
    script: bytes
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A malleable job as asked for: everything that is needed to announce it and to write its batch script.

    `interpreter` is the shell with its options; `passed` are further sbatch options by long name.
    """

    name: str
    min_nodes: int
    max_nodes: int
    partition: str
    chdir: str
    user_body: bytes = field(repr=False)
    interpreter: tuple[str, ...] = ("/bin/bash",)
    arguments: tuple[str, ...] = ()
    account: str = ""
    qos: str = ""
    gres: str = ""
    constraint: str = ""
    passed: tuple[tuple[str, str], ...] = ()
    tasks: int = 1
    sizes: tuple[int, ...] = ()
    weight: float = 1.0
    elastic: str = "live"
    curve: tuple[tuple[int, float], ...] = ()
    profile: str = ""
    total_samples: float | None = None
    budget_node_hours: float | None = None
    batch_min: int | None = None
    batch_max: int | None = None
    deadline: float | None = None  # Unix seconds
    mpi: str = "none"  # srun --mpi
    resume: int | None = None  # the job whose checkpoint this one begins with
    after: tuple[str, ...] = ()  # such as afterok:3
    mail: tuple[str, ...] = ()  # of begin, end, fail
    mail_user: str = ""
    class_min: tuple[tuple[str, int], ...] = ()
    pilot_options: tuple[str, ...] = PILOT_OPTIONS
    python: str = ""  # that pilots run; "": the one that submits
    trusted: bool = False  # its owner answers for the script
    to_check: tuple[str, ...] = ()  # the script that is checked before it is submitted, and its arguments
    checked: tuple[str, str, str] | None = None  # digest, verdict and text of that check

    def announcement(self) -> dict[str, object]:
        """The body of POST /v1/jobs."""
        always = ("name", "min_nodes", "max_nodes", "sizes", "weight", "elastic", "account", "partition", "curve")
        body = {name: getattr(self, name) for name in always} | {"total_samples": self.total_samples}
        body["curve"] = self.curve or None
        seldom = ("profile", "batch_min", "batch_max", "deadline", "budget_node_hours", "after", "mail", "mail_user")
        optional: dict[str, object] = {name: getattr(self, name) for name in seldom} | {
            "class_min": [f"{name}:{nodes}" for name, nodes in self.class_min],
            "trusted": self.trusted,
            "check": dict(zip(("digest", "verdict", "text"), self.checked or (), strict=False)),
        }
        body |= {name: value for name, value in optional.items() if value}
        body["output"] = list(self.output_patterns())
        return body

    def output_patterns(self) -> tuple[str, ...]:
        """The files of standard output and, where it is another, standard error, as absolute paths with sbatch's
        patterns."""
        passed = dict(self.passed)
        names = [passed.get("output", "slurm-%A_%a.out"), passed.get("error", "")]
        return tuple(name if name.startswith("/") else f"{self.chdir.rstrip('/')}/{name}" for name in names if name)

    def materialize(
        self, job: int | str, url: str, python: str, environment: Mapping[str, str], version: str = "", mark: str = ""
    ) -> Submission:
        """The exact call and script of `job` (a number of the daemon's at `url`). Raises `InvalidBatch`: `url` or
        `python` could not stand in the script.

        sbatch passes `environment`, the caller's, on as it always does (--export), without SBATCH_ variables, which
        would override the script's own lines. `mark` stands in the tasks' comment, by which the array is found.
        """
        faults = []
        if not all(_URL.match(each) for each in url.split(",")):
            faults.append(f"url: {url[:80]!r} is not a plain http or https address")
        if not python.startswith("/") or "\n" in python:
            faults.append(f"python: {python[:80]!r} is not an absolute path")
        ca = environment.get(CA_VARIABLE, "")
        if ca and (not ca.startswith("/") or "\n" in ca):
            faults.append(f"{CA_VARIABLE}: {ca[:80]!r} is not an absolute path")
        if faults:
            raise InvalidBatch(faults)
        head = self._preamble(job, url, python, version, ca, mark).encode("utf-8", "surrogateescape")
        return Submission(("sbatch", "--parsable"), head + self.user_body, clean_environment(environment))

    def lines(self, job: int | str = "", mark: str = "") -> tuple[tuple[str, str], ...]:
        """The sbatch options of the script, in order; without a value: empty text. `job`: the daemon's number."""
        wanted = [
            ("job-name", self.name),
            ("partition", self.partition),
            ("account", self.account),
            ("qos", self.qos),
            ("chdir", self.chdir),
            ("gres", self.gres),
            ("constraint", self.constraint),
            *((name, value) for name, value in self.passed if name != "comment"),
        ]
        comment = next((value for name, value in self.passed if name == "comment"), "")
        fixed = [
            # The actuator reads here that the owner announced the task: it takes no listener's word for that.
            ("comment", "; ".join(filter(None, (comment_of(job), mark, comment)))),
            ("hold", ""),
            ("array", f"0-{self.tasks - 1}"),
            ("no-requeue", ""),
            ("time", "1"),  # minutes: one that its owner releases by hand ends at once
            ("nodes", "1"),
            ("ntasks", "1"),
            ("exclusive", ""),
            ("mem", "0"),  # all of the node's
            ("open-mode", "append"),  # a recycled task writes the same file again
        ]
        asked = {name: value for name, value in wanted if value}
        of_site = {name: value for name, _, value in (option[2:].partition("=") for option in self.pilot_options)}
        left_out = {option[2:].partition("=")[0] for option in PILOT_OPTIONS} - of_site.keys()
        mine = {name: value for name, value in fixed if name not in left_out}
        return tuple((asked | mine | {name: value for name, value in of_site.items() if name not in asked}).items())

    def _preamble(self, job: int | str, url: str, python: str, version: str, ca: str, mark: str) -> str:
        options = "\n".join(
            f"#SBATCH --{name}" + (f"={quote(value)}" if value else "") for name, value in self.lines(job, mark)
        )
        run = " ".join(shlex.quote(word) for word in self.interpreter)
        arguments = " ".join(shlex.quote(word) for word in self.arguments)
        exports = f"  export {CA_VARIABLE}={shlex.quote(ca)}\n" if ca else ""
        if self.resume is not None:
            exports += f"  export MALLETRAIN_RESUME={self.resume}\n"
        set_arguments = f"set -- {arguments}\n" if self.arguments else ""
        return f"""#!/bin/bash
{options}
# Written by mtbatch{" " + version if version else ""} for malleable job {job}.
if [ "${{MALLETRAIN_STEP_OF:-}}" != "$SLURM_JOB_ID" ]; then
  export MALLETRAIN_JOB={shlex.quote(str(job))} MALLETRAIN_URL={shlex.quote(url)} MALLETRAIN_BATCH_SCRIPT="$0"
  export MALLETRAIN_STEP_OF="$SLURM_JOB_ID" MALLETRAIN_PAYLOAD=1
{exports}  if [ ! -x {shlex.quote(python)} ]; then
    echo "malletrain: ${{SLURMD_NODENAME:-this node}} has no "{shlex.quote(python)}": see mtbatch --python" >&2
    exit {NO_PYTHON_STATUS}
  fi
  # An empty or relative entry names the working folder, which others may write to: it is for the script alone.
  mt_given="${{PYTHONPATH:-}}" PYTHONPATH=
  mt_path="$mt_given:"
  while [ -n "$mt_path" ]; do
    case "$mt_path" in /*) PYTHONPATH="$PYTHONPATH${{PYTHONPATH:+:}}${{mt_path%%:*}}" ;; esac
    mt_path="${{mt_path#*:}}"
  done
  [ "$PYTHONPATH" = "$mt_given" ] || export MALLETRAIN_PYTHONPATH="$mt_given"
  mt_nodes="${{SLURM_JOB_NUM_NODES:-1}}" mt_input=none
  # This file lies on the first node alone.
  [ "$mt_nodes" -gt 1 ] && mt_input="$0" && export MALLETRAIN_SCRIPT_FROM=stdin
  exec srun --nodes="$mt_nodes" --ntasks="$mt_nodes" --ntasks-per-node=1 --input="$mt_input" \\
    --cpus-per-task="${{SLURM_CPUS_ON_NODE:-1}}" --mpi={self.mpi} --kill-on-bad-exit=0 --wait=0 --overlap \\
    --export=ALL {shlex.quote(python)} -P -m malletrain.elastic.launch -- {run} "$0"
fi
trap 'exit 143' TERM
[ -z "${{MALLETRAIN_PYTHONPATH:-}}" ] || PYTHONPATH="$MALLETRAIN_PYTHONPATH"
{set_arguments}# The script as submitted:
"""


def comment_of(job: int | str) -> str:
    """The comment in Slurm of each task of a malleable job; the owner's own follows after a semicolon."""
    return f"malletrain job {job}"


def default_tasks(max_nodes: int) -> int:
    """How many held tasks a job starts with: its largest size, and some that preemption may consume.

    Held tasks count against the site's MaxJobCount, so no more than 64 are spare; workers top up.
    """
    return max_nodes + min(64, max(4, max_nodes))


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment for sbatch: without its input variables (SBATCH_*), and without what describes
    another job (SLURM_*), inside of which mtbatch may have been called."""
    return {
        name: value for name, value in environment.items() if not name.startswith(_OF_ANOTHER_JOB) or name in _KEPT
    }


def quote(value: str) -> str:
    """`value` as sbatch reads it back from an `#SBATCH` line: in double quotes, those and backslashes escaped.

    (A backslash before a space does not keep a word together there: measured, 22.05.)
    """
    if all(_SAFE.match(char) for char in value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
