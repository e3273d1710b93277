"""From a script and options to the exact call of sbatch: pure, and without any Slurm."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.slurm.submission import batch_request, directives
from malletrain.slurm.submission.batch_request import due_at
from malletrain.slurm.submission.mtbatch_options import ALLOWED, REFUSED, REFUSED_SHORT, SHORT
from malletrain.slurm.submission.sbatch import BatchRequest, InvalidBatch
from malletrain.wire.address import Address
from scripts.lab.packages import Toolchain

SITE = Address("", "harvest", "hacct", "hqos")
GOOD = b"#!/bin/bash\n#SBATCH --nodes=1-8\npython train.py\n"
CACHE = "TORCHINDUCTOR_CACHE_DIR"

#: Of the manual pages and `sbatch --help` of 22.05, 24.11 and 26.05.
OPTIONS_OF_SBATCH = [
    "account", "acctg-freq", "array", "batch", "bb", "bbf", "begin", "chdir", "cluster-constraint", "clusters",
    "comment", "consolidate-segments", "constraint", "container", "container-id", "container-type",
    "contiguous", "core-spec", "cores-per-socket", "cpu-freq", "cpus-per-gpu", "cpus-per-task", "deadline",
    "delay-boot", "dependency", "distribution", "error", "exclude", "exclusive", "export", "export-file",
    "extra", "extra-node-info", "get-user-env", "gid", "gpu-bind", "gpu-freq", "gpus", "gpus-per-node",
    "gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "help", "hint", "hold", "ignore-pbs", "input",
    "job-name", "kill-on-invalid-dep", "licenses", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind",
    "mem-per-cpu", "mem-per-gpu", "mem-update", "mincpus", "network", "nice", "no-kill", "no-requeue",
    "nodefile", "nodelist", "nodes", "ntasks", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node",
    "ntasks-per-socket", "oom-kill-step", "open-mode", "output", "overcommit", "oversubscribe", "parsable",
    "partition", "power", "prefer", "priority", "profile", "propagate", "qos", "quiet", "reboot", "requeue",
    "reservation", "resources", "resv-ports", "segment", "signal", "sockets-per-node", "spread-job",
    "spread-segments", "stepmgr", "switches", "test-only", "thread-spec", "threads-per-core", "time",
    "time-min", "tmp", "tres-bind", "tres-per-task", "uid", "usage", "use-min-nodes", "verbose", "version",
    "wait", "wait-all-nodes", "wckey", "wrap",
]  # fmt: skip


def ask(
    script: bytes, *argv: str, cwd: str = "/home/alice", environment: dict[str, str] | None = None
) -> BatchRequest:
    line = directives.from_command_line([*argv, "train.sh"])
    options = line.options.over(directives.from_environment(environment or {}))
    return batch_request.request(script, "train.sh", options, line.arguments, SITE, cwd)


def faults(script: bytes, *argv: str) -> str:
    with pytest.raises(InvalidBatch) as caught:
        ask(script, *argv)
    assert str(caught.value) == "\n".join(caught.value.faults)
    return str(caught.value)


def lines(request: BatchRequest) -> dict[str, str]:
    return dict(request.lines())


def test_a_script_becomes_a_held_array_of_one_node_tasks() -> None:
    request = ask(GOOD, "--gres=gpu:4")
    assert (request.min_nodes, request.max_nodes, request.name) == (1, 8, "train.sh")
    found = lines(request)
    assert {"hold", "no-requeue", "exclusive"} <= found.keys()
    assert found["time"] == "1"
    assert found["nodes"] == "1"
    assert found["mem"] == "0"
    assert found["array"] == f"0-{request.tasks - 1}"
    assert (found["partition"], found["account"], found["qos"], found["gres"]) == (
        "harvest",
        "hacct",
        "hqos",
        "gpu:4",
    )
    assert found["chdir"] == "/home/alice"


def test_the_users_body_is_kept_byte_for_byte() -> None:
    body = b"#!/bin/bash -l\n#SBATCH -N 2-4\necho '\xff\xfe \x1f\r' \"$@\"\nno newline at end"
    request = ask(body)
    made = request.materialize(7, "http://head:8470", "/opt/venv/bin/python", {})
    assert made.script.endswith(body)
    assert request.interpreter == ("/bin/bash", "-l")


def test_the_script_runs_itself_again_under_srun_and_only_once() -> None:
    request = ask(GOOD, "--tasks=3")
    made = request.materialize(7, "http://head:8470", "/opt/my venv/bin/python", {})
    assert made.argv == ("sbatch", "--parsable")
    text = made.script.decode()
    assert "exec srun " in text
    assert "--kill-on-bad-exit=0" in text
    assert "'/opt/my venv/bin/python' -P -m malletrain.elastic.launch -- /bin/bash \"$0\"" in text
    assert "MALLETRAIN_JOB=7" in text
    assert "--mpi=none" in text
    assert "--mpi=pmi2" in ask(GOOD, "--mpi=pmi2").materialize(7, "http://head:8470", "/python", {}).script.decode()
    check = subprocess.run(["bash", "-n"], input=made.script, capture_output=True)
    assert check.returncode == 0, check.stderr


@pytest.mark.parametrize("words", [["a b", "c'd", '"', "$HOME", "\\", "é"], []])
def test_arguments_and_shell_flags_arrive_as_given(
    words: Sequence[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The written script is run by a real bash, with srun replaced by a shell function that runs its command."""
    body = b'#!/bin/bash -u\n#SBATCH -N 1-2\nprintf "%s\\0" "$@" "$MALLETRAIN_JOB" "$MALLETRAIN_PAYLOAD"\n'
    line = directives.from_command_line(["train.sh", *words])
    request = batch_request.request(body, "train.sh", line.options, line.arguments, SITE, "/tmp")
    folder = tmp_path_factory.mktemp("bin")
    stand_in = folder / "srun"
    stand_in.write_text('#!/bin/bash\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
    stand_in.chmod(0o755)
    script = folder / "slurm_script"
    script.write_bytes(request.materialize(7, "http://head:8470", "/usr/bin/python3", {}).script)
    run = subprocess.run(
        ["/bin/bash", str(script)], capture_output=True, env={"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_ID": "5"}
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.decode().split("\0")[:-1] == [*words, "7", "1"]


@pytest.mark.parametrize("nodes", [1, 3])
def test_each_node_runs_one_process_and_is_told_the_script_where_needed(nodes: int, tmp_path: Path) -> None:
    stand_in, script = tmp_path / "srun", tmp_path / "slurm_script"
    stand_in.write_text('#!/bin/bash\nprintf "%s\\n" "$@" "from=$MALLETRAIN_SCRIPT_FROM"\n')
    stand_in.chmod(0o755)
    script.write_bytes(ask(GOOD).materialize(7, "http://head:8470", "/usr/bin/python3", {}).script)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "5", "SLURM_JOB_NUM_NODES": str(nodes)}
    done = subprocess.run(["/bin/bash", "-u", str(script)], capture_output=True, text=True, env=environment)
    said = done.stdout.splitlines()
    assert {f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"} <= set(said), done.stderr
    assert (f"--input={script}" in said, "from=stdin" in said) == (nodes > 1, nodes > 1)
    assert ("--input=none" in said) == (nodes == 1)


def test_every_fault_is_named_with_its_place() -> None:
    told = faults(
        b'#!/bin/sh\n#SBATCH --nodes=5-2 -t 10 --foo=3\n#SBATCH --comment "x\n#MALLETRAIN elastic=no --weight=-1\n'
        b"#SBATCH -L a:1 -n 4 bar\n#MALLETRAIN --dry-run\n",
        "-H",
    )
    for part in (
        "train.sh:2: --time: the limit of each pilot",
        "train.sh:2: --foo is not an option",
        "train.sh:2: --nodes: MIN 5 is above MAX 2",
        "train.sh:3: no closing quotation",
        "train.sh:4: --elastic: 'no' is none of live, restart, tasks",
        "train.sh:4: --weight: '-1' is not a number above 0",
        "train.sh:5: --licenses: licences are not supported",
        "train.sh:5: --ntasks: ",
        "train.sh:5: 'bar' is not an option",
        "train.sh:6: --dry-run belongs on the command line",
        "command line: --hold: ",
    ):
        assert part in told, part


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (b"", "is empty"),
        (b"#!/usr/bin/python3\n", "or bash"),
        (b"python train.py\n", "the shell"),
        (b"#!/bin/bash\r\n#SBATCH -N 1-2\r\n", "train.sh:1: "),
        (b"#!/bin/bash\n#SBATCH -N 1-2\n\ntrue\r\n", "train.sh:4: "),
        (b"#!/bin/bash\n#SBATCH -N 1-2\n\0", "NUL byte"),
        (b"#!/bin/bash\n", "node range"),
        (b"#!/bin/bash\n#SBATCH -N 4\n", "needs a range"),
        (b"#!/bin/bash\n#SBATCH -N 0-4\n", "at least 1"),
        (b"#!/bin/bash\n#SBATCH -N x\n", "is not MIN-MAX"),
        (b"#!/bin/bash\n#SBATCH -N 2-4\n#MALLETRAIN --sizes=1,2\n", "1 is outside"),
        (b"#!/bin/bash\n#SBATCH -N 2-4 -p batch\n", "partition harvest"),
        (b"#!/bin/bash\n#SBATCH -N 2-4\n#MALLETRAIN batch-min=9 batch-max=8\n", "above --batch-max=8"),
        (b"#!/bin/bash\n#SBATCH -N 2-4\n#MALLETRAIN resume=8 elastic=restart\n", "own checkpoint"),
        (b"#!/bin/bash\n#SBATCH -N 2-4\n#MALLETRAIN resume=x\n", "resume"),
        (b"#!/bin/bash\n#SBATCH -N 2-4 -d singleton\n", "after, afterany, afterok, afternotok"),
        (b"#!/bin/bash\n#SBATCH -N 2-4 -d afterok:1?afterok:2\n", "after, afterany, afterok, afternotok"),
        (b"#!/bin/bash\n#SBATCH -N 2-4 -d afterok:x\n", "'x'"),
        (b"#!/bin/bash\n#SBATCH -N 2-4\n#MALLETRAIN batch-max=8\n", "--batch-min and --batch-max together"),
        (b"#!/bin/bash\n#SBATCH -N 2-4 --deadline=now+3hours\n", "--total-samples and --curve"),
        (b"#!/bin/bash\n#SBATCH -N 2-4\n#MALLETRAIN deadline=tomorrow\n", "neither YYYY-MM-DDTHH:MM"),
        (b"#!/bin/bash\n#SBATCH -N 2-4\n#MALLETRAIN batch-min=2 batch-max=8 elastic=restart\n", "leave --batch-min"),
        (b"#!/bin/bash\n#SBATCH -N 2-4\n#MALLETRAIN --curve=1:a\n", "NODES:SAMPLES_PER_S"),
        (b"#!/bin/bash\n#SBATCH -N 2-4 -o 'a\\b'\n", "backslash"),
        (b"#!/bin/bash\n#SBATCH -N 2-4 -C '[a|b]'\n", "name one feature"),
        (b"#!/bin/bash\n#SBATCH -N 2-4 -C 'a*2'\n", "name one feature"),
    ],
)
def test_bad_scripts(script: bytes, said: str) -> None:
    assert said in faults(script)


def test_the_command_line_goes_before_the_environment_before_the_script() -> None:
    script = b"#!/bin/bash\n#SBATCH -N 1-2 -J script -A script -q script\n"
    request = ask(script, "-J", "line", environment={"SBATCH_JOB_NAME": "env", "SBATCH_ACCOUNT": "env"})
    assert (request.name, request.account, request.qos) == ("line", "env", "script")


def test_own_options_are_read_in_all_spellings() -> None:
    script = (
        b"#!/usr/bin/env bash\n\n# a comment\n#SBATCH --nodes 1-4 # as I like\n"
        b"#MALLETRAIN elastic=live weight=2.5\n#MALLETRAIN --sizes=4,1,2 --total-samples=1e6\n"
        b"#MALLETRAIN --curve=4:300,1:100 budget=10 --batch-min=32 --batch-max=64 tasks=5\n"
        b"echo\n#SBATCH --nodes=9-10\n#MALLETRAIN weight=9\n"
    )
    request = ask(script)
    assert (request.elastic, request.weight, request.sizes) == ("live", 2.5, (1, 2, 4))
    assert request.curve == ((1, 100.0), (4, 300.0))
    assert (request.total_samples, request.budget_node_hours, request.tasks) == (1e6, 10.0, 5)
    assert (request.batch_min, request.batch_max) == (32, 64)
    assert request.max_nodes == 4, "sbatch looks no further than the first command, and neither do we"
    body = request.announcement()
    assert body["curve"] == ((1, 100.0), (4, 300.0))
    assert body["elastic"] == "live"
    assert (body["batch_min"], body["batch_max"]) == (32, 64)


def test_another_jobs_state_is_taken_up() -> None:
    request = ask(b"#!/bin/bash\n#MALLETRAIN nodes=1-4 resume=41\n")
    script = request.materialize(42, "http://head:1", "/usr/bin/python3", {}).script
    assert b"export MALLETRAIN_RESUME=41" in script
    assert (
        b"MALLETRAIN_RESUME"
        not in ask(b"#!/bin/bash\n#MALLETRAIN nodes=1-4\n")
        .materialize(42, "http://head:1", "/usr/bin/python3", {})
        .script
    )


def test_dependencies_and_output_files_are_announced() -> None:
    request = ask(
        b"#!/bin/bash\n#SBATCH -N 1-4 --dependency=afterok:3:4,afterany:5 -o logs/%A_%a.out -e /tmp/%a.err\n"
    )
    assert request.after == ("afterok:3", "afterok:4", "afterany:5")
    announced = request.announcement()
    assert announced["after"] == request.after
    assert announced["output"] == [f"{request.chdir}/logs/%A_%a.out", "/tmp/%a.err"]
    plain = ask(b"#!/bin/bash\n#SBATCH -N 1-4\n")
    assert "after" not in plain.announcement()
    assert plain.announcement()["output"] == [f"{plain.chdir}/slurm-%A_%a.out"]


def test_what_a_sites_filter_asks_for_is_added_and_its_owners_word_counts() -> None:
    asked = ask(b"#!/bin/bash\n#SBATCH -N 1-2 --wckey=mine\n")
    assert lines(asked)["mem"] == "0"
    site = replace(asked, pilot_options=("--exclusive", "--mem=32000", "--wckey=site", "--mcs-label=a"))
    found = lines(site)
    assert (found["mem"], found["wckey"], found["mcs-label"]) == ("32000", "mine", "a")
    assert "exclusive" in found
    assert "time" not in found


def test_mail_is_announced_in_slurms_words() -> None:
    head = b"#!/bin/bash\n#SBATCH -N 1-4\n"
    request = ask(head + b"#SBATCH --mail-type=END,fail --mail-user=ada.l+x@example.org\n")
    announced = request.announcement()
    assert (announced["mail"], announced["mail_user"]) == (("end", "fail"), "ada.l+x@example.org")
    assert b"mail" not in request.materialize(42, "http://head:1", "/usr/bin/python3", {}).script.split(b"# ")[0]
    assert ask(head, "--mail-type=ALL").announcement()["mail"] == ("begin", "end", "fail")
    for silent in ("--mail-type=NONE", "--mail-user=ada@example.org"):
        assert "mail" not in ask(head, silent).announcement()
    for wrong in (
        "--mail-type=TIME_LIMIT", "--mail-user=-X", "--mail-user=a@b@c", "--mail-user=a b", "--mail-user=a,b",
        "--mail-user=a@-b", "--mail-user=$(id)",
    ):  # fmt: skip
        with pytest.raises(InvalidBatch, match=wrong.partition("=")[0]):
            ask(head, wrong)


def test_fewest_nodes_of_a_class_are_announced() -> None:
    request = ask(b"#!/bin/bash\n#SBATCH -N 1-8\n#MALLETRAIN min-on=k80:4,big:2\n")
    assert request.class_min == (("big", 2), ("k80", 4))
    assert request.announcement()["class_min"] == ["big:2", "k80:4"]
    assert "is not CLASS:NODES" in faults(b"#!/bin/bash\n#SBATCH -N 1-8\n#MALLETRAIN min-on=k80\n")
    assert "the 8 nodes" in faults(b"#!/bin/bash\n#SBATCH -N 1-8\n#MALLETRAIN min-on=k80:9\n")


def test_deadlines_are_read_as_sbatch_writes_them() -> None:
    noon = datetime(2026, 11, 1, 12, tzinfo=timezone(timedelta(hours=1)))
    assert due_at("2026-11-01T12:00", noon) == noon.timestamp()
    assert due_at("2026-11-01T12:00:30", noon) == noon.timestamp() + 30
    assert due_at("2026-11-02", noon) == noon.timestamp() + 12 * 3600
    assert due_at("now+90minutes", noon) == noon.timestamp() + 5400
    assert due_at("now+2days", noon) == noon.timestamp() + 2 * 86400
    assert [due_at(text, noon) for text in ("", "noon", "now+5fortnights", "2026-13-01", "12:00", "now+")] == [
        None
    ] * 6
    words = ("--nodes=1-4", "--deadline=now+1hour", "--total-samples=1e6", "--curve=1:5")
    before = time.time()
    assert before + 3600 <= cast(float, ask(b"#!/bin/sh\n", *words).announcement()["deadline"]) <= time.time() + 3600


def test_how_scalability_is_learnt_is_said_and_agrees_with_the_curve() -> None:
    assert ask(b"#!/bin/sh\n", "--nodes=1-4", "--profile=active").announcement()["profile"] == "active"
    assert "profile" not in ask(b"#!/bin/sh\n", "--nodes=1-4").announcement()
    assert ask(b"#!/bin/sh\n", "--nodes=1-4", "--profile=given", "--curve=1:5").profile == "given"
    assert "none, passive" in faults(b"#!/bin/sh\n", "--nodes=1-4", "--profile=task")
    assert "no --curve" in faults(b"#!/bin/sh\n", "--nodes=1-4", "--profile=given")
    assert "leave one" in faults(b"#!/bin/sh\n", "--nodes=1-4", "--profile=none", "--curve=1:5")


def test_no_variable_of_another_job_reaches_sbatch() -> None:
    made = ask(GOOD).materialize(
        1, "http://h:1", "/bin/python",
        {"HOME": "/h", "SLURM_CONF": "/c", "SLURM_JOB_ID": "3", "SBATCH_TIMELIMIT": "9", "MALLETRAIN_STEP_OF": "3"},
    )  # fmt: skip
    assert made.environment == {"HOME": "/h", "SLURM_CONF": "/c"}


@pytest.mark.parametrize("url", ["ftp://h", "http://h'x", "http://h/$(id)", "", "http://h\n"])
def test_an_address_that_could_break_the_script_is_refused(url: str) -> None:
    with pytest.raises(InvalidBatch, match="url"):
        ask(GOOD).materialize(1, url, "/bin/python", {})


def test_no_option_is_both_allowed_and_refused() -> None:
    assert not ALLOWED.keys() & REFUSED.keys()
    assert not SHORT.keys() & REFUSED_SHORT.keys()
    assert set(REFUSED_SHORT.values()) <= REFUSED.keys()


@given(st.binary(max_size=300))
def test_any_script_is_taken_or_refused_in_words(noise: bytes) -> None:
    try:
        request = ask(b"#!/bin/bash\n#SBATCH -N 1-2\n" + noise)
    except InvalidBatch as error:
        assert all(fault and "\n" not in fault for fault in error.faults)
    else:
        assert request.materialize(1, "http://h", "/bin/python", {}).script.endswith(noise)


@given(st.lists(st.text(max_size=12), max_size=6))
def test_any_command_line_is_taken_or_refused_in_words(argv: list[str]) -> None:
    found = directives.from_command_line(argv)
    assert all(fault and "\n" not in fault for fault in found.options.faults)


_value = st.text(st.characters(exclude_characters="\\", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40)


@given(_value, _value)
def test_no_value_escapes_its_line(name: str, comment: str) -> None:
    request = ask(GOOD, f"--job-name={name}", f"--comment={comment}")
    text = request.materialize(1, "http://h", "/bin/python", {}).script.decode("utf-8", "surrogateescape")
    head = [line for line in text.split("\n") if line.startswith("#SBATCH")]
    assert len([line for line in head if "--job-name" in line and "--nodes=1-8" not in line]) >= 1
    first = next(line for line in head if line.startswith("#SBATCH --job-name"))
    # sbatch's own quoting is close enough to the shell's to be read back by it.
    assert shlex.split(first[len("#SBATCH ") :]) == [f"--job-name={name}"] or any(ord(c) > 127 for c in name)


# --- GPUs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "gres"),
    [
        (("--gres=gpu:4",), "gpu:4"),
        (("--gpus-per-node=2",), "gpu:2"),
        (("--gpus-per-node=a100:2",), "gpu:a100:2"),
        (("--gpus-per-node=1g.10gb:7", "--gres=nvme:1"), "nvme:1,gpu:1g.10gb:7"),
    ],
)
def test_gpus_per_node_are_gres(words: tuple[str, ...], gres: str) -> None:
    assert ask(GOOD, *words).gres == gres
    assert f"#SBATCH --gres={gres}\n" in ask(GOOD, *words).materialize(7, "http://h:1", "/p", {}).script.decode()


def test_gpus_per_node_are_read_where_sbatch_reads_them() -> None:
    assert ask(GOOD.replace(b"1-8\n", b"1-8\n#SBATCH --gpus-per-node=h100:8\n")).gres == "gpu:h100:8"
    assert ask(GOOD, environment={"SBATCH_GPUS_PER_NODE": "3"}).gres == "gpu:3"


def test_faults_of_gpus_name_what_to_change() -> None:
    for wrong in ("0", "a100", "a100:1,v100:1", "a b:2", "-1"):
        assert "--gpus-per-node: " in faults(GOOD, f"--gpus-per-node={wrong}")
    assert "names GPUs too" in faults(GOOD, "--gpus-per-node=2", "--gres=gpu:2")
    assert "see --gpus-per-node" in faults(GOOD, "--gpus=4")
    assert "torchrun --standalone" in faults(GOOD, "--gpus-per-task=1")


@pytest.mark.parametrize("name", OPTIONS_OF_SBATCH)
def test_each_option_of_sbatch_is_taken_or_refused_with_what_to_do(name: str) -> None:
    assert (name in ALLOWED) != (name in REFUSED)
    if name in REFUSED:
        script = f"#!/bin/bash\n#SBATCH --nodes=1-4\n#SBATCH --{name}=1\ntrue\n".encode()
        assert faults(script) == f"train.sh:3: --{name}: {REFUSED[name]}"
        assert len(REFUSED[name]) > 10


@pytest.mark.slurm
def test_no_option_of_this_slurm_is_unheard_of(toolchain: Toolchain, tmp_path: Path) -> None:
    """Also when a new release has new ones."""
    plugins = f"PluginDir={toolchain.plugin_directory}\n" if toolchain.plugin_directory else ""
    (tmp_path / "slurm.conf").write_text(f"ClusterName=x\nSlurmctldHost=localhost\n{plugins}")
    environment = {**os.environ, "SLURM_CONF": str(tmp_path / "slurm.conf")}
    told = subprocess.run([toolchain.program("sbatch"), "--help"], capture_output=True, text=True, timeout=60,
                          check=True, env=environment).stdout  # fmt: skip
    names = set(re.findall(r"^ +(?:-\w,? +)?--([a-z][a-z-]+)", told, re.MULTILINE))
    assert len(names) > 60
    assert names <= ALLOWED.keys() | REFUSED.keys()
    letters = set(re.findall(r"^ +-(\w),? ", told, re.MULTILINE))
    assert len(letters) > 30
    assert letters <= SHORT.keys() | REFUSED_SHORT.keys()
