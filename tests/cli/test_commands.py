"""malletrain's commands end to end, against the real API."""

from __future__ import annotations

import json
import re
from datetime import timedelta, timezone
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.cli import render
from malletrain.cli.main import COMMANDS, GONE_OPTIONS, LazyGroup, cli, one_line
from tests import loud_highs
from tests.api.house import House
from tests.cli.conftest import Desk, Done
from tests.messages import says
from tests.world import event_of

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "commands.md"


def refused(done: Done, status: int, *facts: object) -> None:
    """One line on stderr with these facts, nothing on stdout."""
    assert (done.out, done.status) == ("", status)
    assert done.err.startswith("malletrain: ")
    assert done.err.count("\n") == 1
    assert says(done.err, *facts)


@pytest.fixture
def job(desk: Desk) -> int:
    """A job that mtbatch has announced."""
    return int(desk.mtbatch("--parsable", "train.sh").out)


def test_status_shows_the_job(desk: Desk, job: int) -> None:
    done = desk.malletrain("status")
    assert (done.err, done.status) == ("", 0)
    assert re.search(rf"^ *{job}  \w  digits  \S+ +announced ", done.out, re.MULTILINE)
    assert says(done.out, "not seen")


def test_status_of_one_job_for_people_and_programs(desk: Desk, job: int) -> None:
    assert desk.malletrain("status", str(job)).out.startswith(f"job       {job} digits (")
    row = json.loads(desk.malletrain("status", str(job), "--json").out)
    assert (row["id"], row["min_nodes"], row["max_nodes"]) == (job, 1, 4)
    assert json.loads(desk.malletrain("status", "--json").out)["jobs"][0]["id"] == job


def test_jobs_that_are_over_are_shown_when_asked_for(desk: Desk, api: House, job: int) -> None:
    assert desk.malletrain("cancel", str(job)).out == f"job {job}: cancel requested\n"
    assert "digits" not in desk.malletrain("status").out
    assert "cancelled" in desk.malletrain("status", "--all").out


def test_hold_and_release(desk: Desk, api: House, job: int) -> None:
    for verb in ("hold", "release"):
        done = desk.malletrain(verb, str(job), str(job))
        assert (done.err, done.status) == ("", 0)
        assert api.requests.asked[-1][:2] == (verb, job)
    assert len(api.requests.asked) == 4


def test_a_job_that_is_not_there_does_not_stop_the_others(desk: Desk, api: House, job: int) -> None:
    done = desk.malletrain("cancel", "999", str(job))
    assert done.status == 1
    assert "job 999: " in done.err
    assert done.err.count("\n") == 1
    assert done.out == f"job {job}: cancel requested\n"
    refused(desk.malletrain("status", "999"), 1, "999")


def test_events_and_their_json(desk: Desk, api: House, job: int) -> None:
    api.journal.append([event_of(1.0, "job_held", job, reason="pause\x1b[2J", data={"by": "ann"})])
    done = desk.malletrain("events")
    assert re.search(rf"job_held +job {job}  pause\ufffd\[2J  by=ann", done.out)
    rows = [json.loads(line) for line in desk.malletrain("events", "--json").out.splitlines()]
    assert [row["kind"] for row in rows] == ["job_announced", "job_held"]
    rows = [
        json.loads(line) for line in desk.malletrain("events", "--json", f"--after={rows[0]['seq']}").out.splitlines()
    ]
    assert [row["kind"] for row in rows] == ["job_held"]
    assert desk.malletrain("events", "--job=999").out == ""


def test_events_leave_the_figures_of_training_out(desk: Desk, api: House, job: int) -> None:
    api.journal.append([event_of(1.0, "metric", job, data={"name": "loss", "value": 1.0})])
    assert "metric" not in desk.malletrain("events").out
    assert "metric" in desk.malletrain("events", "--samples").out


def test_waiting_for_a_job_tells_how_it_ended(desk: Desk, api: House, job: int) -> None:
    refused(desk.malletrain("wait", str(job), "--timeout", "0.1"), 1, f"job {job}", "announced", "0 s")
    api.journal.append([event_of(1.0, "job_completed", job, reason="training finished")])
    done = desk.malletrain("wait", str(job))
    assert (done.status, done.out) == (0, f"job {job}: completed: training finished\n")
    other = int(desk.mtbatch("--parsable", "train.sh").out)
    desk.malletrain("cancel", str(other))
    done = desk.malletrain("wait", str(job), str(other))
    assert done.status == 1
    assert done.out.splitlines()[1].startswith(f"job {other}: cancelled")


def test_every_json_is_json_beside_a_library_that_prints(desk: Desk, job: int, tmp_path: Path) -> None:
    """What the tests of studies, observation, `check`, `score`, `ban` and `drain` parse needs no solver."""
    more = {"PYTHONPATH": f"{loud_highs.put(tmp_path / 'loud')}:{Path.cwd()}"}
    said = {
        words: desk.run("malletrain", *words.split(), "--json", more=more).out
        for words in ("status", f"status {job}", f"explain {job}", f"profile {job}", "report", "promise", "doctor")
    }
    for words, out in said.items():
        assert out, words
        json.loads(out)
    for line in desk.run("malletrain", "events", "--json", more=more).out.splitlines():
        json.loads(line)
    trace = tmp_path / "nodes.csv"
    trace.write_text(
        "time,node,state\n2026-02-10T00:00:00,n1,idle\n2026-02-10T00:10:00,n2,idle\n2026-02-10T02:00:00,n1,allocated\n"
    )
    replay = ("replay", str(trace), "--policy", "auto,milp", "--mix", "imagenet:2", "--json", "-")
    done = desk.run("malletrain", *replay, more=more)
    assert json.loads(done.out), done.err


def test_all_events_are_paged_through(desk: Desk, api: House, job: int) -> None:
    api.journal.append([event_of(float(n), "pool", data={"idle": n}) for n in range(2500)])
    assert len(desk.malletrain("events", "--json").out.splitlines()) == 2501


def test_explain(desk: Desk) -> None:
    known = json.loads(desk.malletrain("explain", "n001", "--json").out)
    assert (known["subject"], len(known["lines"]), says(known["lines"][0], "n001")) == ("n001", 1, True)
    assert desk.malletrain("explain", "n001").out == f"{known['lines'][0]}\n"
    assert says(desk.malletrain("explain", "--main-job", "99").out, "main-job 99")
    refused(desk.malletrain("explain", "nowhere"), 1, "nowhere")
    refused(desk.malletrain("explain"), 2, "JOB's number")


def test_promise(desk: Desk) -> None:
    shown = desk.malletrain("promise", "--days=1", "--main-jobs").out
    assert says(shown, "main_delay_p95 2 s", "90%")
    assert "delay: mean 0.03 s, p95 0 s, longest 12.5 s" in shown
    assert "within 2 s: 99.8% (shown: at least 99.0%)" in shown
    assert re.search(r"2 s +6\.0 +75\.0%", shown)
    assert re.search(r"^41 +ada .* 12\.5 s +1  workers left$", shown, re.MULTILINE)
    told = json.loads(desk.malletrain("promise", "--json").out)
    assert told["kept"]["until"] - told["kept"]["since"] == 7 * 86_400
    assert [each["cause"] for each in told["main_jobs"]] == ["leaving", "none"]


def test_report(desk: Desk) -> None:
    assert desk.malletrain("report").out.count("\n") == 1
    assert json.loads(desk.malletrain("report", "--json", "--since=2026-11-01").out) == []
    refused(desk.malletrain("report", "--since=yesterday"), 2, "'--since': 'yesterday'")


def test_drain_asks_for_the_nodes_and_returns_when_they_are_empty(desk: Desk, api: House) -> None:
    api.uid_seen = 0  # root is an operator always
    done = desk.malletrain("drain", "n[001-002]", "--until", "2100-01-01T00:00")
    assert (done.err, done.status) == ("", 0)
    assert api.requests.asked[-1][:3] == ("drain", "n[001-002]", 4102444800.0)
    assert says(done.out, "2 nodes", "until 2100-01-01 00:00:00")
    assert desk.malletrain("drain", "--all", "--until=now").out == "drain ended\n"
    assert api.requests.asked[-1][1] == ""


def test_drain_of_bad_input(desk: Desk) -> None:
    refused(desk.malletrain("drain", "--all"), 2, "--until: 2026-12-01T08:00")
    refused(desk.malletrain("drain", "--until=now"), 2, "give either NODES or --all")
    refused(desk.malletrain("drain", "n1", "--until=soon"), 2, "--until: 'soon'", "2026-12-01T08:00")
    refused(desk.malletrain("drain", "n1"), 2, "give --until")


def test_drains_are_listed(desk: Desk) -> None:
    assert desk.malletrain("drain").out.splitlines() == [
        "until 2033-05-18 03:33:20  2 nodes: n001, n002",
        "until 2065-01-24 05:20:00  1 nodes: n007",
    ]
    assert json.loads(desk.malletrain("drain", "--json").out)[0] == {"node": "n001", "until": 2e9}


def test_explanations_are_in_the_readers_zone(desk: Desk, api: House) -> None:
    line = "  2026-11-23T16:00:00Z pilot 9_0 left n1"
    shown = render.local_times(line, timezone(timedelta(hours=2)))
    assert shown == "  2026-11-23 18:00:00 pilot 9_0 left n1"


def test_stop_works_without_any_daemon(bare_desk: Desk) -> None:
    done = bare_desk.malletrain("stop", "--all", "--now", "-p", "harvest", "-A", "ml")
    assert (done.err, done.status) == ("", 0)
    assert bare_desk.calls("scancel") == ["--partition=harvest --account=ml"]
    assert says(done.out, "cancelled", "partition harvest, account ml")


def test_stop_knows_the_partition_from_the_clients_file(bare_desk: Desk) -> None:
    file = bare_desk.folder / "home/.config/malletrain/client.toml"
    file.parent.mkdir(parents=True)
    file.write_text('partition = "spare"\naccount = "ml"\n')
    done = bare_desk.malletrain("stop", "--all", "--now", "--dry-run")
    assert done.out == "scancel --partition=spare --account=ml\n"
    assert bare_desk.calls("scancel") == []


def test_stop_wants_to_be_sure(bare_desk: Desk) -> None:
    refused(bare_desk.malletrain("stop", "--all"), 2, "confirm with --all --now")
    refused(bare_desk.malletrain("stop", "--all", "--now"), 2, "--partition")
    bare_desk.fake("scancel", "echo 'scancel: error: Kill job error on job id 7: Access denied' >&2; exit 1\n")
    refused(bare_desk.malletrain("stop", "--all", "--now", "-p", "h"), 1, "Access denied")


def test_top_without_a_terminal_draws_the_picture_once(desk: Desk, job: int) -> None:
    done = desk.malletrain("top", "--once")
    assert (done.err, done.status) == ("", 0)
    assert "digits" in done.out
    assert "job_announced" in done.out
    assert "\x1b" not in done.out


def test_without_a_daemon_each_says_what_to_do(bare_desk: Desk, api: House) -> None:
    for argv in (["status"], ["events"], ["top", "--once"], ["cancel", "1"], ["report"]):
        refused(bare_desk.malletrain(*argv), 2, "MALLETRAIN_URL")
    bare_desk.environ |= {"MALLETRAIN_URL": api.address, "MUNGE_SOCKET": str(bare_desk.folder / "gone")}
    refused(bare_desk.malletrain("status"), 2, "munged")


def test_the_reader_may_go_early(desk: Desk, api: House) -> None:
    import shlex
    import subprocess
    import sys

    api.journal.append([event_of(float(n), "pool", data={"idle": n}) for n in range(2500)])
    program = f"{shlex.quote(sys.executable)} -c 'import malletrain.cli.main as m; m.main()' events"
    environ = {**desk.environ, "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {program} | head -1"],
        capture_output=True, text=True, env=environ, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


# --- the list of commands --------------------------------------------------------------------------------------


def installed() -> list[str]:
    return cli.list_commands(click.Context(cli))


def loaded(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", installed())
def test_every_command_has_help_with_an_example_and_a_chapter_in_the_reference(name: str) -> None:
    command = loaded(name)
    context = click.Context(command, info_name=name, parent=click.Context(cli, info_name="malletrain"))
    text = command.get_help(context)
    example = re.search(r"\bExamples?:(.*)", text, re.DOTALL)
    assert example, f"malletrain {name} --help shows no example"
    assert f"malletrain {name}" in example[1]
    chapter = REFERENCE.read_text().partition(f"\n## malletrain {name}\n")[2].partition("\n## ")[0]
    assert chapter.strip(), f"docs/reference/commands.md has no chapter on malletrain {name}"
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert f"`{parameter.opts[0]}" in chapter, f"malletrain {name} {parameter.opts[0]} is not documented"


def test_help_shows_defaults(bare_desk: Desk) -> None:
    assert "[default: harvest]" in bare_desk.malletrain("setup", "--help").out


@pytest.mark.parametrize("program", ["mtbatch", "malletraind"])
def test_the_other_programs_are_in_the_reference_with_all_options(program: str) -> None:
    from malletrain.daemon.main import command
    from malletrain.slurm.submission.mtbatch_options import ALLOWED, Use

    options = (
        [f"--{option.name}" for option in ALLOWED.values() if option.use is not Use.GIVEN]
        if program == "mtbatch"
        else [parameter.opts[0] for parameter in command.params]
    )
    chapter = REFERENCE.read_text().partition(f"\n## {program}\n")[2].partition("\n## ")[0]
    assert [name for name in options if f"`{name}" not in chapter] in ([], ["--help", "--version"], ["--version"])


def test_the_list_says_of_each_command_what_its_help_says(bare_desk: Desk) -> None:
    done = bare_desk.malletrain("--help")
    assert done.status == 0
    for name in installed():
        assert re.search(rf"^  {name} +\S", done.out, re.MULTILINE)


def test_a_command_that_is_nearly_right_is_named(bare_desk: Desk) -> None:
    refused(bare_desk.malletrain("stauts"), 2, "'stauts'", "status?")
    refused(bare_desk.malletrain("zork"), 2, "no command 'zork'; see malletrain --help")
    refused(bare_desk.malletrain("status", "x"), 2, "'x'", "integer")
    refused(bare_desk.malletrain("status", "--zork"), 2, "No such option")
    refused(bare_desk.malletrain("replay", "--procs-per-node=4"), 2, "set procs_per_node in [replay]")
    for gone, instead in GONE_OPTIONS.items():
        refused(bare_desk.malletrain(*gone.split()), 2, f"{gone} is gone: {instead}")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(click.UsageError, match=r"status .* numpy: pip install '\./malletrain-\S+\.whl\[daemon\]'"):
        LazyGroup(name="x").get_command(click.Context(cli), "status")


def test_status_imports_nothing_that_the_base_wheel_lacks(bare_desk: Desk) -> None:
    import subprocess
    import sys

    heavy = "numpy scipy pydantic sqlalchemy fastapi uvicorn highspy pulp torch structlog rich apscheduler"
    code = (
        f"import sys\nclass Wall:\n  def find_spec(self, name, *_):\n"
        f"    if name.partition('.')[0] in {heavy.split()!r}: raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Wall())\n"
        "import malletrain.cli.jobs, malletrain.cli.admin.operators, malletrain.cli.top, malletrain.cli.mtbatch\n"
        "import malletrain.cli.main as m\n"
        "m.main(['--help'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, cwd=Path.cwd()
    )
    assert (done.stderr, done.returncode) == ("", 0)


def test_all_commands_are_summed_up() -> None:
    for name, entry in COMMANDS.items():
        assert entry.summary.endswith("."), name
        assert len(entry.summary) < 70, name


@given(st.text())
def test_an_error_is_one_line(text: str) -> None:
    assert "\n" not in one_line(text)


def test_profile(desk: Desk, job: int) -> None:
    text = desk.malletrain("profile", str(job)).out
    assert "     2        190.0            180.0 to 200.0  3" in text and "estimated" in text
    assert says(text, "left out: 1 samples") and text.endswith("next 4 nodes\n")
    assert json.loads(desk.malletrain("profile", str(job), "--json").out)["sizes"][0]["nodes"] == 2
    bars = [line.rsplit(maxsplit=1)[-1] for line in text.splitlines() if "to" in line and line[5].isdigit()]
    assert bars[0].startswith("#") and bars[-1].startswith("=")
    refused(desk.malletrain("profile", "99"), 1, "job 99")
