"""Workers start without torch's compiler, train to bitwise the same result, and compile when they want to."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

TRAIN = """
import sys, hashlib
import torch
from malletrain import elastic
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
kinds = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad]
def train():
    for kind in kinds:
        optimizer = kind(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 4)).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step(lambda: torch.tensor(0.0)) if kind is torch.optim.Adagrad else optimizer.step()
            schedule.step()
        other = kind(model.parameters(), lr=0.5)
        other.load_state_dict(optimizer.state_dict())
        other.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
        assert torch.is_grad_enabled()
def state():
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
"""


def said(script: str, **environment: str) -> list[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLETRAIN_")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_training_needs_no_compiler_and_gives_the_same_bits() -> None:
    script = TRAIN + "train(); print('torch._dynamo' in sys.modules, state())"
    late, torchs_own = said(script), said(script, MALLETRAIN_EAGER_COMPILER="1")
    assert late[0] == "False"
    assert torchs_own[0] == "True"
    assert late[1] == torchs_own[1]


def test_what_is_compiled_later_is_compiled() -> None:
    script = (
        TRAIN
        + """
train()
seen = []
def backend(graph, inputs):
    seen.extend(str(node.target) for node in graph.graph.nodes if node.op.startswith("call"))
    return graph.forward
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
stepping = torch.compile(optimizer.step, backend=backend)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(5, 4)).square().mean().backward()
    stepping()
train()
print('torch._dynamo' in sys.modules, state(), *seen)
"""
    )
    late, torchs_own = said(script), said(script, MALLETRAIN_EAGER_COMPILER="1")
    assert late[0] == "True"
    assert late[2:]
    assert late == torchs_own


def test_an_optimizer_that_raises_leaves_gradients_enabled() -> None:
    script = (
        TRAIN
        + """
def fail():
    raise ValueError
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
try:
    optimizer.step(fail)
except ValueError:
    print(torch.is_grad_enabled(), 'torch._dynamo' in sys.modules)
"""
    )
    assert said(script) == ["True", "False"]


@pytest.mark.parametrize(("environment", "loaded"), [({}, "False"), ({"MALLETRAIN_WELCOME_FD": "9"}, "True")])
def test_torch_is_loaded_by_the_package_in_workers_only(environment: dict[str, str], loaded: str) -> None:
    """A worker imports torch anyway, and a script that imports it after this package gains too."""
    assert said("import sys; from malletrain import elastic; print('torch' in sys.modules)", **environment) == [
        loaded
    ]


def test_a_worker_that_imports_torch_last_gains_too() -> None:
    script = TRAIN.replace(
        "import torch\nfrom malletrain import elastic\n", "from malletrain import elastic\nimport torch\n"
    )
    assert script != TRAIN
    assert said(script + "train(); print('torch._dynamo' in sys.modules)", MALLETRAIN_WELCOME_FD="9") == ["False"]
