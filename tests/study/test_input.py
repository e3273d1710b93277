"""Wrong input is said in one line, and nothing is begun; pure parts by themselves."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from pathlib import Path

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.errors import InvalidInput, MalletrainError
from malletrain.study import cluster_runs, definition, ports, storage, trial_records
from malletrain.study import trial_main as study_call
from malletrain.study.cluster_runs import JobOutcome
from malletrain.study.ports import Ending, Figure, StudyError, TrialEnd
from malletrain.study.trial_spec import TrialSpec, fault_file, node_range
from malletrain.wire.daemon import connect
from malletrain.wire.http import DaemonUnavailable
from malletrain.wire.munge import MungeError
from malletrain.wire.rows import EventRow
from scripts.lab.ports import free_port
from tests.messages import naming, says
from tests.study.tiny import HEAD, OBJECTIVE, call, write

# --- study files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "add `def objective(trial)"),
        ("def objective():\n    pass\n", "argument"),
        ("def objective(trial):\n    pass\n", 'direction = "maximize"'),
        ("direction = 'up'\ndef objective(trial):\n    pass\n", 'must be "minimize" or "maximize"'),
        ("direction = directions = 'maximize'\ndef objective(trial):\n    pass\n", "keep one"),
        ("direction = 'minimize'\nsampler = 'tpe'\ndef objective(trial):\n    pass\n", "optuna.samplers"),
        ("direction = 'minimize'\nnodes = '8-1'\ndef objective(trial):\n    pass\n", "MIN 8 is above MAX 1"),
        ("def objective(trial:\n", "bad.py:1: SyntaxError"),
        ("\nimport there_is_no_such_module\n", "bad.py:2: ModuleNotFoundError"),
        ("\n\nraise SystemExit(3)\n", "bad.py:3: SystemExit: 3"),
    ],
)
def test_a_study_file_with_a_fault_names_its_place(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text, name="bad")
    with pytest.raises(InvalidInput) as refused:
        definition.load(path)
    assert said in str(refused.value)


def test_the_command_says_it_in_one_line_and_begins_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD, OBJECTIVE)
    (tmp_path / "other.txt").write_text("no journal\n")
    for options, said in (
        ((), "give --trials N, --hours H, or both"),
        (("--trials", "2", "--concurrent", "many"), "'many' is neither auto nor a number of trials above 0"),
        (("--trials", "2", "--local", "--storage", "other.txt"), "other.txt is no journal of Optuna's"),
        (("--trials", "2", "--local", "--storage", "zork://me:secret@host/db"), "--storage: zork://host/db: "),
    ):
        done = call("run", path, *options)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert said in done.stderr
        assert "secret" not in done.stderr
    assert (tmp_path / "other.txt").read_text() == "no journal\n"
    gone = call("status", path)
    assert (gone.returncode, "`malletrain study run`" in gone.stderr) == (2, True)
    missing = call("run", tmp_path / "gone.py", "--trials", "1")
    assert (missing.returncode, "gone.py: " in missing.stderr) == (2, True)


def test_without_a_daemon_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLETRAIN_URL", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    path = write(tmp_path, HEAD, OBJECTIVE)
    done = call("run", path, "--trials", "1")
    if "no daemon is known" not in done.stderr:
        pytest.skip("this machine has a client.toml")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert not path.with_suffix(".journal").exists()


def test_a_study_does_not_change_its_direction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = write(tmp_path, "direction = 'maximize'\ndef objective(trial):\n    return 1.0\n")
    kept = storage.open_storage(str(tmp_path / "a.journal"))
    trial_records.open_study(kept, definition.load(path))
    path.write_text(path.read_text().replace("maximize", "minimize"))
    with pytest.raises(InvalidInput, match=naming("minimize", "maximize", "--storage")):
        trial_records.open_study(kept, definition.load(path))


# --- the journal -------------------------------------------------------------------------------------------------


@given(cut=st.integers(min_value=1, max_value=400))
def test_a_journal_cut_anywhere_in_its_last_line_goes_on(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("journal") / "a.journal"
    study = optuna.create_study(storage=storage.open_storage(str(path)), study_name="a")
    for value in range(2):
        study.tell(study.ask(), float(value))
    whole = path.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    path.write_bytes(whole[: -min(cut, last - 1)])
    again = storage.load(str(path), "a")
    # All but the last line's state is there, and more can be written.
    assert again.get_trials()[0].value == 0.0
    again.enqueue_trial({"x": 1})
    assert storage.load(str(path), "a").get_trials(states=(optuna.trial.TrialState.WAITING,))


#: Lines that look like a journal's, and are not.
JOURNALS = st.lists(st.dictionaries(st.sampled_from(["op_code", "study_id", "worker_id"]), st.integers(0, 12))).map(
    lambda logs: b"".join(json.dumps(log).encode() + b"\n" for log in logs)
)


@given(junk=st.binary(max_size=200) | st.binary(max_size=50).map(lambda b: b + b"\n") | JOURNALS)
def test_any_other_file_is_refused_or_read_and_never_spoilt(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes
) -> None:
    path = tmp_path_factory.mktemp("journal") / "a.journal"
    path.write_bytes(junk)
    try:
        storage.load(str(path), "a")
    except MalletrainError as error:
        assert str(path) in str(error) or "'a'" in str(error)
    if junk.endswith(b"\n"):
        assert path.read_bytes() == junk


def test_sqlite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=naming("--storage:", "SQLite's")):
        storage.open_storage(f"sqlite:///{tmp_path}/a.db")
    assert list(tmp_path.iterdir()) == []


def test_one_run_at_a_time(tmp_path: Path) -> None:
    refused = pytest.raises(StudyError, match=naming(tmp_path, os.getpid()))
    with storage.alone(tmp_path), refused, storage.alone(tmp_path):
        pass
    with storage.alone(tmp_path):
        pass


# --- orders ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"x y": 1}, "parameter 'x y': "),
        ({"x": object()}, "parameter x: "),
        ({"x": float("nan")}, "parameter x: "),
    ],
)
def test_parameters_that_no_process_could_get_are_named(tmp_path: Path, params: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        TrialSpec("a", str(tmp_path), "/a.py", params=params).write()
    assert said in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("raised", "memory"),
    [
        ("torch.ones(1 << 46)", True),  # torch's allocator: a RuntimeError
        ("bytearray(1 << 60)", True),
        ("raise RuntimeError('CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate')", True),
        ("raise type('OutOfMemoryError', (RuntimeError,), {})('CUDA')", True),
        ("raise ValueError('out of memory of names')", False),
        ("torch.ones(2) @ torch.ones(3)", False),
    ],
)
def test_memory_that_ran_out_is_told_from_other_faults(tmp_path: Path, raised: str, memory: bool) -> None:
    path = write(tmp_path, f"import torch\n\ndef fit():\n    {raised}\n", name="faulty")
    order = TrialSpec("a", str(tmp_path), str(path), "fit")
    order.write()
    assert study_call.main([str(tmp_path)]) == 1
    over = ports.read_fault(order, str(os.getpid()))
    assert over is not None
    assert over.ending is (Ending.OUT_OF_MEMORY if memory else Ending.USER_ERROR)
    assert raised in over.traceback


@given(text=st.text(max_size=12))
def test_a_node_range_is_read_or_refused(text: str) -> None:
    try:
        least, most = node_range(text)
    except InvalidInput as error:
        assert str(error).startswith("nodes: ")
    else:
        assert 1 <= least <= most


@given(params=st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True), st.integers() | st.text()))
def test_an_order_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, params: dict[str, object]
) -> None:
    folder = tmp_path_factory.mktemp("order")
    order = TrialSpec("a", str(folder), "/a.py", "fit", params)
    order.write()
    assert TrialSpec.read(folder) == order


# --- what a job's events mean --------------------------------------------------------------------------------------


def event(kind: str, reason: str = "", **data: object) -> EventRow:
    return EventRow(1, 0.0, kind, 7, reason=reason, data=data)  # type: ignore[arg-type]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobOutcome:
    monkeypatch.setattr("malletrain.study.cluster_runs.FAULT_FILE_TIMEOUT_S", 0.0)
    return JobOutcome(TrialSpec("a", str(tmp_path), "/a.py"), "7")


def test_figures_and_a_result(told: JobOutcome) -> None:
    assert told.take(event("metric", name="a", value=0.5, samples=80)) == Figure("a", 0.5, 80)
    diverged = told.take(event("metric", name="a", value=None, samples=80))
    assert isinstance(diverged, Figure) and math.isnan(diverged.value)
    assert told.take(event("job_completed", "done", result={"a": 1})) == TrialEnd(Ending.COMPLETED, "done", {"a": 1})


CONSUMED = "no held task is left (of 4: ...): submit it again"


@pytest.mark.parametrize(
    ("pilots", "reason", "ending"),
    [
        ([("preempted", True), ("completed", False)], CONSUMED, Ending.PREEMPTED),
        ([("node_fail", False)], CONSUMED, Ending.NODE_FAILED),
        ([("node_fail", False), ("cancelled", True)], CONSUMED, Ending.PREEMPTED),
        ([("out_of_memory", False)], "3 pilots in a row ended", Ending.OUT_OF_MEMORY),
        ([("node_fail", False)] * 3, "3 pilots in a row ended", Ending.NODE_FAILED),
        ([("failed", False)], "3 pilots in a row ended", Ending.USER_ERROR),
    ],
)
def test_ends_are_told_apart(told: JobOutcome, pilots: list[tuple[str, bool]], reason: str, ending: Ending) -> None:
    for state, preempted in pilots:
        assert told.take(event("pilot_ended", state=state, preempted=preempted)) is None
    over = told.take(event("job_failed", reason))
    assert isinstance(over, TrialEnd)
    assert over.ending is ending
    assert over.ending.by_infrastructure == (ending in (Ending.PREEMPTED, Ending.NODE_FAILED))


def test_the_scripts_own_word_comes_first(told: JobOutcome, tmp_path: Path) -> None:
    word = {"memory": True, "message": "OutOfMemoryError: 80 GiB", "traceback": "at line 3"}
    fault_file(tmp_path, "7").write_text(json.dumps(word))
    over = told.take(event("job_failed", "exit status 1"))
    assert over == TrialEnd(Ending.OUT_OF_MEMORY, "OutOfMemoryError: 80 GiB", traceback="at line 3")


def test_without_a_word_the_newest_output_is_kept(told: JobOutcome, tmp_path: Path) -> None:
    for age, name in enumerate(("4_1.out", "4_0.out")):
        (tmp_path / name).write_text(f"{name}\nSegmentation fault\n")
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    over = told.take(event("job_failed", "exit status 139"))
    assert over == TrialEnd(Ending.USER_ERROR, "exit status 139", traceback="4_1.out\nSegmentation fault\n")
    assert len(ports.tail_of(tmp_path / "gone")) == 0


@pytest.mark.parametrize(
    ("returned", "directions", "fault"),
    [
        (0.5, 1, ""),
        ((1, 2.0), 2, ""),
        (None, 1, "`return`"),
        ("high", 1, "'high'"),
        (float("nan"), 1, "nan"),
        ((1.0, 2.0), 1, "2 values for 1"),
    ],
)
def test_values(returned: object, directions: int, fault: str) -> None:
    values, said = trial_records.values_of(returned, directions)
    assert says(said, fault) if fault else said == ""
    assert bool(values) == (not fault)


def test_parameters_are_queued_once_and_not_for_ever() -> None:
    study = optuna.create_study()
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    for _twice in range(2):  # killed between queueing and telling
        assert trial_records.repeat(study, study.get_trials()[0])
    assert len(study.get_trials(states=(optuna.trial.TrialState.WAITING,))) == 1
    study.tell(0, state=optuna.trial.TrialState.FAIL)
    again = 0
    while True:
        trial = study.ask()
        assert trial.suggest_float("x", 0, 1) == study.get_trials()[0].params["x"]
        again += 1
        if not trial_records.settle(study, trial, TrialEnd(Ending.NODE_FAILED), {}):
            break
    assert again == trial_records.MAX_REPEATS
    assert not study.get_trials(states=(optuna.trial.TrialState.RUNNING, optuna.trial.TrialState.WAITING))


def test_a_daemon_that_is_away_is_waited_for_and_then_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_runs, "FIRST_ANSWER_TIMEOUT_S", 1.0)
    said: list[str] = []
    nobody = {"MALLETRAIN_URL": f"http://127.0.0.1:{free_port()}"}
    with pytest.raises((DaemonUnavailable, MungeError)):  # munged is asked first, and runs on few machines of tests
        cluster_runs.JobRuns(lambda: connect(nobody), os.environ, said.append, threading.Event())
    assert len(said) == 1
    assert says(said[0], "1 s")
