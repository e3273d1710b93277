"""`malletrain replay` as a program, from a log to figures and a report that a real browser opens."""

from __future__ import annotations

import base64
import csv
import gzip
import html
import importlib.util
import json
import math
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from malletrain import __version__
from malletrain.cli.replay import replay as command
from malletrain.replay.loop_engine import replay_through_loop
from malletrain.replay.scoring.journal_score import score_journal
from malletrain.replay.traces.trace import BUSY, IDLE
from malletrain.sizing.registry import policy
from malletrain.store.journal import SqliteJournal
from tests import forked_program
from tests.browser import Browser, chromium, is_there
from tests.messages import says
from tests.replay import small
from tests.replay_keys import keyed

EVENTS = ["time,node,state"] + [f"2021-02-10T00:00:00,n{n:02d},busy" for n in range(12)]
EVENTS += [
    f"2021-02-10T{h:02d}:{m:02d}:{n:02d},n{n:02d},{'idle' if (h + m // 10 + n) % 3 else 'busy'}"
    for h in range(4) for m in range(0, 60, 10) for n in range(12)
]  # fmt: skip
EVENTS.append("rubbish")


def malletrain(*args: str, stdin: bytes = b"") -> forked_program.Ended:
    """`malletrain ARGS`; `key=value` among them is a setting of the replay. In one process, unless they say how many:
    each further one is an interpreter that begins anew."""
    if args[0] == "replay" and not any(each.startswith(("--config", "processes=")) for each in args):
        args = (*args, "processes=1")
    with tempfile.TemporaryDirectory() as folder:
        return forked_program.run("malletrain.cli.main", keyed(Path(folder), args), stdin=stdin)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "events.csv.gz"
    path.write_bytes(gzip.compress("\n".join(EVENTS).encode()))
    return path


def test_json_has_all_that_the_contract_names(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "answer.json"
    done = malletrain("replay", str(log), "--policy", "auto,equal,bftrainer:120", "--mix", "imagenet:5,hpo:1",
                      "--rescale", "18,12", "--activate", "2", "--json", str(out))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("In 3.8 hours ")
    assert says(done.stdout, "skipped lines", 1)
    answer = json.loads(out.read_text())
    assert answer["trace"]["nodes"] == 12
    assert answer["trace"]["skipped"] == {"too few fields": 1}
    assert list(answer["policies"]) == ["auto", "equal", "bftrainer:120"]
    for figures in answer["policies"].values():
        assert {
            "idle_node_seconds", "occupied_node_seconds", "productive_node_seconds", "speedup_node_seconds",
            "ideal_speedup_node_seconds", "share_of_ideal", "samples", "jobs_completed", "mean_jct_s", "rescales",
            "activations", "preemptions", "solve_s", "wall_s",
        } <= set(figures)  # fmt: skip
        assert set(figures["solve_s"]) == {"median", "p99", "max"}
        assert 0 < figures["share_of_ideal"] <= 1
        assert figures["productive_node_seconds"] < figures["occupied_node_seconds"] <= figures["idle_node_seconds"]
    assert answer["policies"]["auto"]["share_of_ideal"] > answer["policies"]["equal"]["share_of_ideal"]


def test_the_same_call_gives_the_same_figures_in_one_process_or_more(log: Path) -> None:
    def figures(*more: str) -> Any:
        done = malletrain(
            "replay", str(log), "--mix", "nas:5", "--policy", "auto,equal", "seed=7", "--json", "-", *more
        )
        answer = json.loads(done.stdout)
        for each in answer["policies"].values():
            del each["solve_s"], each["wall_s"]
        return answer

    assert figures("processes=1") == figures("processes=2")


def test_standard_input_and_a_window(log: Path) -> None:
    done = malletrain("replay", "-", "--start", "+1h", "--end", "2021-02-10T02:00", "--nodes", "2:8", "--json", "-",
                      stdin=log.read_bytes())  # fmt: skip
    trace = json.loads(done.stdout)["trace"]
    assert (trace["end"] - trace["start"], trace["nodes"]) == (3600.0, 6)


def test_how_prints_commands_without_a_log() -> None:
    done = malletrain("replay", "--how")
    assert done.returncode == 0
    assert "sacct --allusers" in done.stdout
    assert "sacctmgr" in done.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["/nowhere"], "/nowhere: "),
        ([], "TRACE is missing"),
        (["LOG", "--policy", "best"], "'best'"),
        (["LOG", "--policy", "auto,auto"], "each policy once"),
        (["LOG", "--policy", "auto:-3"], "horizon"),
        (["LOG", "--mix", "imagenet:x"], "--mix"),
        (["LOG", "--mix", "imagenet:1", "--jobs", "x.csv"], "not both"),
        (["LOG", "--rescale", "18"], "--rescale"),
        (["LOG", "--nodes", "13"], "12 nodes"),
        (["LOG", "--nodes", "8:2"], "--nodes"),
        (["LOG", "--start", "noon"], "--start"),
        (["LOG", "--start", "+9d"], "empty"),
        (["LOG", "timezone=Mars/Olympus"], "replay.timezone"),
        (["LOG", "--json", "/nowhere/x.json"], "/nowhere/x.json"),
        (["LOG", 'node_class=["a=0:4"]', "processes=2"], "two classes at least"),  # found by a process of the pool
    ],
)
def test_faults_are_one_line_and_status_2(log: Path, args: list[str], said: str) -> None:
    done = malletrain("replay", *(str(log) if arg == "LOG" else arg for arg in args))
    assert done.returncode == 2
    assert said in done.stderr
    assert len([line for line in done.stderr.splitlines() if not line.startswith("warning: ")]) == 1
    assert done.stdout == ""


def test_a_report_is_refused_before_the_replay_where_no_page_can_be_made(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = CliRunner().invoke(command, [str(log), "--report", "r"])
    assert says(done.exception, "--report: jinja2", "pip install")


def test_at_most_twenty_options() -> None:
    assert len(command.params) - 1 <= 20, "what a replay is told beyond that goes under [replay]"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("tik = 3", " replay.tik "),
        ("processes = 0", "2: replay.processes: "),
        ("processes = [1]", "2: replay.processes: "),
        ("seed = 2.5", "2: replay.seed: "),
        ("ideal = 'yes'", "2: replay.ideal: "),
        ("budget = '500/week'", "2: replay.budget: "),
        ("engine = 'slow'", "2: replay.engine: "),
    ],
)
def test_a_fault_of_a_setting_names_file_line_and_key(log: Path, tmp_path: Path, table: str, said: str) -> None:
    (tmp_path / "replay.toml").write_text(f"[replay]\n{table}\n")
    done = malletrain("replay", str(log), "--config", str(tmp_path / "replay.toml"))
    assert done.returncode == 2
    assert f"replay.toml:{said}" in done.stderr


# -- the report, in a real browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if not is_there():
        pytest.skip("needs Debian's chromium and chromium-driver")
    with chromium(tmp_path_factory.mktemp("chromium")) as made:
        yield made


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    log = folder / "<b>events"
    log.write_text("\n".join(EVENTS).replace("n03", "<script>alert(1)</script>"))
    done = malletrain(
        "replay", str(log), "--policy", "auto,equal", "--mix", "hpo:2,imagenet:3", "--report", str(folder / "r"),
        "timezone=Europe/Oslo", "seed=7",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "r"


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 900)])
def test_the_report_opens_without_network_at_two_widths(
    browser: Browser, report: Path, width: int, height: int
) -> None:
    browser.resize(width, height)
    browser.open((report / "index.html").as_uri())
    assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
    assert re.match(
        r"In 3\.8 hours .* dedicated nodes", browser.run("return document.getElementById('answer').innerText")
    )
    assert browser.run("return document.querySelectorAll('#policies tbody tr').length") == 2
    plots = set(browser.run("return [...document.querySelectorAll('figure [id^=plot-]')].map(p => p.id)"))
    assert {"plot-timeline", "plot-holes", "plot-nodes"} <= plots
    assert (
        browser.run("return performance.getEntriesByType('resource').filter(e => !e.name.startsWith('data:')).length")
        == 0
    )
    assert not browser.complaints()
    # A name out of the log is text, never markup.
    assert browser.run("return document.body.innerHTML.includes('<script>alert(1)')") is False


def test_the_report_prints_on_two_pages(browser: Browser, report: Path) -> None:
    browser.open((report / "index.html").as_uri())
    for form in ({"pageWidth": 21.0, "pageHeight": 29.7}, {"pageWidth": 21.59, "pageHeight": 27.94}):
        page = {"page": {"width": form["pageWidth"], "height": form["pageHeight"]}, "background": True}
        pdf = base64.b64decode(browser.call("POST", "/print", page))
        assert pdf.startswith(b"%PDF")
        assert len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 2
    assert "Method and limits" in browser.run("return document.body.innerText")


def test_the_report_needs_no_script_and_tells_those_who_do_not_see_it(report: Path) -> None:
    page = (report / "index.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert all('aria-label="' in tag or 'aria-hidden="true"' in tag for tag in re.findall(r"<svg[^>]*>", page))
    assert all(re.search(r'alt="[^"]{20,}"', tag) for tag in re.findall(r"<img[^>]*>", page))
    assert all("scope=" in tag for tag in re.findall(r"<th\b[^>]*>", page))
    tables = len(re.findall(r"<table\b", page))
    assert len(re.findall(r"<caption>", page)) >= tables - 1, "all but the facts, which have a heading"
    assert len(page) < 200_000


def test_the_report_says_what_it_is_worth_and_how_it_was_made(report: Path) -> None:
    page = (report / "index.html").read_text(encoding="utf-8")
    key = re.search(r'id="key">(.*?)</div>', page, re.DOTALL)
    assert key is not None
    assert "node-hours" in key[1]
    answer = json.loads((report / "answer.json").read_text())
    made = answer["made"]
    assert made["seed"] == "7"
    assert made["training jobs"] == "mix hpo:2,imagenet:3"
    assert made["command"].startswith("malletrain replay ")
    assert "--config" in made["command"]
    assert made["version"] == __version__
    assert made["counted in"].startswith("nodes, by")
    best = max(answer["policies"].values(), key=lambda row: row["speedup_node_seconds"])
    with (report / "months.csv").open() as file:
        (month,) = csv.DictReader(file)
    assert month["month"] == "2021-02"
    assert float(month["idle_node_hours"]) * 3600 == pytest.approx(best["idle_node_seconds"])
    assert float(month["held_node_hours"]) * 3600 == pytest.approx(best["occupied_node_seconds"])
    assert float(month["worth_node_hours"]) * 3600 == pytest.approx(best["speedup_node_seconds"])
    with (report / "week.csv").open() as file:
        week = {row.pop("weekday"): [float(cell) for cell in row.values()] for row in csv.DictReader(file)}
    known = [(day, hour) for day, cells in week.items() for hour, cell in enumerate(cells) if not math.isnan(cell)]
    assert {day for day, _ in known} == {"Wed"}
    assert [hour for _, hour in known] == list(range(known[0][1], known[0][1] + len(known)))


def test_each_figure_is_traceable_to_a_csv_row(report: Path) -> None:
    def rows(name: str) -> list[dict[str, str]]:
        with (report / name).open() as file:
            return list(csv.DictReader(file))

    policies = json.loads((report / "answer.json").read_text())["policies"]
    for name, row in policies.items():
        assert sum(row["waterfall"].values()) == pytest.approx(row["idle_node_seconds"], rel=1e-9)
        used = sum(float(line[f"used_{name}"]) for line in rows("holes.csv"))
        assert used * 3600 == pytest.approx(row["occupied_node_seconds"], rel=1e-6)
        by_job = sum(float(line["node_hours"]) for line in rows("jobs.csv") if line["policy"] == name)
        assert by_job * 3600 == pytest.approx(row["occupied_node_seconds"], rel=1e-6)
        delay = row["main_delay"]
        assert 0 < delay["starts_on_pilots"] <= delay["starts"]
        page = (report / "index.html").read_text(encoding="utf-8")
        assert f"<td>{delay['starts']:,}</td>" in page.partition('id="main-delay"')[2]
    times = rows("timeline.csv")
    span = float(times[1]["time"]) - float(times[0]["time"])
    assert sum(float(t["idle"]) for t in times) * span == pytest.approx(
        policies["auto"]["idle_node_seconds"], rel=1e-6
    )
    best = max(policies, key=lambda name: policies[name]["speedup_node_seconds"])
    with gzip.open(report / "pilots.csv.gz", "rt") as file:
        pilots = [float(row["seconds"]) for row in csv.DictReader(file)]
    assert sum(pilots) == pytest.approx(policies[best]["occupied_node_seconds"], abs=len(pilots))


def numbers(text: str) -> list[tuple[float, float]]:
    """The numbers in a text, each with half a unit of its last digit; percentages as shares. Dates are left out."""
    found = []
    for digits, percent in re.findall(
        r"(?<![\w.-])(\d[\d,]*(?:\.\d+)?)(%?)", re.sub(r"\d{4}-\d\d-\d\d [\d:]+", "", text)
    ):
        unit = 10.0 ** -len(digits.partition(".")[2]) / (100 if percent else 1)
        found.append((float(digits.replace(",", "")) / (100 if percent else 1), unit / 2))
    return found


def test_every_number_of_the_page_follows_from_its_json(report: Path) -> None:
    text = (report / "answer.json").read_text()
    answer = json.loads(text)
    known = {value for value, _ in numbers(text)}
    lasts = answer["trace"]["end"] - answer["trace"]["start"]
    known |= {lasts / unit for unit in (86_400, 3600, 60, 1)}
    for row in answer["policies"].values():
        seconds = [row[key] for key in row if key.endswith("_seconds")]
        known.update(each / by for each in seconds for by in (3600, row["idle_node_seconds"], lasts))
        known |= {row["share_of_ideal"], row["main_delay"]["mean_s"], 1e3 * row["solve_s"]["median"]}
        known |= {row[key] / 3600 for key in ("mean_wait_s", "mean_jct_s") if row[key]} | {row["samples"] / 1e6}
    page = (report / "index.html").read_text(encoding="utf-8")
    parts = {
        "answer": r'id="answer">(.*?)</p>', "key": r'id="key">(.*?)</div>', "policies": r'id="policies">(.*?)</div>',
        "method": r'id="method">(.*?)</p>', "delay": r'id="main-delay">(.*?)<h2>',
        "log": r'class="facts">(.*?)</table>',
    }  # fmt: skip
    for name, pattern in parts.items():
        match = re.search(pattern, page, re.DOTALL)
        assert match is not None, name
        told = numbers(html.unescape(re.sub(r"<[^>]*>", " ", match[1])))
        assert told, name
        for value, half in told:
            assert any(abs(value - each) <= half * (1 + 1e-6) for each in known), (name, value)


@pytest.mark.data
def test_summit_day_one_by_the_known_figures(data_dir: Path) -> None:
    """1,024 nodes of Summit over 4 days, 10 endless jobs, 18/12 s: order and size of what is known of each rule."""
    log = str(data_dir / "bftrainer" / "summit_node_events.csv.gz")
    done = malletrain("replay", log, "--nodes", "1024", "--start", "+1d", "--end", "+5d", "--mix", "imagenet:10",
                      "--rescale", "18,12", "--activate", "0", "--policy", "equal,bftrainer,bftrainer:120,auto",
                      "ideal=true", "--json", "-")  # fmt: skip
    share = {name: each["share_of_ideal"] for name, each in json.loads(done.stdout)["policies"].items()}
    assert share == pytest.approx(
        {"equal": 0.856, "bftrainer": 0.940, "bftrainer:120": 0.971, "auto": 0.974}, abs=0.004
    )


def test_the_daemons_own_loop_answers(tmp_path: Path) -> None:
    log = tmp_path / "events.csv"
    rows = [f"{60 * t + n},n{n},{'idle' if (t + n) % 3 else 'busy'}" for t in range(30) for n in range(4)]
    log.write_text("\n".join(["time,node,state", *rows]) + "\n")
    answers = {}
    for engine in ("fast", "loop"):
        done = malletrain("replay", str(log), "--mix", "imagenet:2", f"engine={engine}", "pool.keep_idle=0",
                          "--json", "-")  # fmt: skip
        assert done.returncode == 0, done.stderr
        answers[engine] = json.loads(done.stdout)["policies"]["auto"]
    assert answers["loop"]["samples"] == pytest.approx(answers["fast"]["samples"], rel=0.05)
    refused = malletrain("replay", str(log), "engine=loop", "--report", str(tmp_path / "report"))
    assert refused.returncode == 2
    assert "--report" in refused.stderr


def test_the_daemon_of_a_configuration_is_replayed(log: Path, tmp_path: Path) -> None:
    config = tmp_path / "malletrain.toml"
    config.write_text("[pool]\nmax_pilots = 3\nkeep_idle = 0\n[pilot]\nmax_nodes = 1\n[loop]\ntick_s = 30\n")

    def figures(*more: str) -> Any:
        done = malletrain("replay", str(log), "--mix", "imagenet:5", "--json", "-", *more)
        assert done.returncode == 0, done.stderr
        return done, json.loads(done.stdout)["policies"]

    done, capped = figures("--config", str(config), "--policy", "auto,ideal-machine")
    assert capped["auto"]["occupied_node_seconds"] < 0.5 * capped["ideal-machine"]["occupied_node_seconds"]
    assert capped["auto"]["beyond_cap_node_seconds"] > 0
    assert "pool.max_pilots = 3" in done.stderr
    _, ideal = figures("ideal=true")
    assert ideal["auto"]["samples"] == pytest.approx(capped["ideal-machine"]["samples"])
    config.write_text(config.read_text().replace("max_pilots = 3", "max_pilots = 12"))
    _, wider = figures("--config", str(config))
    assert wider["auto"]["samples"] > capped["auto"]["samples"]
    refused = malletrain("replay", str(log), "ideal=true", "--config", str(config))
    assert refused.returncode == 2


def test_a_daemons_journal_is_scored(tmp_path: Path) -> None:
    machine = small.trace([(0.0, 0, IDLE), (50.0, 1, IDLE), (120.0, 0, BUSY)], 3, 600.0)
    events = replay_through_loop(machine, [small.job()], policy("exact"))
    with SqliteJournal(tmp_path / "malletrain.db") as journal:
        journal.append(events)
    done = malletrain("score", str(tmp_path / "malletrain.db"), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == score_journal(events).as_json()
    assert "productive" in malletrain("score", str(tmp_path / "malletrain.db")).stdout
    missing = malletrain("score", str(tmp_path / "none.db"))
    assert missing.returncode == 2
    assert "store.path" in missing.stderr
