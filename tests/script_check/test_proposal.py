"""`malletrain init`: a plain script becomes malleable by the lines that it proposes."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from malletrain.cli.scripts import check, init
from malletrain.script_check.proposal import propose

ROOT = Path(__file__).parents[2]

PLAIN = '''"""A plain script."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(640, 20), torch.randint(0, 5, (640,)))
loader = DataLoader(data, batch_size=64, shuffle=True, num_workers=0)
model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
for epoch in range(30):
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(
            model(x), y)
        loss.backward()
        optimizer.step()

        if step % 5 == 0:
            print(epoch, loss.item())
    scheduler.step()
torch.save(model.state_dict(), "model.pt")
'''

MALLEABLE = '''"""A plain script."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from malletrain import elastic

torch.manual_seed(0)
data = TensorDataset(torch.randn(640, 20), torch.randint(0, 5, (640,)))
loader = DataLoader(data, batch_size=64, shuffle=True, num_workers=0)
model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
s = elastic.Session(model, optimizer, loader)
s.track(scheduler=scheduler)
for epoch in s.epochs(30):
    for step, (x, y) in enumerate(s.batches()):
        with s.step():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(
                model(x), y)
            loss.backward()
            optimizer.step()

        if step % 5 == 0:
            print(epoch, loss.item())
    scheduler.step()
s.finish()
torch.save(model.state_dict(), "model.pt")
'''


def test_the_usual_loop_is_changed_in_a_handful_of_lines() -> None:
    proposal = propose(PLAIN)
    assert proposal.text == MALLEABLE
    assert proposal.notes == ["line 23: torch.save: put it under `if s.is_main:`"]
    diff = proposal.diff(PLAIN, "train.py")
    assert diff.startswith("--- train.py\n+++ train.py (malleable)\n")


def test_a_loader_in_the_loops_own_line() -> None:
    made = "DataLoader(data, batch_size=64, shuffle=True, num_workers=0)"
    inline = PLAIN.replace(f"loader = {made}\n", "").replace("enumerate(loader)", f"enumerate({made})")
    text = propose(inline).text
    assert f"s = elastic.Session(model, optimizer, {made})\n" in text and "enumerate(s.batches())" in text, text


FUNCTION = """
import torch
from torch import nn
from torch.utils.data import DataLoader


def train(args, model, train_loader, opt, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        opt.zero_grad()
        nn.functional.nll_loss(model(data), target).backward()
        opt.step()
        if batch_idx % 10 == 0:
            print(epoch, len(train_loader.dataset))


def main():
    loader = DataLoader(data, batch_size=64, shuffle=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(1, args.epochs + 1):
        train(args, model, loader, optimizer, epoch)
        test(model)
"""


def test_a_loop_in_a_function_is_given_the_session() -> None:
    text = propose(FUNCTION).text
    ast.parse(text)
    for line in (
        "def train(args, model, train_loader, opt, epoch, s):",
        "    for batch_idx, (data, target) in enumerate(s.batches()):\n        with s.step():",
        "            opt.zero_grad()",
        "        if batch_idx % 10 == 0:",
        "    loader = DataLoader(data, batch_size=64, shuffle=True)",
        "    s = elastic.Session(model, optimizer, loader)\n    for epoch in",
        "        train(args, model, loader, optimizer, epoch, s=s)",
        "    s.finish()",
    ):
        assert line in text, text


def test_a_loader_that_is_made_elsewhere() -> None:
    """As in SupContrast, and where another file makes it: `train_loader = set_loader(opt)`."""
    made = "loader = DataLoader(data, batch_size=64, shuffle=True, num_workers=0)\n"
    function = f"def set_loader(data):\n    {made}    return loader\nloader = set_loader(data)\n"
    for text in (PLAIN.replace(made, function), PLAIN.replace(made, "loader = other.set_loader(data)\n")):
        changed = propose(text).text
        assert "s = elastic.Session(model, optimizer, loader)\n" in changed, changed
        assert "for step, (x, y) in enumerate(s.batches()):" in changed, changed


def test_the_session_has_a_name_that_the_script_does_not_use() -> None:
    text = propose(PLAIN.replace("torch.manual_seed(0)", "s = 8\ntorch.manual_seed(s)")).text
    assert "session = elastic.Session(model, optimizer, loader)\n" in text and "s = 8\n" in text, text
    assert (
        "for epoch in session.epochs(30):" in text
        and "with session.step():" in text
        and "s.batches" not in (text.replace("session.batches", ""))
    )
    function = propose(FUNCTION.replace("def main():", "def main(s):")).text
    assert "def train(args, model, train_loader, opt, epoch, session):" in function, function
    assert "train(args, model, loader, optimizer, epoch, session=session)" in function, function


def test_a_loader_that_is_not_torchs_is_named() -> None:
    own = "from torch.utils.data import DataLoader, TensorDataset"
    for text in (
        PLAIN.replace(own, f"{own}\nclass DataLoader:\n    pass"),
        PLAIN.replace(own, "from mine.data import DataLoader"),
        PLAIN.replace(own, f"{own}\nimport mine.data").replace("= DataLoader(", "= mine.data.DataLoader("),
    ):
        proposal = propose(text)
        assert proposal.text == text and "this DataLoader is not torch's" in proposal.notes[0], proposal


def test_what_is_made_under_a_condition_is_tracked_there() -> None:
    scaler = "if args.amp:\n    scaler = torch.amp.GradScaler()\nfor epoch in range"
    proposal = propose(PLAIN.replace("for epoch in range", scaler))
    assert "s.track(scheduler=scheduler)\n" in proposal.text
    assert any("put s.track(scaler=scaler) under the same one" in note for note in proposal.notes), proposal.notes
    both = scaler.replace("\nfor", "\nelse:\n    scaler = torch.amp.GradScaler(enabled=False)\nfor")
    text = propose(PLAIN.replace("for epoch in range", both)).text
    assert "s.track(scheduler=scheduler, scaler=scaler)\n" in text, text


def test_each_fold_has_a_session_of_its_own() -> None:
    head, body = PLAIN.split("loader = ", 1)
    folds = head + "for fold in range(3):\n" + "".join(f"    {line}\n" for line in ("loader = " + body).splitlines())
    text = propose(folds).text
    compile(text, "folds.py", "exec")
    assert "\n    s = elastic.Session(model, optimizer, loader)\n" in text and "\n    s.finish()\n" in text, text


def test_an_optimizer_that_a_function_makes() -> None:
    text = PLAIN.replace("torch.optim.SGD(model.parameters(), lr=0.05)", "set_optimizer(options, model)")
    assert "s = elastic.Session(model, optimizer, loader)\n" in propose(text).text


def test_what_an_option_leaves_out_is_not_tracked() -> None:
    scheduler = "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)\n"
    text = propose(PLAIN.replace(scheduler, f"scheduler = None\nif decays:\n    {scheduler}")).text
    assert "if scheduler is not None:\n    s.track(scheduler=scheduler)\nfor epoch in s.epochs(30):" in text


def test_a_function_whose_parameters_are_not_plain_is_left_alone() -> None:
    text = FUNCTION.replace("opt, epoch):", "opt, epoch=0):")
    proposal = propose(text)
    assert proposal.text == text
    assert "give train() the session as a parameter `s`" in proposal.notes[0]


def test_epochs_that_begin_at_one_keep_their_numbers() -> None:
    proposal = propose(PLAIN.replace("range(30)", "range(1, n + 1)"))
    assert "for epoch in (epoch + 1 for epoch in s.epochs(n)):" in proposal.text
    ast.parse(proposal.text)
    later = propose(PLAIN.replace("range(30)", "range(2, n)")).text
    assert "for epoch in (epoch + 2 for epoch in s.epochs(n - 2)):" in later
    so_many = propose(PLAIN.replace("range(30)", "range(begin, begin + n)")).text
    assert "for epoch in (epoch + begin for epoch in s.epochs(n)):" in so_many


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("x = 1", "no `loader = DataLoader(...)` is found"),
        ("for x in", "no Python that can be read"),
        ("s = elastic.Session(m, o, d, batch_size=1)", "has a Session already"),
        ("loader = DataLoader(d)\nfor x in loader:\n    loss.backward()", "a loop that trains, but not inside"),
        ("loader = DataLoader(d)\nfor e in range(3):\n    for x in loader:\n        f(x).backward()", "which model"),
        ("loader = DataLoader(d)\nwhile True:\n    f(next(given)).backward()", "line 2: a `while` loop that trains"),
        ("loader = DataLoader(d)\ndef f(x):\n    g(x).backward()", "line 3: backward() stands in a function that"),
        ("import lightning as L\nL.Trainer().fit(m, loader)", "line 1: lightning: Trainer(..., strategy=ElasticS"),
        (
            "from transformers import AutoModel, Trainer",
            "ElasticTrainer in its place, see docs/how-to/adapters.md#",
        ),
        ("from accelerate import Accelerator\nloader = DataLoader(d)", "ElasticAccelerator in its place"),
        ("loader = DataLoader(d)", "no loop with backward() is found"),
    ],
    ids=[
        "no loader",
        "no python",
        "done",
        "no epochs",
        "no model",
        "while",
        "function",
        "lightning",
        "trainer",
        "accelerate",
        "no loop",
    ],
)
def test_what_cannot_be_changed_is_said(text: str, note: str) -> None:
    proposal = propose(text)
    assert proposal.text == text
    assert note in proposal.notes[0]


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    propose(text)


def test_the_command_writes_and_keeps_the_former_file(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PLAIN)
    shown = CliRunner().invoke(init, [str(script)])
    assert shown.exit_code == 0 and script.read_text() == PLAIN
    assert "+    for step, (x, y) in enumerate(s.batches()):" in shown.output
    assert CliRunner().invoke(init, ["--write", str(script)]).exit_code == 0
    assert script.read_text() == MALLEABLE
    assert (tmp_path / "train.py.orig").read_text() == PLAIN
    again = CliRunner().invoke(init, [str(script)])
    assert again.exit_code == 1 and "has a Session already" in again.output


@pytest.mark.nightly
def test_what_is_proposed_is_equal_to_a_static_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(propose(PLAIN.replace("range(30)", "range(60)")).text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    result = CliRunner().invoke(check, ["--json", "train.py"])
    assert json.loads(result.output)["verdict"] == "equal", result.output


TRAINER = """
import torch
from torch.utils.data import DataLoader

class Trainer:
    def __init__(self, net, batches, opt):
        self.model, self.count = net, 3
        self.net = net
        self.loader = batches
        self.opt = opt

    def train_epoch(self, epoch):
        for i, (x, y) in enumerate(self.loader):
            self.opt.zero_grad()
            loss = self.net(x).sub(y).square().mean()
            loss.backward()
            self.opt.step()
        print(epoch, loss.item())

    def fit(self, epochs):
        for epoch in range(epochs):
            self.train_epoch(epoch)

def main():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data(), batch_size=8, shuffle=True)
    Trainer(model, loader, optimizer).fit(3)
"""


def test_loops_in_methods_of_a_class() -> None:
    changed = propose(TRAINER).text
    compile(changed, "train.py", "exec")
    lines = [line.strip() for line in changed.splitlines()]
    assert "self.s = elastic.Session(self.net, self.opt, self.loader)" in lines
    assert "for epoch in self.s.epochs(epochs):" in lines and "with self.s.step():" in lines
    assert "for i, (x, y) in enumerate(self.s.batches()):" in lines and "self.s.finish()" in lines
    assert "loader = DataLoader(data(), batch_size=8, shuffle=True)" in lines, "the class is given it"


def test_attributes_that_the_class_makes_itself() -> None:
    text = (
        TRAINER.replace("self.count = net, 3", "self.count = net, 3\n        self.sched = StepLR(opt, 1)")
        .replace("self.loader = batches", "self.loader = DataLoader(data(), 8)")
        .replace("self.opt = opt", "self.opt = torch.optim.Adam(self.net.parameters())")
    )
    changed = propose(text).text
    compile(changed, "train.py", "exec")
    assert "self.s = elastic.Session(self.net, self.opt, self.loader)" in changed
    assert "self.s.track(sched=self.sched)" in changed


GAN = """
import torch
from torch.utils.data import DataLoader

loader = DataLoader(data, batch_size=64, shuffle=True)
net_d, net_g = D(), G()
opt_d = torch.optim.Adam(net_d.parameters())
opt_g = torch.optim.Adam(net_g.parameters())
for epoch in range(30):
    for x, _ in loader:
        net_d.zero_grad()
        real = criterion(net_d(x), ones)
        real.backward()
        fake = criterion(net_d(net_g(noise(x)).detach()), zeros)
        fake.backward()
        opt_d.step()
        net_g.zero_grad()
        criterion(net_d(net_g(noise(x))), ones).backward()
        opt_g.step()
"""


FOLDS = """
import torch
from torch.utils.data import DataLoader, Subset

scores = []
for train, val in folds:
    loader = DataLoader(Subset(data, train), batch_size=32, shuffle=True)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    scores.append(evaluate(model, val))
"""


def test_each_fold_is_a_session() -> None:
    proposal = propose(FOLDS)
    assert "    s = elastic.Session(model, optimizer, loader)\n    for epoch in s.epochs(10):" in proposal.text
    assert "    s.finish()\n    scores.append" in proposal.text
    assert not proposal.notes
    stages = propose(FOLDS + FOLDS[FOLDS.index("for train") :].replace("Net()", "Other()"))
    assert any("another loop that trains: it needs a Session of its own" in note for note in stages.notes)


def test_parts_of_a_loss_are_accumulated_and_passes_are_counted() -> None:
    proposal = propose(GAN)
    lines = [line.strip() for line in proposal.text.splitlines()]
    compile(proposal.text, "gan.py", "exec")
    assert "with s.step(backwards=2) as step:" in lines
    assert "            with step.accumulate():\n                real.backward()\n            fake =" in proposal.text
    assert lines.count("with step.accumulate():") == 1 and not proposal.notes
    unclear = propose(GAN.replace("        fake.backward()", "        if epoch:\n            fake.backward()"))
    assert "with s.step():" in unclear.text and any("backwards=N" in note for note in unclear.notes)


def test_gradients_added_up_over_batches_are_named() -> None:
    text = PLAIN.replace(
        "        optimizer.step()\n", "        if (step + 1) % 4 == 0:\n            optimizer.step()\n", 1
    )
    assert any("gradients are added up over several batches" in note for note in propose(text).notes)
    assert any(note.startswith("step steers what follows") for note in propose(text).notes)


@pytest.mark.parametrize(
    ("loss", "sums"),
    [
        ('nn.functional.cross_entropy(model(x), y, reduction="sum")', True),
        ("summed(model(x), y)", True),
        ('nn.functional.cross_entropy(model(x), y, reduction="sum") / 64', False),
        ('nn.functional.cross_entropy(model(x), y, reduction="mean")', False),
    ],
)
def test_a_loss_that_is_a_sum_is_said_to_be_one(loss: str, sums: bool) -> None:
    text = PLAIN.replace("nn.functional.cross_entropy(\n            model(x), y)", loss).replace(
        "optimizer =", 'summed = nn.CrossEntropyLoss(reduction="sum")\noptimizer ='
    )
    assert ('loader, reduction="sum")' in propose(text).text) == sums


COUNTING = PLAIN.replace(
    "for epoch in range(30):", "best, done = 0, 0\niter_num = 0\nfor epoch in range(30):"
).replace(
    "            print(epoch, loss.item())\n",
    '            print(f"{iter_num}: {loss.item()}")\n'
    "        iter_num += 1\n"
    "        for group in optimizer.param_groups:\n"
    '            group["lr"] = 0.05 * min(1, iter_num / 100)\n',
)


def test_a_counter_that_steers_becomes_part_of_the_training_state() -> None:
    text = propose(COUNTING).text
    compile(text, "train.py", "exec")
    assert "s.track(scheduler=scheduler)\n" in text and 's.state["iter_num"] = iter_num\n' in text
    assert '        s.state["iter_num"] += 1\n' in text
    assert "print(f\"{s.state['iter_num']}: {loss.item()}\")" in text
    assert 'group["lr"] = 0.05 * min(1, s.state["iter_num"] / 100)' in text


def test_a_counter_that_something_else_uses_is_named() -> None:
    text = COUNTING.replace("torch.manual_seed(0)", "torch.manual_seed(0)\ndef rate():\n    return iter_num\n")
    proposal = propose(text)
    assert "s.state" not in proposal.text
    assert any('keep it in s.state["iter_num"], or use s.steps_done' in note for note in proposal.notes)


@pytest.mark.nightly
def test_a_counter_that_was_moved_is_equal_to_a_static_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(propose(COUNTING.replace("range(30)", "range(60)")).text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    result = CliRunner().invoke(check, ["--json", "train.py"])
    assert json.loads(result.output)["verdict"] == "equal", result.output
