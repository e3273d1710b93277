"""What the runs of a check are compared by, beyond the session's parameters."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from malletrain import elastic
from malletrain.script_check.compared_state import compared_state, own_values
from tests.script_check.conftest import Checked

MODEL = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))


class Average:
    """Of the usual form."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = list(parameters)
        self.shadow = [each.detach().clone() for each in self.parameters]


def session() -> elastic.Session:
    optimizer = torch.optim.SGD(MODEL.parameters(), lr=0.1)
    return elastic.Session(MODEL, optimizer, torch.utils.data.TensorDataset(torch.zeros(8, 4)), batch_size=4)


def found(kept: Any) -> list[str]:
    """What a variable of that name leads to."""
    names = [each.split(" (")[0] for each in own_values(session(), sys._getframe(), Path(__file__))]
    sizes = "in_features", "out_features"  # of layers
    return [each for each in names if each.startswith("kept") and not each.endswith(sizes)]


def test_tensors_are_found_wherever_a_name_leads_to_them() -> None:
    class Trainer:
        helpers = None

        def __init__(self) -> None:
            self.helpers = {"ema": Average(MODEL.parameters())}

    parts = ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert sorted(found(copy.deepcopy(MODEL))) == sorted(f"kept.{each}" for each in parts)
    assert found(Trainer()) == [f"kept.helpers['ema'].shadow[{place}]" for place in range(4)]
    assert found(nn.ModuleDict({"online": MODEL, "target": nn.Linear(1, 1)})) == [
        "kept.target.weight",
        "kept.target.bias",
    ]


def test_what_is_the_sessions_or_leads_nowhere_is_passed_over() -> None:
    ring: list[Any] = []
    ring.append(ring)
    for value in (MODEL, list(MODEL.parameters()), dict(MODEL.named_parameters()), ring, "x", None):
        assert found(value) == []
    assert len(found([[torch.zeros(1)] for _ in range(20_000)])) < 10_000


def test_what_a_session_counts_by_itself_is_not_compared() -> None:
    """It moves also where nothing is trained."""
    s = session()
    s.state["best"] = 1.0
    assert set(compared_state(s)) == {*dict(MODEL.named_parameters()), "s.state['best']"}


#: A script with a place for what it makes before the session, and one for what it does after each step. The data have
#: three kinds of rows; `loss` is of this worker's rows.
OWN = """
import sys
import time
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from malletrain import elastic

torch.manual_seed(0)
x = torch.randn(256, 4)
kinds = torch.arange(256) % 3
model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def flat():
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def main():
    BEFORE
    samples = TensorDataset(x, x.sum(1, keepdim=True), kinds)
    s = elastic.Session(model, optimizer, DataLoader(samples, 16, shuffle=True))
    for epoch in s.epochs(60):
        for inputs, targets, kind in s.batches():
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            AFTER
        score = s.evaluate(lambda batch: {"mse": (model(batch[0]) - batch[1]).square().sum()})["mse"]
        BETWEEN
    s.finish()


main()
"""


def with_own(before: str, after: str = "pass", between: str = "pass") -> str:
    text = OWN.replace("BEFORE", before.replace("\n", "\n    "))
    return text.replace("AFTER", after.replace("\n", "\n" + 12 * " ")).replace(
        "BETWEEN", between.replace("\n", "\n        ")
    )


#: What a worker that joins begins anew: the name that leads to it, what makes it, and what it does after each step.
APART = {
    "average": ("average = flat()", "average = 0.9 * average + 0.1 * flat()"),
    "array": ("array = flat().numpy()", "array = 0.9 * array + 0.1 * flat().numpy()"),
    "keep.mean": (
        "def keeps(mean):\n    def keep(value):\n        nonlocal mean\n        mean = 0.9 * mean + 0.1 * value\n"
        "    return keep\nkeep = keeps(flat())",
        "keep(flat())",
    ),
    "counts": (
        "counts = [0] * 3",
        "found = s.agree(kind.bincount(minlength=3).double(), 'sum').int().tolist()\n"
        "counts = [a + b for a, b in zip(counts, found)]",
    ),
    "installed.shadow": ("installed = Average(model.parameters())", "installed.update()"),
    "best": ("best = float('inf')", "pass"),
}

#: The same of the best score, which decides what is kept of the model.
BEST = "if score + epoch < best:\n    best, chosen = score + epoch, flat()"

PACKAGE = """
class Average:
    __slots__ = ("shadow", "of")

    def __init__(self, of):
        self.of = list(of)
        self.shadow = [each.detach().clone() for each in self.of]

    def update(self):
        for mine, theirs in zip(self.shadow, self.of):
            mine.lerp_(theirs.detach(), 0.2)
"""

#: What is a worker's own, by right: what it makes, and what it does after each step and between epochs.
HONEST = (
    # losses of its own rows
    ("losses, curve, mean = [], {}, 0.0",
     "one = loss.item()\nlosses.append(one)\ncurve[len(losses)] = one\nmean = 0.9 * mean + 0.1 * one", "pass"),
    # a best score of the main worker, and one that is printed alone
    ("best = float('inf')", "pass", "if s.is_main:\n    best = min(best, score)"),
    ("least = most = float('inf')", "pass",
     "least = min(least, score + epoch)\nif s.is_main:\n    print(f'{least:.2f}')\n"
     "if score + epoch < most:\n    most = score + epoch\n    print(most)"),
    # scores of all epochs
    ("scores, table = [], np.zeros(60)", "pass", "scores.append(score)\ntable[epoch] = score"),
    # times
    ("began, times = time.time(), []", "times.append(time.time() - began)\nspent = times[-1]", "pass"),
    # counters, also of own rows
    ("steps, rows, stats = 0, 0, {'steps': 0, 'rows': 0}",
     "steps += 1\nrows += len(inputs)\nstats = {'steps': steps, 'rows': rows}", "pass"),
    ("counts = np.zeros(3)", "np.add.at(counts, kind.numpy(), 1)", "pass"),
    # a profiler
    ("from torch.profiler import ProfilerActivity, profile\n"
     "profiler = profile(activities=[ProfilerActivity.CPU])\nprofiler.start()",
     "profiler.step()", "if epoch == 1:\n    profiler.stop()"),
)  # fmt: skip


def test_what_a_worker_that_joins_begins_anew_is_found_by_name_and_line(checked: Checked, tmp_path: Path) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "averages.py").write_text(PACKAGE)
    before = f"sys.path.insert(0, {str(tmp_path / 'site-packages')!r})\nfrom averages import Average\n"
    made, kept = ("\n".join(each) for each in zip(*APART.values(), strict=True))
    text = with_own(before + made, kept, BEST)
    report = checked(text=text)
    assert report["verdict"] == "different" and "s.state or s.track(...)" in report["text"], report
    for name in APART:
        line = 1 + next(at for at, row in enumerate(text.splitlines()) if f"{name.split('.')[0]} = " in row)
        found = [each["name"] for each in report["differences"]]
        at = f"(script.py:{line} in main)"
        assert any(each.startswith(name) and each.endswith(at) for each in found), (name, line, found)


def test_book_keeping_is_a_workers_own(checked: Checked) -> None:
    report = checked(text=with_own(*("\n".join(each) for each in zip(*HONEST, strict=True))))
    assert report["verdict"] == "equal", report
