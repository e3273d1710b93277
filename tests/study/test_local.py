"""Studies for real, in processes of this machine."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from malletrain.study import storage
from tests.messages import says
from tests.study.tiny import HEAD, OBJECTIVE, call, command, ended, environment, rows, write


def trainings(folder: Path) -> list[psutil.Process]:
    """Processes that train for a study in this folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "malletrain.study.trial_main" in words and words[-1].startswith(str(folder)):
            found.append(process)
    return found


def test_a_study_ends_with_exactly_so_many_trials_and_shows_them(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD, OBJECTIVE)
    done = call("run", path, "--trials", "3", "--local")
    assert done.returncode == 0, done.stderr
    assert ended(path) == {"completed": 3}
    listed = json.loads(call("trials", path, "--json").stdout)
    assert len({row["params"]["x"] for row in listed}) == 3
    assert all(row["values"] == [pytest.approx(2 * row["params"]["x"])] for row in listed)
    best = json.loads(call("status", path, "--json").stdout)["best"]
    assert best[0]["values"] == [max(row["values"][0] for row in listed)]
    status = call("status", path)
    assert status.stdout.startswith("study small: 3 completed")

    # Once more is nothing more; one more is one more.
    assert call("run", path, "--trials", "3", "--local").returncode == 0
    assert ended(path) == {"completed": 3}
    assert call("run", path, "--trials", "4", "--local", "--concurrent", "1").returncode == 0
    assert ended(path) == {"completed": 4}
    assert len({row["params"]["x"] for row in rows(path)}) == 4, "a seeded sampler does not begin again"
    assert trainings(tmp_path) == []


def test_a_pruned_trial_ends_at_once(tmp_path: Path) -> None:
    objective = """
pruner = optuna.pruners.ThresholdPruner(lower=0.5)

def objective(trial):
    x = trial.suggest_categorical("x", [0.0, 1.0])
    return study.train(trial, fit, {"x": x, "epochs": 4, "pause": 30.0 * (x == 0.0)}, watch="value")["value"]
"""
    # The bad ones would take two minutes.
    path = write(tmp_path, HEAD, "sampler = optuna.samplers.GridSampler({'x': [0.0, 1.0]})\n", objective)
    path.write_text(
        path.read_text()
        .replace("        time.sleep(pause)\n", "")
        .replace("s.report(value=x * (epoch + 1))\n", "s.report(value=x * (epoch + 1))\n        time.sleep(pause)\n")
    )
    done = call("run", path, "--local", "--concurrent", "1")
    assert done.returncode == 0, done.stderr
    assert ended(path) == {"completed": 1, "pruned": 1}
    assert "pruned: at step" in done.stderr
    trials = storage.load(str(path.with_suffix(".journal")), "small").get_trials()
    assert sorted(len(trial.intermediate_values) for trial in trials) == [1, 4]
    assert trainings(tmp_path) == []


BROKEN = """
def objective(trial):
    n = trial.number
    if n == 0:
        raise RuntimeError("mine")
    if n == 1:
        return float("nan")
    if n == 2:
        return "high"
    if n == 3:
        return study.train(trial, missing, {})["value"]
    x = trial.suggest_float("x", 0.0, 1.0)
    return study.train(trial, fit, {"x": x}, watch="other")["value"]


def missing():
    import there_is_no_such_module
"""


def test_what_is_wrong_is_said_at_once_and_the_study_goes_on(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD, BROKEN)
    done = call("run", path, "--trials", "2", "--local", "--concurrent", "1")
    assert done.returncode == 0, done.stderr
    assert "trial 0 user error: RuntimeError: mine" in done.stderr
    assert says(done.stderr, "trial 1 user error:", "nan")
    assert says(done.stderr, "trial 2 user error:", "'high'")
    assert "trial 3 user error: ModuleNotFoundError: No module named 'there_is_no_such_module'" in done.stderr
    assert "trial 4 never reported 'other'" in done.stderr
    assert ended(path) == {"user_error": 4, "completed": 2}
    faulty = rows(path)
    assert 'raise RuntimeError("mine")' in faulty[0]["traceback"]
    assert "import there_is_no_such_module" in faulty[3]["traceback"]
    assert all(row["repeats"] is None for row in faulty), "a fault of one's own is not tried again"


def test_memory_time_and_a_kill_are_told_apart(tmp_path: Path) -> None:
    objective = """
def objective(trial):
    what = ["memory", "time", "killed", "fine"][min(trial.number, 3)]
    return study.train(trial, end, {"what": what}, timeout_s=2.0 if what == "time" else None)["value"]


def end(what):
    if what == "memory":
        import torch
        torch.ones(1 << 46)
    if what == "time":
        time.sleep(60)
    if what == "killed":
        import signal
        os.kill(os.getpid(), signal.SIGKILL)
    fit(1.0)
"""
    path = write(tmp_path, HEAD, objective)
    done = call("run", path, "--trials", "1", "--local", "--concurrent", "1")
    assert done.returncode == 0, done.stderr
    by_number = [row["ended_as"] for row in rows(path)]
    assert by_number == ["out_of_memory", "timed_out", "node_failed", "completed"]
    assert rows(path)[3]["repeats"] == 2, "what infrastructure spoilt is tried again"
    assert trainings(tmp_path) == []


def test_a_study_that_always_fails_stops(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD, "def objective(trial):\n    return study.train(trial, 'gone.py')\n")
    done = call("run", path, "--trials", "100", "--local")
    assert done.returncode == 1
    assert says(done.stderr, "5 trials", f"train: there is no script {path.parent / 'gone.py'}")
    assert set(ended(path)) <= {"user_error", "waiting", "interrupted"}


@pytest.mark.nightly
def test_killed_at_any_moment_it_goes_on(tmp_path: Path) -> None:
    """SIGKILL again and again: exactly so many trials in the end, no parameters tried to the end twice, none left."""
    objective = OBJECTIVE.replace('{"x": x}', '{"x": x, "pause": 0.2}')
    path = write(tmp_path, HEAD, objective)
    moments = random.Random(8)
    wanted = 5
    for _kill in range(4):
        process = subprocess.Popen(
            command("run", path, "--trials", str(wanted), "--local", "--concurrent", "2"),
            env=environment(), cwd=tmp_path, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            process.wait(moments.uniform(1.5, 6.0))
            break
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        end = time.monotonic() + 60
        while trainings(tmp_path):
            assert time.monotonic() < end, "trainings outlive their study"
            time.sleep(0.05)
    done = call("run", path, "--trials", str(wanted), "--local", "--concurrent", "2")
    assert done.returncode == 0, done.stderr
    counted = ended(path)
    assert counted["completed"] == wanted
    assert set(counted) <= {"completed", "interrupted", "waiting"}
    completed = [row["params"]["x"] for row in rows(path) if row["ended_as"] == "completed"]
    assert len(set(completed)) == wanted
    repeats = [row["repeats"] for row in rows(path) if row["repeats"] is not None]
    assert len(set(repeats)) == len(repeats), "nothing is queued twice"


def test_ctrl_c_ends_in_order_and_leaves_nothing_running(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD, OBJECTIVE.replace('{"x": x}', '{"x": x, "epochs": 1000, "pause": 0.1}'))
    process = subprocess.Popen(
        command("run", path, "--trials", "2", "--local", "--concurrent", "1"),
        env=environment(), cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    end = time.monotonic() + 120
    while not trainings(tmp_path):
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "0 of 2 trials" in said
    assert ended(path) == {"interrupted": 1, "waiting": 1}
    assert trainings(tmp_path) == []


def test_two_runs_of_one_study_do_not_mix(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD, "def objective(trial):\n    time.sleep(600)\n    return 0.0\n")
    first = subprocess.Popen(
        command("run", path, "--trials", "1", "--local"), env=environment(), cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    try:
        lock = tmp_path / "small.trials" / "lock"
        end = time.monotonic() + 120
        while not (lock.exists() and lock.read_text()):
            assert time.monotonic() < end
            time.sleep(0.05)
        second = call("run", path, "--trials", "1", "--local")
        assert second.returncode == 1
        assert says(second.stderr, first.pid, os.uname().nodename)
    finally:
        first.kill()
        first.wait()


def test_a_script_gets_its_parameters_as_options_and_plain_optuna_will_do(tmp_path: Path) -> None:
    script = (
        HEAD
        + "import argparse\np = argparse.ArgumentParser()\np.add_argument('--x', type=float)\nfit(p.parse_args().x)\n"
    )
    write(tmp_path, script, name="train")
    write(tmp_path, "from malletrain import study\ndef objective(trial):\n"
          "    return study.train(trial, 'train.py', {'x': trial.suggest_float('x', 0, 1)})['value']\n")  # fmt: skip
    program = (
        "import optuna, small\nresult = optuna.create_study(direction='maximize')\n"
        "result.optimize(small.objective, n_trials=1)\nprint(result.best_value == 2 * result.best_params['x'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300,
        env=environment() | {"TMPDIR": str(tmp_path)}, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.stdout == "True\n", done.stderr


def test_another_file_will_do_and_hours_end_a_study(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD, "def objective(trial):\n    time.sleep(0.3)\n    return trial.number\n")
    url = str(tmp_path / "other.journal")
    done = call("run", path, "--trials", "3", "--local", "--storage", url)
    assert done.returncode == 0, done.stderr
    timed = call("run", path, "--hours", str(10 / 3600), "--local", "--storage", url)
    assert timed.returncode == 0, timed.stderr
    status = json.loads(call("status", path, "--storage", url, "--json").stdout)
    assert status["trials"]["completed"] > 3
    assert "running" not in status["trials"]
    assert not path.with_suffix(".journal").exists()
