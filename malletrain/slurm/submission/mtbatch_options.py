"""The options of `mtbatch`: those of sbatch that are passed on, its own, and why each of the others is refused.

Standard library only: researchers install this beside their own torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Use(Enum):
    """What becomes of an option."""

    FORWARD = "forward"  # a line of the batch script, as given
    OURS = "ours"  # read by MalleTrain
    GIVEN = "given"  # every pilot is so anyway: accepted, nothing to do
    COMMAND = "command"  # of the command `mtbatch` itself; not for a script's lines


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `takes`: a value (True), none (False), or None: a value only after `=`."""

    name: str
    use: Use
    takes: bool | None = True
    short: str = ""
    help: str = ""


ALLOWED: dict[str, Option] = {
    option.name: option
    for option in (
        # sbatch(1)
        Option("account", Use.FORWARD, short="A", help="the harvest account by default"),
        Option("chdir", Use.FORWARD, short="D", help="working directory; the present one by default"),
        Option("constraint", Use.FORWARD, short="C", help="features that each node must have, as 'a100&nvlink'"),
        Option("comment", Use.FORWARD, help="any text"),
        Option("error", Use.FORWARD, short="e", help="standard error, with %A and %a"),
        Option("exclusive", Use.GIVEN, takes=None),
        Option("export", Use.FORWARD, help="environment variables; ALL by default"),
        Option("gres", Use.FORWARD, help="a node's generic resources; all by default"),
        Option("gpus-per-node", Use.OURS, help="[TYPE:]N: GPUs that each node must have"),
        Option("job-name", Use.FORWARD, short="J", help="the script's name by default"),
        Option("no-requeue", Use.GIVEN, takes=False),
        Option("nodes", Use.OURS, short="N", help="MIN-MAX: nodes that the job can train on; required"),
        Option("output", Use.FORWARD, short="o", help="standard output, with %A and %a"),
        Option("partition", Use.FORWARD, short="p", help="the harvest partition by default"),
        Option("qos", Use.FORWARD, short="q", help="the harvest QOS by default"),
        Option("wckey", Use.FORWARD, help="where the site uses it"),
        # Our own
        Option("batch-max", Use.OURS, help="largest total batch, for elastic.Chosen"),
        Option("batch-min", Use.OURS, help="smallest total batch, for elastic.Chosen"),
        Option("budget", Use.OURS, help="node-hours after which the job ends"),
        Option("check", Use.OURS, help="'SCRIPT ARGUMENTS' to check here first; by default during the job"),
        Option("curve", Use.OURS, help="measured throughput, NODES:SAMPLES_PER_S,..."),
        Option(
            "dependency", Use.OURS, short="d", help="your jobs to wait for: afterok:3 (after, afterany, afternotok)"
        ),
        Option("deadline", Use.OURS, help="when --total-samples must be done, as now+36hours; needs --curve"),
        Option(
            "elastic", Use.OURS, help="live (in process; default), restart (by checkpoint), tasks (separate items)"
        ),
        Option("mail-type", Use.OURS, help="BEGIN, END, FAIL, ALL or NONE, where the site sends mail"),
        Option("mail-user", Use.OURS, help="address for mail; by default yours at this site"),
        Option("min-on", Use.OURS, help="fewest nodes of a class, as k80:4"),
        Option("mpi", Use.OURS, help="MPI inside a pilot: none (default), pmi2, pmix"),
        Option("profile", Use.OURS, help="how to learn scaling: none, passive, active, downward, given (--curve)"),
        Option("python", Use.OURS, help="the pilots' Python or environment; by default the active one"),
        Option("resume", Use.OURS, help="continue from this job's state in the same directory"),
        Option("sizes", Use.OURS, help="the only node counts permitted, as 1,2,4,8"),
        Option("tasks", Use.OURS, help="held tasks to submit at first"),
        Option("total-samples", Use.OURS, help="samples in all"),
        Option("trust", Use.OURS, takes=False, help="resize the script without a check"),
        Option("weight", Use.OURS, help="share against other jobs; 1 by default"),
        # Of the command only
        Option("config", Use.COMMAND, help="file that names the daemon"),
        Option("dry-run", Use.COMMAND, takes=False, help="print the sbatch call and script"),
        Option("help", Use.COMMAND, takes=False, short="h", help="this text"),
        Option("parsable", Use.COMMAND, takes=False, help="print only the job's number"),
        Option("quiet", Use.COMMAND, takes=False, short="Q", help="print only errors"),
        Option("url", Use.COMMAND, help="where the daemon listens"),
        Option("version", Use.COMMAND, takes=False, short="V", help="print the version"),
    )
}

#: What to do instead of options of sbatch that are refused.
_INSTEAD = {
    "pilots take their nodes as the site has set them: leave it out":
        "acctg-freq cpu-freq gpu-freq network oom-kill-step power",
    "a malleable job is one job: submit each member with its own mtbatch": "array",
    "the daemon names the node of each pilot: leave it out":
        "batch consolidate-segments contiguous delay-boot exclude nodefile nodelist segment spread-job "
        "spread-segments switches",
    "burst buffers are not supported: stage data before, or use the main queue": "bb bbf",
    "submit it when it may start; until then nothing of it can use a hole": "begin",
    "federations are not supported: submit on the cluster itself": "cluster-constraint clusters",
    "start the container in the script, as `apptainer exec IMAGE python train.py`":
        "container container-id container-type",
    "a pilot has its whole node, with all processors and memory: leave it out":
        "core-spec cores-per-socket cpus-per-gpu cpus-per-task extra-node-info mem mem-per-cpu mem-per-gpu "
        "mem-update mincpus overcommit oversubscribe resources sockets-per-node thread-spec threads-per-core",
    "a pilot has all processors and GPUs of its node: bind threads and processes in the script":
        "cpu-bind gpu-bind gres-flags hint mem-bind tres-bind",
    "a pilot starts one process a node, which starts what it needs, as by `torchrun --standalone`":
        "distribution ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket resv-ports "
        "stepmgr",
    "name the variables in --export, or set them in the script": "export-file",
    "MalleTrain has no use for it: leave it out": "extra",
    "the environment is that of the call of mtbatch; see --export": "get-user-env",
    "it runs as you, as every job that you submit": "gid uid",
    "a pilot has all GPUs of its node; see --gpus-per-node": "gpus gpus-per-socket",
    "a pilot has all GPUs of its node; start a process for each by `torchrun --standalone`":
        "gpus-per-task processes-per-node",
    "hold the job with `malletrain hold JOB` after submitting it": "hold",
    "only #SBATCH and #MALLETRAIN lines are read anyway: leave it out": "ignore-pbs",
    "it starts as soon as there is a hole: leave it out": "immediate",
    "a pilot reads no standard input: open the file in the script": "input",
    "a job whose dependency can never be met stays held: `malletrain cancel` it": "kill-on-invalid-dep",
    "licences are not supported: they would be taken from the main queue": "licenses",
    "pilots carry no MCS label: leave it out": "mcs-label",
    "its priority among other malleable jobs is --weight": "nice priority",
    "a job goes on without the nodes that fail: leave it out": "no-kill",
    "pilots append to their output files: leave it out": "open-mode",
    "only what each node must have counts: --constraint": "prefer",
    "set limits in the script with ulimit": "propagate",
    "pilots never reboot nodes": "reboot",
    "MalleTrain holds and releases pilots itself: leave it out": "requeue",
    "pilots never enter reservations: use sbatch for those": "reservation",
    "a pilot that must leave gets a directive and SIGTERM: handle that": "signal",
    "use --dry-run": "test-only",
    "the limit of each pilot is cut to its hole; bound the whole with --budget or --total-samples": "time time-min",
    "free disk is not looked at: name nodes that have enough with --constraint": "tmp",
    "a pilot has all of its node; see --gres": "tres-per-task",
    "set it in the script with umask": "umask",
    "see mtbatch --help": "usage",
    "the node range is --nodes=MIN-MAX, and the daemon chooses within it": "use-min-nodes",
    "--dry-run shows the sbatch call and the script": "verbose",
    "wait for its end with `malletrain wait JOB`": "wait",
    "a pilot starts when its own node is up: leave it out": "wait-all-nodes",
    "give a script file": "wrap",
}  # fmt: skip

#: Options of sbatch that are refused, and what to do instead.
REFUSED = {name: instead for instead, names in _INSTEAD.items() for name in names.split()}

#: One-letter names of refused options, by sbatch(1).
_REFUSED_LETTERS = (
    "a=array b=begin B=extra-node-info c=cpus-per-task F=nodefile G=gpus H=hold i=input I=immediate k=no-kill "
    "L=licenses m=distribution M=clusters n=ntasks O=overcommit s=oversubscribe S=core-spec t=time v=verbose "
    "w=nodelist W=wait x=exclude"
)
REFUSED_SHORT = {pair[0]: pair[2:] for pair in _REFUSED_LETTERS.split()}

SHORT = {option.short: option.name for option in ALLOWED.values() if option.short}

#: Input environment variables of sbatch(1) that are honoured as if they were options (below the command line, above
#: the script); all other SBATCH_ variables are kept from sbatch, which would let them override the script's lines.
_HONOURED = "account job-name partition qos export output error constraint gres gpus-per-node wckey"
FROM_ENVIRONMENT = {f"SBATCH_{name.upper().replace('-', '_')}": name for name in _HONOURED.split()}
