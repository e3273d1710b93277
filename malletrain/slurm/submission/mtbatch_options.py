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
        Option(
            "check",
            Use.OURS,
            help="'SCRIPT ARGUMENTS' to check here first; by default during the job",
        ),
        Option("curve", Use.OURS, help="measured throughput, NODES:SAMPLES_PER_S,..."),
        Option(
            "dependency",
            Use.OURS,
            short="d",
            help="your malleable jobs to wait for: afterok:3 (after, afterany, afternotok)",
        ),
        Option(
            "deadline",
            Use.OURS,
            help="when --total-samples must be done, as now+36hours; needs --curve",
        ),
        Option(
            "elastic",
            Use.OURS,
            help="live (in process; default), restart (by checkpoint), tasks (independent items)",
        ),
        Option("mail-type", Use.OURS, help="BEGIN, END, FAIL, ALL or NONE, where the site sends mail"),
        Option("mail-user", Use.OURS, help="address for mail; by default yours at this site"),
        Option("min-on", Use.OURS, help="fewest nodes of a class, as k80:4"),
        Option("mpi", Use.OURS, help="MPI inside a pilot: none (default), pmi2, pmix"),
        Option(
            "processes-per-node",
            Use.OURS,
            help="copies of the script on each node: a number, or gpu (one a GPU)",
        ),
        Option(
            "profile",
            Use.OURS,
            help="how to learn scaling: none, passive, active, downward, given (--curve)",
        ),
        Option(
            "python",
            Use.OURS,
            help="the pilots' Python or environment; by default the active one",
        ),
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

_NODE_WHOLE = "a pilot has its whole node, with all processors and memory: leave it out"
_ONE_TASK = "a pilot starts one process a node, which starts what it needs; see --processes-per-node"
_PINNED = "the daemon names the node of each pilot: leave it out"
_NO_BINDING = "a pilot has all processors and GPUs of its node: bind threads and processes in the script"
_NODES_OWN = "pilots take their nodes as the site has set them: leave it out"
_CONTAINER = "start the container in the script, as `apptainer exec IMAGE python train.py`"
_SELF_HELD = "MalleTrain holds and releases pilots itself: leave it out"

#: Options of sbatch that are refused, and what to do instead.
REFUSED: dict[str, str] = {
    "acctg-freq": _NODES_OWN,
    "array": "a malleable job is one job: submit each member with its own mtbatch",
    "batch": _PINNED,
    "bb": "burst buffers are not supported: stage data before, or use the main queue",
    "bbf": "burst buffers are not supported: stage data before, or use the main queue",
    "begin": "submit it when it may start; until then nothing of it can use a hole",
    "cluster-constraint": "federations are not supported: submit on the cluster itself",
    "clusters": "federations are not supported: submit on the cluster itself",
    "consolidate-segments": _PINNED,
    "container": _CONTAINER,
    "container-id": _CONTAINER,
    "container-type": _CONTAINER,
    "contiguous": _PINNED,
    "core-spec": _NODE_WHOLE,
    "cores-per-socket": _NODE_WHOLE,
    "cpu-bind": _NO_BINDING,
    "cpu-freq": _NODES_OWN,
    "cpus-per-gpu": _NODE_WHOLE,
    "cpus-per-task": _NODE_WHOLE,
    "delay-boot": _PINNED,
    "distribution": _ONE_TASK,
    "exclude": _PINNED,
    "export-file": "name the variables in --export, or set them in the script",
    "extra": "MalleTrain has no use for it: leave it out",
    "extra-node-info": _NODE_WHOLE,
    "get-user-env": "the environment is that of the call of mtbatch; see --export",
    "gid": "it runs as you, as every job that you submit",
    "gpu-bind": _NO_BINDING,
    "gpu-freq": _NODES_OWN,
    "gpus": "a pilot has all GPUs of its node; see --gpus-per-node",
    "gpus-per-socket": "a pilot has all GPUs of its node; see --gpus-per-node",
    "gpus-per-task": "a pilot has all GPUs of its node; see --processes-per-node=gpu",
    "gres-flags": _NO_BINDING,
    "hint": _NO_BINDING,
    "hold": "hold the job with `malletrain hold JOB` after submitting it",
    "ignore-pbs": "only #SBATCH and #MALLETRAIN lines are read anyway: leave it out",
    "immediate": "it starts as soon as there is a hole: leave it out",
    "input": "a pilot reads no standard input: open the file in the script",
    "kill-on-invalid-dep": "a job whose dependency can never be met stays held: `malletrain cancel` it",
    "licenses": "licences are not supported: they would be taken from the main queue",
    "mcs-label": "pilots carry no MCS label: leave it out",
    "mem": _NODE_WHOLE,
    "mem-bind": _NO_BINDING,
    "mem-per-cpu": _NODE_WHOLE,
    "mem-per-gpu": _NODE_WHOLE,
    "mem-update": _NODE_WHOLE,
    "mincpus": _NODE_WHOLE,
    "network": _NODES_OWN,
    "nice": "its priority among other malleable jobs is --weight",
    "no-kill": "a job goes on without the nodes that fail: leave it out",
    "nodefile": _PINNED,
    "nodelist": _PINNED,
    "ntasks": _ONE_TASK,
    "ntasks-per-core": _ONE_TASK,
    "ntasks-per-gpu": _ONE_TASK,
    "ntasks-per-node": _ONE_TASK,
    "ntasks-per-socket": _ONE_TASK,
    "oom-kill-step": _NODES_OWN,
    "open-mode": "pilots append to their output files: leave it out",
    "overcommit": _NODE_WHOLE,
    "oversubscribe": _NODE_WHOLE,
    "power": _NODES_OWN,
    "prefer": "only what each node must have counts: --constraint",
    "priority": "its priority among other malleable jobs is --weight",
    "propagate": "set limits in the script with ulimit",
    "reboot": "pilots never reboot nodes",
    "requeue": _SELF_HELD,
    "reservation": "pilots never enter reservations: use sbatch for those",
    "resources": _NODE_WHOLE,
    "resv-ports": _ONE_TASK,
    "segment": _PINNED,
    "signal": "a pilot that must leave gets a directive and SIGTERM: handle that",
    "sockets-per-node": _NODE_WHOLE,
    "spread-job": _PINNED,
    "spread-segments": _PINNED,
    "stepmgr": _ONE_TASK,
    "switches": _PINNED,
    "test-only": "use --dry-run",
    "thread-spec": _NODE_WHOLE,
    "threads-per-core": _NODE_WHOLE,
    "time": "the limit of each pilot is cut to its hole; bound the whole with --budget or --total-samples",
    "time-min": "the limit of each pilot is cut to its hole; bound the whole with --budget or --total-samples",
    "tmp": "free disk is not looked at: name nodes that have enough with --constraint",
    "tres-bind": _NO_BINDING,
    "tres-per-task": "a pilot has all of its node; see --gres and --processes-per-node",
    "uid": "it runs as you, as every job that you submit",
    "umask": "set it in the script with umask",
    "usage": "see mtbatch --help",
    "use-min-nodes": "the node range is --nodes=MIN-MAX, and the daemon chooses within it",
    "verbose": "--dry-run shows the sbatch call and the script",
    "wait": "wait for its end with `malletrain wait JOB`",
    "wait-all-nodes": "a pilot starts when its own node is up: leave it out",
    "wrap": "give a script file",
}

#: One-letter names of refused options, by sbatch(1).
REFUSED_SHORT = {
    "a": "array", "b": "begin", "B": "extra-node-info", "c": "cpus-per-task", "F": "nodefile", "G": "gpus",
    "H": "hold", "i": "input", "I": "immediate", "k": "no-kill", "L": "licenses", "m": "distribution",
    "M": "clusters", "n": "ntasks", "O": "overcommit", "s": "oversubscribe", "S": "core-spec", "t": "time",
    "v": "verbose", "w": "nodelist", "W": "wait", "x": "exclude",
}  # fmt: skip

SHORT = {option.short: option.name for option in ALLOWED.values() if option.short}

#: Input environment variables of sbatch(1) that are honoured as if they were options (below the command line, above
#: the script); all other SBATCH_ variables are kept from sbatch, which would let them override the script's lines.
FROM_ENVIRONMENT = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_JOB_NAME": "job-name",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_EXPORT": "export",
    "SBATCH_OUTPUT": "output",
    "SBATCH_ERROR": "error",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_GRES": "gres",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node",
    "SBATCH_WCKEY": "wckey",
}
