"""mtbatch end to end: the real command and the real API; Slurm's commands are fakes, for what cannot be produced."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import Any

import pytest

from malletrain.api.roles import Conflict, Identity, Unavailable
from tests.api.house import House
from tests.cli.conftest import PARTITIONS, SCRIPT, Desk, Done
from tests.messages import says


def refused(done: Done, *said: str) -> None:
    """Exit status 2, one line for each fault, nothing on standard output."""
    assert done.out == ""
    lines = done.err.splitlines()
    assert len(lines) == len(said), done.err
    for line, words in zip(lines, said, strict=True):
        assert line.startswith("mtbatch: ")
        assert words in line
    assert done.status == 2


def nothing_started(desk: Desk, api: House | None = None) -> None:
    assert desk.calls("sbatch") == []
    if api is not None:
        assert [asked for asked in api.requests.asked if asked[0] != "cancel"] == []


def test_a_job_is_announced_submitted_and_attached(desk: Desk, api: House) -> None:
    done = desk.mtbatch("--nodes=1-6", "--weight=2", "train.sh", "--epochs", "3")
    assert (done.err, done.status) == ("", 0)
    (_, announced, uid), (_, job, array, tasks, _) = api.requests.asked
    assert (announced.name, announced.min_nodes, announced.max_nodes, announced.weight) == ("digits", 1, 6, 2.0)
    assert uid == os.getuid()
    assert (array, tasks) == (4711, 12)
    assert says(done.out, f"job {job} (held array 4711, 12 tasks)", f"malletrain status {job}")
    script = (desk.folder / "sbatch.in").read_text()
    assert script.endswith(SCRIPT)
    assert f"MALLETRAIN_JOB={job} MALLETRAIN_URL={api.address}" in script
    for line in ("--hold", "--array=0-11", "--partition=harvest", "--time=1", "--gres=gpu:a100:4", "--no-requeue"):
        assert f"#SBATCH {line}\n" in script
    assert "set -- --epochs 3\n" in script


def test_for_programs_the_number_alone(desk: Desk, api: House) -> None:
    done = desk.mtbatch("--parsable", "train.sh")
    assert done.out == f"{api.requests.asked[-1][1]}\n"


def test_quiet_says_nothing(desk: Desk, api: House) -> None:
    assert desk.mtbatch("-Q", "train.sh") == Done(0, "", "")
    assert len(api.requests.asked) == 2


def test_dry_run_prints_call_and_script_with_reasons_and_starts_nothing(desk: Desk, api: House) -> None:
    done = desk.mtbatch("--dry-run", "train.sh")
    assert (done.err, done.status) == ("", 0)
    lines = done.out.splitlines()
    assert "sbatch --parsable" in lines
    announced = next(json.loads(line) for line in lines if line.startswith("{"))
    assert announced["min_nodes"] == 1
    dry = done.out.partition("# The script ")[2].partition("\n")[2]
    nothing_started(desk, api)
    assert desk.mtbatch("train.sh").status == 0
    job = api.requests.asked[-1][1]
    wet = (desk.folder / "sbatch.in").read_text()
    mark = re.search(rf"malletrain job {job}; (\w+)", wet)
    assert mark is not None
    assert dry == wet.replace(mark[1], "MARK").replace(f"malleable job {job}.", "malleable job JOB.").replace(
        f"malletrain job {job}", "malletrain job JOB"
    ).replace(f"MALLETRAIN_JOB={job} ", "MALLETRAIN_JOB=JOB ")


def test_sbatchs_own_variables_do_not_reach_it(desk: Desk, api: House) -> None:
    desk.mtbatch("train.sh", SBATCH_TIMELIMIT="99", SBATCH_REQUEUE="1", SLURM_JOB_ID="1", KEPT="yes")
    seen = (desk.folder / "sbatch.env").read_text()
    assert "KEPT=yes" in seen
    for name in ("SBATCH_TIMELIMIT", "SBATCH_REQUEUE", "SLURM_JOB_ID", "SLURM_TIME_FORMAT"):
        assert name not in seen


def test_a_client_file_names_the_daemon_and_the_partition(bare_desk: Desk, api: House) -> None:
    file = bare_desk.folder / "client.toml"
    file.write_text(f'url = "{api.address}"\npartition = "harvest"\naccount = "ml"\nqos = "spare"\n')
    done = bare_desk.mtbatch(f"--config={file}", "train.sh", MUNGE_SOCKET=api.munge_socket)
    assert (done.err, done.status) == ("", 0)
    script = (bare_desk.folder / "sbatch.in").read_text()
    assert "#SBATCH --account=ml\n" in script
    assert "#SBATCH --qos=spare\n" in script


@pytest.mark.parametrize(
    ("script", "argv", "said"),
    [
        (SCRIPT.replace("#SBATCH --nodes=1-4\n", ""), [], ["`#SBATCH --nodes=MIN-MAX`"]),
        (SCRIPT, ["--nodes=5-2"], ["MIN 5 is above MAX 2"]),
        (SCRIPT, ["--zork=1"], ["--zork is not an option of mtbatch"]),
        (SCRIPT, ["--mem=4G"], ["--mem: a pilot has its whole node"]),
        (SCRIPT, ["--budget=0"], ["--budget"]),
        (SCRIPT, ["--elastic=maybe"], ["'maybe' "]),
        (SCRIPT, ["--elastic=tasks", "--nodes=2-4"], ["give 1-MAX"]),
        (SCRIPT, ["--elastic=tasks", "--profile=active"], ["--profile: "]),
        (SCRIPT, ["--elastic=tasks", "--resume=3"], ["--resume: "]),
        (SCRIPT, ["--partition=batch"], ["partition harvest"]),
        (SCRIPT, ["--nodes=4-1", "--weight=x", "--time=3"], ["--time:", "MIN 4", "'x' "]),
        ("python train.py\n", ["--nodes=1-2"], ["the shell"]),
        ("", [], ["is empty", "--nodes=MIN-MAX"]),
    ],
)
def test_bad_input_is_refused_whole_and_nothing_is_started(
    desk: Desk, api: House, script: str, argv: list[str], said: list[str]
) -> None:
    (desk.work / "train.sh").write_text(script)
    refused(desk.mtbatch(*argv, "train.sh"), *said)
    nothing_started(desk, api)


def test_without_a_script(desk: Desk, api: House) -> None:
    refused(desk.mtbatch("--nodes=1-2"), "no script")
    refused(desk.mtbatch("--nodes=1-2", "no.sh"), "no.sh: ")
    refused(desk.mtbatch("--nodes=1-2", "."), "Is a directory")
    nothing_started(desk, api)


def test_nothing_at_all_is_the_help_text(bare_desk: Desk) -> None:
    done = bare_desk.mtbatch()
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("Usage: mtbatch [OPTIONS] SCRIPT")


def test_a_partition_that_does_not_exist(desk: Desk, api: House) -> None:
    desk.fake("scontrol", "echo 'PartitionName=batch PriorityTier=1 State=UP PreemptMode=OFF'\n")
    refused(desk.mtbatch("train.sh"), "exist; there are: batch")
    nothing_started(desk, api)


def test_a_partition_that_does_not_preempt(desk: Desk, api: House) -> None:
    desk.fake("scontrol", "echo 'PartitionName=harvest PriorityTier=1 State=UP PreemptMode=OFF'\n")
    refused(desk.mtbatch("train.sh"), "(PreemptMode=OFF)")
    nothing_started(desk, api)


def test_a_partition_that_is_down(desk: Desk, api: House) -> None:
    desk.fake("scontrol", "echo 'PartitionName=harvest PriorityTier=1 State=DOWN PreemptMode=REQUEUE'\n")
    refused(desk.mtbatch("train.sh"), "partition harvest: is DOWN")
    nothing_started(desk, api)


def test_a_slurmctld_that_does_not_answer(desk: Desk, api: House) -> None:
    desk.fake("scontrol", "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1\n")
    refused(desk.mtbatch("train.sh"), "Unable to contact")
    nothing_started(desk, api)


def test_slurm_is_not_installed(desk: Desk, api: House) -> None:
    (desk.folder / "bin" / "scontrol").unlink()
    desk.environ["PATH"] = str(desk.folder / "bin")
    refused(desk.mtbatch("train.sh"), "scontrol: ")
    nothing_started(desk, api)


def test_munge_is_not_running(desk: Desk, api: House) -> None:
    refused(desk.mtbatch("train.sh", MUNGE_SOCKET=str(desk.folder / "gone")), "munged ")
    nothing_started(desk, api)


def test_the_daemon_is_not_there(desk: Desk, api: House) -> None:
    api.server.close()
    refused(desk.mtbatch("train.sh"), f"{api.address}: ")
    nothing_started(desk, api)


def test_no_daemon_is_known(bare_desk: Desk) -> None:
    refused(bare_desk.mtbatch("train.sh"), "MALLETRAIN_URL")
    refused(bare_desk.mtbatch("--url=zork", "train.sh"), "--url: 'zork' is no URL")
    nothing_started(bare_desk)


def test_sbatch_refuses_and_the_job_is_taken_back(desk: Desk, api: House) -> None:
    desk.fake("sbatch", "echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1\n")
    said = "sbatch refuses: sbatch: error: QOSMaxSubmitJobPerUserLimit; --tasks asks for fewer held tasks; nothing"
    refused(desk.mtbatch("train.sh"), said)
    assert [asked[0] for asked in api.requests.asked] == ["announce", "cancel"]


#: A squeue that shows the array that sbatch was given, by its comment.
SHOWS = r"""[[ "$*" == *%k* ]] || exit 0
sed -nE 's/^#SBATCH --comment="?([^"]*)"?$/4711 \1/p' {}/sbatch.in; echo '4710 malletrain job 1'
"""


@pytest.mark.parametrize(
    "printed",
    [
        "4711\nYour project has 99% of its budget left.",
        "Submitted batch job 4711 on cluster alpha",
        "*** maintenance on 24 December ***\n4711;alpha",
        "\x1b[32mSubmitted batch job 4711\x1b[0m",
        "\x1b[?25l\x1b]0;sbatch\x07\x1b[1m4711\x1b(B\x1b[m\n250 hours left",
        "2027\nnode hours left\nSubmitted batch job 4711",
        "250\nhours left. submitted job: 4711 (12 tasks)",
        "sbatch: lua: welcome, alice\r\n4711\r",
    ],
)
@pytest.mark.parametrize("slurm_shows_it", [True, False])
def test_sbatch_prints_more_than_the_number(desk: Desk, api: House, printed: str, slurm_shows_it: bool) -> None:
    (desk.folder / "printed").write_text(f"{printed}\n")
    desk.fake("sbatch", f"cat > {desk.folder}/sbatch.in; cat {desk.folder}/printed\n")
    if slurm_shows_it:
        desk.fake("squeue", SHOWS.format(desk.folder))
    done = desk.mtbatch("train.sh")
    assert (done.status, done.err) == (0, "")
    assert "held array 4711" in done.out
    assert api.requests.asked[-1][2] == 4711


@pytest.mark.parametrize("printed", ["", "Job 4711 submitted, 12 tasks", "2026\n11\n27"])
def test_the_array_is_found_where_no_number_is_printed(desk: Desk, api: House, printed: str) -> None:
    desk.fake("sbatch", f"cat > {desk.folder}/sbatch.in; printf '{printed}'\n")
    desk.fake("squeue", SHOWS.format(desk.folder))
    assert "held array 4711" in desk.mtbatch("train.sh").out
    desk.fake("squeue", "")
    done = desk.mtbatch("train.sh")
    refused(done, "`squeue -u $USER`")


def test_a_wrapper_fails_after_sbatch_has_not(desk: Desk, api: House) -> None:
    desk.fake("sbatch", f"cat > {desk.folder}/sbatch.in; echo 4711; echo 'budget: no such project' >&2; exit 1\n")
    desk.fake("squeue", SHOWS.format(desk.folder))
    refused(desk.mtbatch("train.sh"), "budget: no such project; nothing")
    assert desk.calls("scancel") == ["4711"]
    desk.fake("scancel", "echo 'Access denied' >&2; exit 1\n")
    refused(desk.mtbatch("train.sh"), "(Access denied): scancel 4711")
    desk.fake("squeue", "[[ $* == *%k* ]] || exit 0; echo 'slurm_load_jobs error' >&2; exit 1\n")
    refused(desk.mtbatch("train.sh"), "`squeue -u $USER`")


def test_a_site_leaves_out_what_its_submit_filter_refuses(bare_desk: Desk, new_house: Callable[..., House]) -> None:
    """The limit of a minute, without which a task that its owner releases would run on, is set after sbatch then."""
    api = new_house(site={"sbatch": "--exclusive"})
    api.auth._audiences = (api.address,)
    bare_desk.environ |= {"MALLETRAIN_URL": api.address, "MUNGE_SOCKET": api.munge_socket}
    dry = bare_desk.mtbatch("--dry-run", "train.sh").out
    assert bare_desk.mtbatch("train.sh").status == 0
    wet = (bare_desk.folder / "sbatch.in").read_text()
    for script in (dry, wet):
        assert "#SBATCH --exclusive\n" in script
        assert "#SBATCH --mem" not in script
        assert "#SBATCH --time" not in script
    assert "update JobId=4711 TimeLimit=1" in bare_desk.calls("scontrol")
    bare_desk.fake("scontrol", f"[[ $1 == update ]] && exit 1; cat <<'END'\n{PARTITIONS}END\n")
    refused(bare_desk.mtbatch("train.sh"), "a minute: exit status 1; nothing")
    assert bare_desk.calls("scancel") == ["4711"]


def test_sbatch_prints_nonsense(desk: Desk, api: House) -> None:
    desk.fake("sbatch", "echo hello\n")
    refused(desk.mtbatch("train.sh"), "sbatch printed no job id but 'hello")
    assert api.requests.asked[-1][0] == "cancel"


def test_registering_fails_and_the_array_is_cancelled_again(desk: Desk, api: House) -> None:
    def attach_array(job: int, array_id: int, tasks: int, identity: Identity) -> None:
        raise Conflict("array 4711 belongs to another job")

    api.requests.attach_array = attach_array
    refused(desk.mtbatch("train.sh"), "another job; nothing")
    assert desk.calls("scancel") == ["4711"]
    assert api.requests.asked[-1][0] == "cancel"


def test_what_cannot_be_taken_back_is_said(desk: Desk, api: House) -> None:
    def attach_array(job: int, array_id: int, tasks: int, identity: Identity) -> None:
        raise Unavailable("the journal's disk is full")

    def record(kind: str, job: int, data: dict[str, Any]) -> None:
        if kind == "job_cancelled":
            raise Unavailable("the journal's disk is full")
        written(kind, job, data)

    written = api.requests._record
    api.requests.attach_array = attach_array
    api.requests._record = record
    desk.fake("scancel", "echo 'scancel: error: Zero Bytes' >&2; exit 1\n")
    done = desk.mtbatch("train.sh")
    refused(done, "journal's disk is full; the held array 4711 ")
    assert "scancel 4711; job" in done.err
    assert "malletrain cancel" in done.err


def test_a_warning_of_slurms_is_passed_on(desk: Desk, api: House) -> None:
    desk.fake("sbatch", "echo 'sbatch: maintenance' >&2; cat > /dev/null; echo '4711;cluster'\n")
    done = desk.mtbatch("train.sh")
    assert done.status == 0
    assert done.err == "mtbatch: sbatch: maintenance\n"


@pytest.mark.parametrize(
    ("printed", "gres"),
    [
        ("(null)", ""),
        ("gpu:4", "gpu:4"),
        ("gpu:a100:2(S:0),gpu:v100:2(S:1),shard:8,nvme:1", "gpu:a100:2,gpu:v100:2,nvme:1"),
        ("gpu:4\ngpu:8", ""),
        ("", ""),
    ],
)
def test_all_gres_of_a_node_is_asked_for(desk: Desk, printed: str, gres: str) -> None:
    rows = "\n".join(f"4|small|{each}" for each in printed.splitlines())
    desk.fake("sinfo", f"echo '{rows}'\n")
    script = desk.mtbatch("--dry-run", "train.sh").out
    lines = [line.removeprefix("#SBATCH --gres=") for line in script.splitlines() if "--gres=" in line]
    assert lines == ([gres] if gres else [])


MIXED = "echo '4|a100,ib|gpu:a100:4(S:0-1)'; echo '8|cpu|(null)'\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--gres=gpu:8"],
            "gpu:8; it has 8 with features cpu; 4",
        ),
        (["--constraint=h100"], "constraint h100; it has 8 with"),
        (["--nodes=1-999"], "the 12 nodes of partition harvest: give --nodes=1-12"),
        (
            ["--nodes=1-8", "--gres=gpu:4"],
            "gpu:4: give --nodes=1-4",
        ),
        (["--nodes=6-8", "-C", "a100"], "harvest has 4 that have constraint a100"),
    ],
)
def test_nodes_that_the_partition_does_not_have_are_refused(
    desk: Desk, api: House, options: list[str], said: str
) -> None:
    desk.fake("sinfo", MIXED)
    refused(desk.mtbatch(*options, "train.sh"), said)
    nothing_started(desk, api)


def test_a_constraint_is_passed_on_and_gres_are_those_of_such_nodes(desk: Desk) -> None:
    desk.fake("sinfo", MIXED)
    script = desk.mtbatch("--dry-run", "--nodes=1-4", "--constraint=a100&ib", "train.sh").out
    assert "#SBATCH --constraint='a100&ib'" in script or "--constraint" in script, script
    assert "#SBATCH --gres=gpu:a100:4" in script
    assert "--gres" not in desk.mtbatch("--dry-run", "train.sh").out
