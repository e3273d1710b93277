"""What Slurm is given and asked: texts of `mtbatch --dry-run`, command lines of the cluster's adapter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.corpus import doors, doors_slurm
from tests.corpus.cases import Case, canonical
from tests.corpus.fake_slurm import FakeSlurm

Json = dict[str, Any]

NOW = 1_700_000_000.0

PARTITIONS = (
    "PartitionName=batch AllowAccounts=ALL Default=YES Nodes=n[1-8] PriorityTier=100 State=UP PreemptMode=OFF\n"
    "PartitionName=harvest AllowAccounts=ALL Default=NO Nodes=n[1-8] PriorityTier=1 State=UP PreemptMode=REQUEUE\n"
    "PartitionName=shut Default=NO Nodes=n[1-8] PriorityTier=1 State=DOWN PreemptMode=REQUEUE\n"
)
CONFIG = "MaxJobCount             = 10000\nMaxArraySize            = 1001\n"
CLIENT = 'url = "http://head.example.org:8470"\npartition = "harvest"\naccount = "hacct"\nqos = "hqos"\n'


def cases() -> Iterator[Case]:
    """Scripts, then what the cluster is asked and told, then orders to the actuator."""
    with doors.folder() as folder:
        yield from submissions(folder)
    slurm = FakeSlurm()
    for name, state, act in DEEDS:
        slurm.set(**(CLUSTER | state))
        said = act(doors_slurm.Adapter(slurm, NOW, max_nodes=4 if "wide" in name else 1))
        told = canonical({"calls": slurm.calls, "said": said})
        yield Case(f"cluster/{name}", told, _words(slurm.calls, said), name in ("start-two", "recycle-running"))
    yield from orders(slurm)


def _words(calls: list[list[str]], said: object) -> str:
    changes = [" ".join(call) for call in calls if "show" not in call and call[0] != "squeue"]
    return f"{'; '.join(changes)[:200]} => {json.dumps(said)[:120]}"


# --- mtbatch --------------------------------------------------------------------------------------------------

HEAD = "#!/bin/bash\n"
PLAIN = HEAD + "#SBATCH --nodes=1-4\n#SBATCH --job-name=digits\npython train.py\n"


def submissions(folder: Path) -> Iterator[Case]:
    """What `mtbatch --dry-run` prints for scripts, options and an environment."""
    slurm = FakeSlurm(partition=PARTITIONS, config=CONFIG, sinfo="256|a100|gpu:a100:4(S:0-1),shard:16\n")
    (folder / "client.toml").write_text(CLIENT)
    for name, (script, argv, environ) in SUBMISSIONS.items():
        (folder / "train.sh").write_bytes(script.encode("utf-8", "surrogateescape"))
        done = doors_slurm.mtbatch(slurm, "--dry-run", "--config=client.toml", *argv, **environ)
        words = done.err.replace("\n", " | ") if done.status else f"{len(done.out.splitlines())} lines"
        yield Case(f"mtbatch/{name}", done.text, words, name in ("plain", "everything"))
    slurm.set(partition=PARTITIONS, config=CONFIG.replace("10000", "100"), sinfo="gpu:4\ngpu:8\n")
    (folder / "train.sh").write_text(PLAIN)
    for name, argv in {
        "few-tasks": ["--nodes=1-64", "train.sh"],
        "too-many-tasks": ["--tasks=50", "train.sh"],
        "too-many-nodes": ["--nodes=40-64", "train.sh"],
    }.items():
        done = doors_slurm.mtbatch(slurm, "--dry-run", "--config=client.toml", *argv)
        yield Case(f"mtbatch/{name}", done.text, done.err or f"{len(done.out.splitlines())} lines")
    slurm.set(
        partition=PARTITIONS, config=CONFIG.replace("10000", "200"),
        rows=[row(7, task) for task in range(180)],
    )  # fmt: skip
    done = doors_slurm.mtbatch(slurm, "--dry-run", "--config=client.toml", "train.sh")
    yield Case("mtbatch/queue-is-full", done.text, done.err)
    for name, partitions in {
        "partition-down": PARTITIONS.replace("Nodes=n[1-8] PriorityTier=1 State=UP", "State=DOWN"),
        "partition-unknown": PARTITIONS.replace("harvest", "spare"),
        "partition-keeps": PARTITIONS.replace("REQUEUE", "OFF"),
    }.items():
        slurm.set(partition=partitions, config=CONFIG)
        done = doors_slurm.mtbatch(slurm, "--dry-run", "--config=client.toml", "train.sh")
        yield Case(f"mtbatch/{name}", done.text, done.err)
    slurm.set(fails={"scontrol": "slurm_load_partitions: Unable to contact slurm controller"})
    done = doors_slurm.mtbatch(slurm, "--dry-run", "--config=client.toml", "train.sh")
    yield Case("mtbatch/slurm-is-down", done.text, done.err)
    for name, text in {
        "client-key": 'address = "x"\n',
        "client-toml": "url\n",
        "client-url": 'url = "head"\n',
    }.items():
        (folder / "client.toml").write_text(text)
        done = doors_slurm.mtbatch(slurm, "--dry-run", "--config=client.toml", "train.sh")
        yield Case(f"mtbatch/{name}", done.text, done.err)
    done = doors_slurm.mtbatch(slurm, "--help")
    yield Case("mtbatch/help", done.text, f"{len(done.out.splitlines())} lines")
    slurm.set()
    for name, argv in {
        "all": ["--all", "--now", "-p", "harvest", "-A", "hacct"],
        "dry-run": ["--all", "--now", "--partition=harvest", "--dry-run"],
        "unsure": ["-p", "harvest"],
    }.items():
        done = doors_slurm.malletrain(slurm, "stop", *argv)
        yield Case(f"stop/{name}", f"{slurm.calls}\n{done.text}", (done.out + done.err).strip())
    slurm.set(fails={"scancel": "scancel: error: Access/permission denied"})
    done = doors_slurm.malletrain(slurm, "stop", "--all", "--now", "-p", "harvest")
    yield Case("stop/denied", done.text, done.err)


SUBMISSIONS: dict[str, tuple[str, list[str], dict[str, str]]] = {
    "plain": (PLAIN, ["train.sh"], {}),
    "arguments": (PLAIN, ["train.sh", "--epochs", "3", "a b", "it's", "$HOME"], {}),
    "command-line-wins": (PLAIN, ["--nodes=2-6", "-J", "other", "--weight=2.5", "train.sh"], {}),
    "our-directives": (
        HEAD + "#MALLETRAIN nodes=1-8 weight=2\n#MALLETRAIN --sizes=1,2,4,8\npython t.py\n", ["train.sh"], {},
    ),
    "environment": (
        PLAIN, ["train.sh"],
        {"SBATCH_ACCOUNT": "ml", "SBATCH_OUTPUT": "logs/%A_%a.out", "SBATCH_TIMELIMIT": "99", "SLURM_JOB_ID": "1"},
    ),
    "everything": (
        HEAD + "#SBATCH -N 2-12 -J 'two words' -o \"out dir/%A.log\" --comment='a \"quoted\" \\\\ text'\n"
        "#SBATCH --export=ALL,LR=0.1 --wckey=key --gres=gpu:2 # GPUs\n\n# a comment\n#SBATCH -e err/%a\n"
        "#MALLETRAIN --budget=40 --batch-min=64 --batch-max=1024 --total-samples=1e6 --tasks=20\n"
        "#MALLETRAIN curve=1:100,4:380,12:900 deadline=2027-03-01T12:00 mpi=pmix_v4 profile=given\n"
        "set -e\n#SBATCH --nodes=9-9\npython train.py\n",
        ["-D", "sub dir", "train.sh", "--lr", "0.1"], {},
    ),
    "restart": (HEAD + "#SBATCH -N1-2\npython t.py\n", ["--elastic=restart", "--profile=none", "train.sh"], {}),
    "shell-options": ("#!/usr/bin/env -S bash -eu\n#SBATCH -N 1-2\npython t.py\n", ["train.sh"], {}),
    "login-shell": ("#!/bin/sh -l\n#SBATCH -N 1-2\npython t.py\n", ["train.sh"], {}),
    "odd-bytes": (HEAD + "#SBATCH -N 1-2 --job-name=größe\n# \udcff\npython t.py\n", ["train.sh"], {}),
    "no-newline": (HEAD + "#SBATCH -N 1-2\npython t.py", ["train.sh"], {}),
    "many-nodes": (PLAIN, ["--nodes=1-200", "train.sh"], {}),
    "given-anyway": (PLAIN, ["--exclusive", "--no-requeue", "train.sh"], {}),
    "no-range": (HEAD + "python t.py\n", ["train.sh"], {}),
    "one-size": (PLAIN, ["--nodes=3", "train.sh"], {}),
    "no-script": (PLAIN, ["--nodes=1-2"], {}),
    "script-missing": (PLAIN, ["no.sh"], {}),
    "many-faults": (
        PLAIN.replace("1-4", "5-2"),
        ["--zork=1", "--mem=4G", "--weight=x", "--elastic=maybe", "--sizes=9", "--batch-min=3", "--mpi=x",
         "train.sh"],
        {},
    ),
    "more-faults": (
        PLAIN,
        ["--deadline=tomorrow", "--curve=1:-3", "--profile=given", "--tasks=0", "--budget=nan", "train.sh"],
        {},
    ),
    "refused-options": (
        HEAD + "#SBATCH -N 1-2 -t 1:00 -c 4 --array=0-3\n#SBATCH --dependency=afterok:1 --hold\npython t.py\n",
        ["-w", "n1", "train.sh"], {},
    ),
    "another-partition": (PLAIN, ["-p", "batch", "train.sh"], {}),
    "backslash": (PLAIN, ["--output=a\\b", "train.sh"], {}),
    "quotes": (HEAD + "#SBATCH -N 1-2 --comment='open\npython t.py\n", ["train.sh"], {}),
    "python-script": ("#!/usr/bin/python3\n#SBATCH -N 1-2\n", ["train.sh"], {}),
    "dos": ("#!/bin/bash\r\n#SBATCH -N 1-2\r\n", ["train.sh"], {}),
    "empty": ("", ["train.sh"], {}),
}  # fmt: skip


# --- The cluster ----------------------------------------------------------------------------------------------


def row(array: int, task: int, **more: str) -> dict[str, str]:
    """A held task as squeue has it."""
    return {
        "jobarrayid": f"{array}_{task}", "jobid": str(1000 * array + task), "arrayjobid": str(array),
        "arraytaskid": str(task), "userid": "1001", "username": "ann", "partition": "harvest", "qos": "hqos",
        "state": "PENDING", "reason": "JobHeldUser", "numnodes": "1", "timelimit": "1:00", "requeue": "0",
        "restartcnt": "0", "eligibletime": "N/A", "starttime": "N/A", "endtime": "N/A", "preempttime": "N/A",
        "exit_code": "0", "nodelist": "", "dependency": "(null)", "oversubscribe": "NO", "submittime": "1699990000",
        "prioritylong": "0", "reqnodes": "", "licenses": "(null)", "burstbuffer": "(null)", "exclusive": "NODE",
        "account": "hacct", "name": "digits", "schednodes": "(null)", "excnodes": "", "feature": "(null)",
        "gres": "gpu:4", "comment": "malletrain job 1",
    } | more  # fmt: skip


def running(array: int, task: int, node: str, **more: str) -> dict[str, str]:
    """A task that runs."""
    times = {"starttime": "1699999000", "endtime": "1700002600", "timelimit": "1:00:00", "prioritylong": "5"}
    return row(array, task, state="RUNNING", reason="None", nodelist=node, reqnodes=node, **(times | more))


def main_job(number: int, **more: str) -> dict[str, str]:
    """A job of the main queue."""
    fields = {
        "jobarrayid": str(number), "jobid": str(number), "arrayjobid": str(number), "arraytaskid": "N/A",
        "partition": "batch", "qos": "normal", "account": "phys", "username": "bob", "userid": "1002",
        "name": "lattice; qcd", "timelimit": "1-00:00:00", "reason": "Resources", "prioritylong": "4294",
    }  # fmt: skip
    return row(number, 0, **(fields | more))


def node_text(state: str = "IDLE", **more: str) -> str:
    """A node as scontrol has it, after its name."""
    words = {
        "Arch": "x86_64", "CPUAlloc": "0", "CPUTot": "32", "ActiveFeatures": "ib", "Gres": "gpu:a100:4",
        "RealMemory": "256000", "State": state, "Weight": "10", "Partitions": "batch,harvest",
    }  # fmt: skip
    return " ".join(f"{key}={value}" for key, value in (words | more).items())


CLUSTER: Json = {
    "nodes": {
        "n1": node_text(), "n2": node_text(), "n3": node_text("IDLE+PLANNED"), "n4": node_text("ALLOCATED"),
        "n5": node_text("IDLE+DRAIN", Reason="bad fan [root@2023-11-14T00:00:00]"),
        "n6": node_text(Partitions="batch"),
        "n7": node_text("MIXED", CPUAlloc="8"), "n8": node_text("DOWN*+POWERED_DOWN"),
    },
    "rows": [
        row(7, 0), row(7, 1), row(7, 2), running(7, 3, "n4"), running(7, 4, "n7"),
        row(7, 5, restartcnt="2", requeue="1", submittime="1699999900"),
        row(7, 6, restartcnt="1", submittime="1699999999"),
        row(7, 7, state="RUNNING", reason="None", nodelist="n4", prioritylong="9", partition="batch"),
        row(8, 0, userid="0"), row(8, 1, partition="batch"), row(8, 2, account="", licenses="fluent:1"),
        row(8, 3, reason="JobHeldAdmin"), row(8, 4, dependency="afterok:1", exclusive="NO"),
        row(8, 5, prioritylong="12", reason="Resources"),
        row(9, 0, state="COMPLETED", exit_code="0", starttime="1699999000", endtime="1699999500"),
        row(9, 1, state="COMPLETED", starttime="1699999000", endtime="1699999500", preempttime="1699999400"),
        row(9, 2, state="FAILED", exit_code="36608"), row(9, 3, state="OUT_OF_MEMORY", exit_code="9"),
        row(9, 4, state="NODE_FAIL"), row(9, 5, state="COMPLETING", nodelist="n4"), row(9, 6, state="TIMEOUT"),
        main_job(50, state="RUNNING", reason="None", nodelist="n4", starttime="1699990000", endtime="1700009000"),
        main_job(51, numnodes="2", starttime="1700000900", schednodes="n[1-2]", feature="ib", dependency="(null)"),
        main_job(52, jobarrayid="52_[3-9%2]", arrayjobid="52", arraytaskid="3-9%2"),
        main_job(53, jobarrayid="53+0", numnodes="3", reason="Priority"),
    ],
    "reservation": "ReservationName=maint StartTime=1700010000 EndTime=1700020000 Duration=02:46:40 Nodes=n[1-4] "
    "NodeCnt=4 Flags=MAINT,SPEC_NODES Users=root Accounts=(null) State=INACTIVE\n",
    "topology": "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-4]\nSwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[5-8]\n"
    "SwitchName=s2 Level=1 LinkSpeed=1 Nodes=n[1-8] Switches=s[0-1]\n",
    "sdiag": "sdiag output at Tue Nov 14 22:13:10 2023 (1699999990)\nServer thread count: 3\n"
    "Main schedule statistics (microseconds):\n\tLast cycle:   2100\n\tMax cycle:    9100\n"
    "Backfilling stats\n\tLast cycle when: Tue Nov 14 22:13:00 2023 (1699999980)\n\tLast cycle: 48200\n"
    "\tLast depth cycle: 12\n\tLast queue length: 14\n",
}  # fmt: skip

Adapter = doors_slurm.Adapter


def _start(*starts: tuple[str, str, float], job: int = 1) -> Any:
    wanted = [doors_slurm.action("start", job, pilot, node, limit_s=limit) for pilot, node, limit in starts]
    return lambda cluster: cluster.apply(wanted)


def _recycle(*pilots: str) -> Any:
    return lambda cluster: cluster.apply([doors_slurm.action("recycle", 1, pilot, "n4") for pilot in pilots])


def _cut(pilot: str, ends_at: float) -> Any:
    return lambda cluster: cluster.apply([doors_slurm.action("cut", 1, pilot, "n4", ends_at=ends_at)])


def _cancel(*pilots: str) -> Any:
    return lambda cluster: cluster.apply([doors_slurm.action("cancel", 1, pilots=pilots)])


DOWN = {"fails": {"squeue": "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"}}
MANY = {"rows": [running(6, task, "n4") for task in range(230)]}

DEEDS: tuple[tuple[str, Json, Any], ...] = (
    ("snapshot", {}, Adapter.snapshot),
    ("snapshot-no-topology", {"topology": "No topology information available\n"}, Adapter.snapshot),
    ("snapshot-sdiag-closed", {"fails": {"sdiag": "Access denied"}}, Adapter.snapshot),
    ("snapshot-down", DOWN, Adapter.snapshot),
    ("snapshot-half", {"rows": [row(7, 0, jobid="x")]}, Adapter.snapshot),
    ("look", {}, Adapter.look),
    ("inspect-sound-and-not", {}, lambda cluster: cluster.inspect(7)),
    ("inspect-sound", {"rows": [row(7, task) for task in range(4)]}, lambda cluster: cluster.inspect(7)),
    ("inspect-faults", {}, lambda cluster: cluster.inspect(8)),
    ("inspect-unknown", {}, lambda cluster: cluster.inspect(77)),
    ("inspect-down", DOWN, lambda cluster: cluster.inspect(7)),
    *((f"end-{pilot}", {}, lambda cluster, pilot=pilot: cluster.end_of(pilot)) for pilot in (
        "7_0", "7_3", "8_5", "9_0", "9_1", "9_2", "9_3", "9_4", "9_5", "9_6", "99_1", "7", "7_3+1",
    )),
    ("start-one", {}, _start(("7_0", "n1", 600.0))),
    ("start-two", {}, _start(("7_0", "n1", 600.0), ("7_1", "n3", 359.0))),
    ("start-short", {}, _start(("7_0", "n1", 59.0))),
    ("start-nodes-not-free", {}, _start(("7_0", "n5", 600.0), ("7_1", "n6", 600.0), ("7_2", "n8", 600.0))),
    ("start-node-unknown", {}, _start(("7_0", "n99", 600.0), ("7_1", "n1", 600.0))),
    ("start-owner-unknown", {}, _start(("7_0", "n1", 600.0), job=100)),
    ("start-not-held", {}, _start(("7_3", "n1", 600.0), ("8_5", "n2", 600.0))),
    ("start-again", {}, _start(("7_5", "n1", 600.0))),
    ("start-too-soon-again", {}, _start(("7_6", "n1", 600.0))),
    ("start-changed-tasks", {}, _start(*((f"8_{task}", "n1", 600.0) for task in range(5)))),
    ("start-vanished", {}, _start(("99_0", "n1", 600.0))),
    ("start-rewritten", {"rewrites": {"7_0": {"timelimit": "5:00:00"}}}, _start(("7_0", "n1", 600.0))),
    ("start-update-refused", {"refuses": {"update 7_0": "Requested nodes are busy"}}, _start(("7_0", "n1", 600.0))),
    ("start-release-refused", {"refuses": {"release 7_1": "Access denied"}},
     _start(("7_0", "n1", 600.0), ("7_1", "n2", 600.0))),
    ("start-release-all-refused", {"fails": {"scontrol release": "slurm_suspend error: Unspecified error"}},
     _start(("7_0", "n1", 600.0), ("7_1", "n2", 600.0))),
    ("start-older-slurm", {"fails": {"squeue.*exclusive": "squeue: error: Invalid job format specification"}},
     _start(("7_0", "n1", 600.0))),
    ("start-down", DOWN, _start(("7_0", "n1", 600.0))),
    ("start-wide", {}, _start(("7_0", "n1", 600.0), ("7_0+1", "n2", 480.0), ("7_1", "n3", 480.0))),
    ("start-wide-twice-one-node", {}, _start(("7_0", "n1", 600.0), ("7_0+1", "n1", 480.0))),
    ("start-two-nodes-not-allowed", {}, _start(("7_0", "n1", 600.0), ("7_0+1", "n2", 480.0))),
    ("cut", {}, _cut("7_3", NOW + 500)),
    ("cut-ends-sooner", {}, _cut("7_3", NOW + 50_000)),
    ("cut-at-once", {}, _cut("7_3", NOW - 5000)),
    ("cut-not-started", {}, _cut("8_5", NOW + 500)),
    ("cut-ended", {}, _cut("9_1", NOW + 500)),
    ("cut-elsewhere", {}, _cut("7_7", NOW + 500)),
    ("cut-refused", {"refuses": {"update 7_3": "Access/permission denied"}}, _cut("7_3", NOW + 500)),
    ("cut-gone", {"refuses": {"update 7_3": "Job has already finished"}}, _cut("7_3", NOW + 500)),
    ("recycle-running", {}, _recycle("7_3", "7_4")),
    ("recycle-mixed", {}, _recycle("7_0", "7_3", "7_5", "7_7", "8_5", "9_1", "99_0", "7_3+1")),
    ("recycle-refused", {"refuses": {"requeuehold 7_3": "Access denied", "update 7_4": "Invalid job id specified"}},
     _recycle("7_3", "7_4")),
    ("recycle-many", MANY, _recycle(*(f"6_{task}" for task in range(230)))),
    ("recycle-down", DOWN, _recycle("7_3")),
    ("cancel", {}, _cancel("7_0", "7_1", "7_2", "7_3", "7_5", "8_0", "99_0")),
    ("cancel-gone", {}, _cancel("99_0", "99_1")),
    ("cancel-nothing", {}, _cancel()),
    ("cancel-refused", {"fails": {"scancel": "scancel: error: Kill job error on job id 7_0: Access denied"}},
     _cancel("7_0")),
)  # fmt: skip


def orders(slurm: FakeSlurm) -> Iterator[Case]:
    """Orders to the actuator, sound ones and others, and its answers."""
    make = doors_slurm.action
    sound = {
        "start": [make("start", 1, "7_0", "n1", limit_s=600.0), make("start", 1, "7_1", "n2", limit_s=480.0)],
        "recycle": [make("recycle", 1, "7_3", "n4")],
        "cut": [make("cut", 1, "7_3", "n4", ends_at=NOW + 500)],
        "cancel": [make("cancel", 1, pilots=("7_0", "7_1"))],
        "too-long": [make("start", 1, "7_0", "n1", limit_s=9000.0)],
    }
    lines = {name: doors_slurm.order_line(actions) for name, actions in sound.items()}
    lines |= {
        "no-json": "start\n",
        "verb": '{"verb": "update", "actions": []}\n',
        "none": '{"verb": "recycle", "actions": []}\n',
        "two-cuts": lines["cut"].replace("[{", '[{"job": 1, "pilot": "7_4", "node": "n7", "ends_at": 1.0}, {'),
        "more": lines["recycle"].replace('"node"', '"force": true, "node"'),
        "pilot": lines["recycle"].replace("7_3", "7_3;id"),
        "node": lines["recycle"].replace("n4", "-n4"),
        "uid": lines["start"].replace("1001", '"root"'),
        "nan": lines["cut"].replace(str(NOW + 500), "NaN"),
    }
    for name, line in lines.items():
        slurm.set(**CLUSTER)
        answer = doors_slurm.Adapter(slurm, NOW).order(line.encode())
        told = f"{line}{answer}" + "".join(f"{json.dumps(call)}\n" for call in slurm.calls)
        yield Case(f"actuator/{name}", told, answer[:160], name == "start")
