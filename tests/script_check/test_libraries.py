"""Scripts with other people's libraries, checked whole: they are equal to a static run, or refused with the cure."""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path

import pytest

from tests.script_check.test_check import checked

HEAD = """
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset
from malletrain import elastic

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
digits = load_digits()
train = TensorDataset(torch.tensor(digits.data).double() / 16, torch.tensor(digits.target))
model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
"""

#: By library: before the session, what is tracked, and after the optimizer's step.
SCRIPTS = {
    "peft": (
        """
        from peft import LoraConfig, get_peft_model
        model = get_peft_model(model, LoraConfig(r=4, target_modules=["0", "2"], lora_dropout=0.0))
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
        """,
        "",
        "",
    ),
    "timm": (
        """
        import importlib.util, sys, types
        # (Its scheduler alone: the rest of timm needs torchvision.)
        package = types.ModuleType("timm")
        package.__path__ = importlib.util.find_spec("timm").submodule_search_locations
        sys.modules["timm"] = package
        from timm.scheduler.cosine_lr import CosineLRScheduler
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        scheduler = CosineLRScheduler(optimizer, t_initial=300, warmup_t=20, t_in_epochs=False)
        """,
        "s.track(scheduler=scheduler)",
        "scheduler.step_update(s.steps_done)",
    ),
    "torchmetrics": (
        """
        from torchmetrics import Accuracy
        from torchmetrics.aggregation import MeanMetric
        accuracy, mean = Accuracy(task="multiclass", num_classes=10), MeanMetric()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        """,
        "",
        "accuracy.update(model(x), y); mean.update(loss.item())",
    ),
}

LOOP = """
s = elastic.Session(model, optimizer, train, batch_size=64)
{tracked}
for epoch in s.epochs(20):
    for x, y in s.batches():
        with s.step():
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            {after}
s.finish()
"""


@pytest.mark.nightly
@pytest.mark.alone
@pytest.mark.parametrize("library", SCRIPTS)
def test_a_script_with_a_library_is_equal(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"pip install {library}")
    before, tracked, after = SCRIPTS[library]
    path = tmp_path / "train.py"
    path.write_text(HEAD + textwrap.dedent(before) + LOOP.format(tracked=tracked, after=after))
    report = checked(tmp_path, monkeypatch, str(path))
    assert report["verdict"] == "equal", report
    assert report["differences"][0]["difference"] < 1e-9
