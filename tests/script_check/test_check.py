"""`malletrain check` in real processes: what it says of a right script and of wrong ones."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from malletrain import elastic
from malletrain.cli.scripts import _text
from malletrain.elastic.data.sampler import Sampler
from malletrain.script_check.check_runs import CheckReport, report_of
from malletrain.script_check.checked_script import _shorten
from malletrain.script_check.comparison import compare, unlike_static_runs, unsettled
from tests.elastic.coordinator import HERE, ROOT, outside_slurm
from tests.script_check.conftest import Checked, Said
from tests.script_check.test_proposal import PLAIN

SCRIPT_OF_HABITS = str(HERE / "train_habits.py")

#: As most scripts in public places: nothing is seeded, and what follows from the order of a set is sorted.
UNSEEDED = """
import random
import numpy
import torch
from torch import nn
from malletrain import elastic

model = nn.Linear(4, 3).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * (1 + random.random() + numpy.random.rand()))
rows = torch.arange(256.0).double().view(64, 4).sin()
s = elastic.Session(model, optimizer, torch.utils.data.TensorDataset(rows), batch_size=8)
for _ in s.epochs(50):
    for (x,) in s.batches():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
s.finish()
"""

#: Of two workers the second one is not run for some seconds, once.
FROZEN = UNSEEDED.replace(
    "        optimizer.zero_grad()",
    """\
        import os, signal, subprocess
        if s.size == 2 and os.environ.get("SLURM_ARRAY_TASK_ID") == "1" and "FROZEN" not in os.environ:
            os.environ["FROZEN"] = "once"
            subprocess.Popen(["sh", "-c", f"sleep 9; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        optimizer.zero_grad()""",
)

#: With epochs of 1,250 steps, it leaves a scheduler untracked: equal all the same.
CARELESS = (
    UNSEEDED.replace("torch.arange(256.0)", "torch.arange(40_000.0)")
    .replace("view(64, 4)", "view(10_000, 4)")
    .replace(
        "rows = ",
        "kept = torch.optim.lr_scheduler.StepLR(optimizer, 9)\n"
        "late = torch.optim.lr_scheduler.ConstantLR(optimizer)\n"
        "chain = torch.optim.lr_scheduler.ChainedScheduler([late])\nrows = ",
    )
    .replace("s.finish()", "torch.save(model.state_dict(), 'last.pt')\ns.finish()")
    .replace(
        "for _ in s.epochs(50):",
        "s.track(kept=kept)\nfor epoch in s.epochs(50):\n    if epoch == 30:\n        raise RuntimeError",
    )
)


def test_a_careless_script_is_equal_and_what_may_do_harm_elsewhere_is_noted(checked: Checked, tmp_path: Path) -> None:
    """It seeds nothing; ends of its long epochs are met, and a later epoch is not."""
    report = checked(text=CARELESS)
    assert report["verdict"] == "equal" and report["good"] and report["epochs"] >= 2, report
    assert report["steps"] >= 20 and report["equality"].startswith("additive")
    assert all(each["difference"] < 1e-3 for each in report["differences"])
    (note,) = report["notes"]
    assert "ChainedScheduler" in note and "s.track(" in note
    later = 1 + CARELESS.splitlines().index("    if epoch == 30:")
    assert report["unmet"] == [f"line {later}: `if epoch == 30:` (--at-epoch 30)"]
    text = _text(CheckReport("equal", "compared", epochs=1, notes=report["notes"], unmet=report["unmet"]))
    assert f"\n  {note}" in text and f"\n  not met: line {later}: " in text, text
    assert sorted(each.name for each in tmp_path.iterdir()) == ["last.pt", "script.py"], "it leaves nothing behind"


def test_what_goes_wrong_as_workers_join_is_said(said: Said) -> None:
    result = said(SCRIPT_OF_HABITS, "counter_sets_rate", "--epochs", "30")
    assert result.exit_code == 1
    assert result.output.startswith(("WRONG  as workers joined:", "WRONG  with three workers:"))
    assert "another lr" in result.output


def test_a_static_run_may_begin_a_session_before_the_first_has_ended(tmp_path: Path) -> None:
    """In a job that is refused; a script may do it where it is in none."""
    second = UNSEEDED[UNSEEDED.index("s = elastic") :].replace("s.epochs(50)", "s.epochs(2)")
    first = second.replace("s.epochs(2)", "range(1)").replace("s.finish()", "")
    (tmp_path / "two.py").write_text(UNSEEDED[: UNSEEDED.index("s = elastic")] + first + second)
    run = "import sys; from malletrain.script_check.checked_script import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", run, str(tmp_path / "two.py")]
    environ = outside_slurm(MALLETRAIN_CHECK_DIR=str(tmp_path), MALLETRAIN_CHECK_NAME="static")
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=180, check=False)
    assert json.loads((tmp_path / "end-static.json").read_text())["kind"] == "done", done.stderr
    found = torch.load(tmp_path / "result-static.pt", weights_only=True)
    assert found["step"] == 8 + 2 * 8 and "weight (session 1)" in found["last"], found


def test_epochs_of_whole_batches_are_not_shortened() -> None:
    """Where they end follows from the script's order, in each epoch anew."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = elastic.Options(order=lambda epoch: [each.tolist() for each in torch.arange(2000).split(7 + epoch)])
    s = elastic.Session(model, optimizer, [torch.zeros(2)] * 2000, batch_size=10, options=options)
    _shorten(s, 30)
    sampler = s._runtime.sampler
    assert isinstance(sampler, Sampler) and sampler.epoch_length == 2000
    assert sampler.batch_ends(1)[-1] == 2000


def test_a_worker_that_is_let_go_says_why(checked: Checked) -> None:
    let_go = "from malletrain.elastic.errors import Released\nraise Released('{}')\n"
    assert checked(text=let_go.format("go on"))["text"].endswith(": go on")
    failed = let_go.format("the script failed: 1_2.0: ElasticError: it has another i")
    assert checked(text=failed)["text"].startswith("it has another "), "what another worker's guard has found"


def test_a_script_without_a_session_is_told_how_to_begin(said: Said, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    result = said("plain.py")
    assert result.exit_code == 1
    assert result.output.startswith("NOT MALLEABLE YET")


WRONG_AT_THE_END = "    torch.nn.init.normal_(model.weight, generator=torch.Generator().manual_seed(id(s)))\n"
OF_EXAMPLES = ROOT / "examples"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("script", "arguments", "verdict"),
    [
        (SCRIPT_OF_HABITS, "by_the_system --epochs 30", "not repeatable"),
        (SCRIPT_OF_HABITS, "weighted --epochs 1", "too short"),
        (SCRIPT_OF_HABITS, "exits --epochs 30", "wrong"),
        (FROZEN, "", "equal"),  # a busy machine does not run a worker for seconds, and it is not lost
        (UNSEEDED.replace(".sin()", ".sin() + torch.randn(64, 4)"), "", "different"),  # a newcomer draws another
        (CARELESS.replace("torch.save(", f"{WRONG_AT_THE_END}torch.save("), "", "different or wrong"),
        # Its precision changes torch's default type, which no worker's tables may follow.
        (str(OF_EXAMPLES / "digits_lightning.py"), "--epochs 40 --precision bf16-true", "equal"),
        # A check starts scripts as torchrun does, and accelerate would wrap the model in DistributedDataParallel.
        (str(OF_EXAMPLES / "digits_transformers.py"), "--double --epochs 40", "equal"),
    ],
    ids=["by the system", "weighted", "exits", "frozen", "draws", "at the end", "half precision", "trainer"],
)
def test_other_verdicts(script: str, arguments: str, verdict: str, checked: Checked) -> None:
    """`script`: its path, or its text."""
    report = checked(text=script) if "\n" in script else checked(script, *arguments.split())
    assert report["verdict"] in verdict.split(" or "), report


ZEROS, ONES = torch.zeros(100), torch.ones(100)
INF, NAN, HALF = (torch.tensor([value]) for value in (math.inf, math.nan, 0.5))
COMPLEX = torch.full((4,), 1 + 1j, dtype=torch.complex128)


@pytest.mark.parametrize(
    ("first", "static", "resized", "equal"),
    [
        (ZEROS, ONES, ONES * (1 + 1e-6), True),
        (ZEROS, ONES, ONES * 1.05, False),
        (ONES, ONES, ONES, True),  # nothing was trained, and nothing differs
        (ZEROS, ONES, None, False),
        # As a plateau scheduler's worst, and a best score that begins at infinity.
        (INF, INF, INF.clone(), True),
        (INF, INF, HALF, False),
        (NAN, NAN, NAN.clone(), True),
        (NAN, NAN, HALF, False),
        (INF, HALF, HALF * (1 + 1e-6), True),
        (INF, HALF, HALF * 1.1, False),
        (0 * COMPLEX, COMPLEX, COMPLEX * (1 + 1e-16), True),
        (0 * COMPLEX, COMPLEX, COMPLEX.conj(), False),
    ],
)
def test_a_difference_is_measured_by_how_far_training_has_moved(
    first: torch.Tensor, static: torch.Tensor, resized: torch.Tensor | None, equal: bool
) -> None:
    found = compare({"w": first}, {"w": static}, {} if resized is None else {"w": resized})[0]
    assert found.equal is equal
    if resized is not None and resized.equal(ONES * 1.05):
        assert found.difference == pytest.approx(0.05, rel=1e-3)


def test_what_rounding_alone_moves_is_no_difference() -> None:
    """A bias before BatchNorm has no gradient but rounding, which Adam makes steps of."""
    first = {"bias": torch.zeros(8), "weight": torch.zeros(8)}
    static = {"bias": torch.ones(8), "weight": torch.ones(8)}
    nudged = {"bias": -torch.ones(8), "weight": torch.ones(8) * (1 + 1e-6)}
    resized = {"bias": torch.ones(8) * 0.3, "weight": torch.ones(8) * 1.01}
    told = {each.name: each.equal for each in compare(first, static, resized, nudged)}
    assert told == {"bias": True, "weight": False}
    assert [each.name for each in compare(first, static, resized)] == ["bias", "weight"], "the most different first"


def test_a_script_whose_static_runs_differ_cannot_be_compared() -> None:
    def run(w: float, bias: float, begun: float = 1.0) -> dict[str, Any]:
        first = {"w": torch.full((8,), begun), "bias": torch.zeros(8)}
        return {"first": first, "last": {"w": torch.full((8,), w), "bias": torch.full((8,), bias)}, "step": 30}

    static, again = run(2.0, 1.0), run(2.0 * (1 + 1e-6), -1.0)
    assert unlike_static_runs(static, again) == "", "one of two, as on a GPU"
    assert [each.name for each in unsettled(static["first"], static["last"], again["last"])] == ["bias"]
    other = run(2.5, -1.0)
    assert unlike_static_runs(static, other).startswith("bias differs by 2")
    assert unlike_static_runs(static, run(2.0, 1.0, begun=1.1)).startswith("w begins")
    ended = {**static, "equality": "additive"}
    assert report_of(ended, ended, static, other, other).verdict == "not repeatable"
    assert report_of(ended, {**ended, "step": 31}, static, None, static).verdict == "equal", "a worker that joined"
    assert report_of({**ended, "step": 31}, ended, static, None, static).verdict == "too short"


OF_PARTS = "statistical: BatchNorm looks at the part that a worker has"


@pytest.mark.parametrize(
    ("at", "nudged", "claim", "dtype", "verdict"),
    [
        # As LBFGS makes rounding grow: a run that begins a few units of it elsewhere ends far away.
        (1.0 + 5e-13, 1.0 + 1e-9, "additive", torch.float64, "equal"),
        (1.0 + 1e-9, 1.0 + 1e-9, "additive", torch.float64, "undecided"),
        (1.1, 1.0 + 1e-9, "additive", torch.float64, "different"),
        # As BatchNorm over a third of a large batch: less than what single precision is allowed elsewhere.
        (1.0 + 1e-3, 1.0 + 1e-6, OF_PARTS, torch.float32, "statistical"),
        (1.0 + 5e-6, 1.0 + 1e-6, OF_PARTS, torch.float32, "equal"),
        (1.0 + 1e-3, 1.0 + 1e-6, "additive", torch.float32, "equal"),
        (1.1, 1.0, OF_PARTS, torch.float64, "statistical"),
    ],
)
def test_what_differs_is_judged_by_rounding_and_by_what_the_session_claims(
    at: float, nudged: float, claim: str, dtype: torch.dtype, verdict: str
) -> None:
    def ended(at: float) -> dict[str, Any]:
        w = torch.tensor([at, 1.0], dtype=dtype)
        return {"first": {"w": torch.zeros_like(w)}, "last": {"w": w}, "step": 57, "equality": claim}

    report = report_of(ended(at), ended(at), ended(1.0), None, ended(nudged))
    assert report.verdict == verdict
    if verdict == "statistical":
        assert report.good and _text(report).startswith("statistical, not equal  57 steps: ")


def test_where_nothing_was_trained_nothing_is_shown() -> None:
    """As with the cross entropy of a single class, whose gradient is 0."""
    ended: dict[str, Any] = {"first": {"w": ONES}, "last": {"w": ONES}, "step": 42, "equality": "additive"}
    report = report_of(ended, ended, ended, None, ended)
    assert report.verdict == "equal" and "no parameter" in _text(report)
