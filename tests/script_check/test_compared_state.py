"""What the runs of a check are compared by, beyond the session's parameters."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from malletrain import elastic
from malletrain.script_check.compared_state import compared_state, model_copies
from tests.script_check.test_check import said

MODEL = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))


class Average:
    """Of the usual form."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = list(parameters)
        self.shadow = [each.detach().clone() for each in self.parameters]


def found(**names: Any) -> list[str]:
    return [where for where, _ in model_copies(names.items(), MODEL)]


def test_copies_of_the_model_are_found_wherever_a_name_leads_to_them() -> None:
    class Trainer:
        helpers = None

        def __init__(self) -> None:
            self.helpers = {"ema": Average(MODEL.parameters())}

    assert found(teacher=copy.deepcopy(MODEL)) == ["teacher"]
    assert found(average=torch.optim.swa_utils.AveragedModel(MODEL)) == ["average"]
    assert found(trainer=Trainer()) == ["trainer.helpers['ema'].shadow"]
    assert found(shadow={name: each.clone() for name, each in MODEL.named_parameters()}) == ["shadow"]
    both = nn.ModuleDict({"online": MODEL, "target": copy.deepcopy(MODEL)})
    assert found(both=both) == ["both.target"]


def test_what_is_no_copy_is_passed_over() -> None:
    ring: list[Any] = []
    ring.append(ring)
    assert found(model=MODEL, own=list(MODEL.parameters()), by_name=dict(MODEL.named_parameters())) == []
    assert found(ring=ring, other=nn.Linear(9, 9), batch=torch.zeros(8), losses=[torch.zeros(1)] * 4, text="x") == []
    assert found(many=[[number] for number in range(100_000)]) == []


def test_what_a_session_counts_by_itself_is_not_compared(tmp_path: Path) -> None:
    """It moves also where nothing is trained."""
    optimizer = torch.optim.SGD(MODEL.parameters(), lr=0.1)
    s = elastic.Session(MODEL, optimizer, torch.utils.data.TensorDataset(torch.zeros(8, 4)), batch_size=4)
    s.state["best"] = 1.0
    names = set(compared_state(s, None, tmp_path))
    assert names == {*dict(MODEL.named_parameters()), "s.state['best']"}


def test_copies_of_the_trained_parameters_alone_are_found() -> None:
    model = nn.Sequential(nn.Linear(4, 3).requires_grad_(False), nn.Linear(3, 2))
    shadow = [each.detach().clone() for each in model.parameters() if each.requires_grad]
    assert [where for where, _ in model_copies([("shadow", shadow)], model)] == ["shadow"]


KEEPS = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from malletrain import elastic

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
x = torch.randn(256, 4)
model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


class Average:
    def __init__(self):
        self.shadow = [each.detach().clone() for each in model.parameters()]

    def update(self):
        for mine, theirs in zip(self.shadow, model.parameters()):
            mine.lerp_(theirs.detach(), 0.2)

    def state_dict(self):
        return {"shadow": self.shadow}

    def load_state_dict(self, state):
        self.shadow = [each.clone() for each in state["shadow"]]


def main(kept):
    average, best, curve, seen = Average(), float("inf"), {}, 0
    s = elastic.Session(model, optimizer, DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 16, shuffle=True)CHECK)
    if kept == "tracked":
        s.track(average=average)
    for epoch in s.epochs(60):
        for inputs, targets in s.batches():
            with s.step():
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(inputs), targets)
                loss.backward()
                before = [each.detach().clone() for each in model.parameters()]
                optimizer.step()
                if kept != "book-keeping":
                    average.update()
            seen += 1
            curve[seen] = loss.item()
            if s.is_main:
                best = min(best, loss.item())
    s.finish()


main(sys.argv[1])
"""


@pytest.mark.alone
@pytest.mark.parametrize(
    ("kept", "verdict"), [("untracked", "different"), ("tracked", "equal"), ("book-keeping", "equal")]
)
def test_an_average_is_compared_and_book_keeping_is_not(
    kept: str, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keeps.py").write_text(KEEPS.replace("CHECK", ', check="off"'))
    result = said(tmp_path, monkeypatch, "--json", str(tmp_path / "keeps.py"), kept)
    report = json.loads(result.output)
    assert report["verdict"] == verdict, report
    if verdict == "different":
        assert "average.shadow[" in report["text"] and "s.track(average=...)" in report["text"], report
