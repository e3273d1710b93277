"""`malletrain init`: a plain script becomes malleable by the lines that it proposes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from malletrain.cli.scripts import init
from malletrain.script_check.proposal import propose
from tests.script_check.test_check import checked

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
    assert not proposal.notes
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
        "def train(s, args, model, train_loader, opt, epoch):",
        "    for batch_idx, (data, target) in enumerate(s.batches()):\n        with s.step():",
        "            opt.zero_grad()",
        "        if batch_idx % 10 == 0:",
        "    loader = DataLoader(data, batch_size=64, shuffle=True)",
        "    s = elastic.Session(model, optimizer, loader)\n    for epoch in",
        "        train(s, args, model, loader, optimizer, epoch)",
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
    assert "def train(session, args, model, train_loader, opt, epoch):" in function, function
    assert "train(session, args, model, loader, optimizer, epoch)" in function, function


def test_a_loader_that_is_not_torchs_is_named() -> None:
    own = "from torch.utils.data import DataLoader, TensorDataset"
    for text in (
        PLAIN.replace(own, f"{own}\nclass DataLoader:\n    pass"),
        PLAIN.replace(own, "from mine.data import DataLoader"),
    ):
        proposal = propose(text)
        assert proposal.text == text and "this DataLoader is not torch's" in proposal.notes[0], proposal


def test_what_is_made_under_a_condition_is_tracked_there() -> None:
    scaler = "if args.amp:\n    scaler = torch.amp.GradScaler()\nfor epoch in range"
    proposal = propose(PLAIN.replace("for epoch in range", scaler))
    assert "s.track(scheduler=scheduler)\n" in proposal.text
    assert any("put s.track(scaler=scaler) under the same one" in note for note in proposal.notes), proposal.notes
    main = "if __name__ == '__main__':\n" + "".join(f"    {line}\n" for line in PLAIN.splitlines()[5:])
    assert "    s.track(scheduler=scheduler)\n" in propose("".join(PLAIN.splitlines(True)[:5]) + main).text


def test_an_optimizer_that_a_function_makes() -> None:
    text = PLAIN.replace("torch.optim.SGD(model.parameters(), lr=0.05)", "set_optimizer(options, model)")
    assert "s = elastic.Session(model, optimizer, loader)\n" in propose(text).text


def test_a_function_of_any_signature_is_given_the_session() -> None:
    plain = FUNCTION.replace("train_loader", "loader").replace("opt.", "optimizer.")
    for parameters, passed in (("", ""), ("epoch=0, *rest, key=1", "epoch"), ("*, epoch", "epoch=epoch")):
        text = plain.replace("def train(args, model, loader, opt, epoch):", f"def train({parameters}):")
        changed = propose(text.replace("train(args, model, loader, optimizer, epoch)", f"train({passed})")).text
        compile(changed, "train.py", "exec")
        assert f"def train({', '.join(filter(None, ['s', parameters]))}):" in changed, changed
        assert f"        train({', '.join(filter(None, ['s', passed]))})\n" in changed, changed


def test_a_class_that_is_given_the_model_does_not_train_it() -> None:
    judge = "class Judge:\n    def __init__(self, net):\n        self.net = net\n\n\n"
    text = propose(PLAIN.replace("torch.manual_seed", f"{judge}torch.manual_seed") + "Judge(model)\n").text
    assert "s = elastic.Session(model, optimizer, loader)\n" in text, text


def test_what_is_not_indented_by_four_spaces_keeps_its_meaning() -> None:
    """Tabs, and a string of several lines in a step."""
    text = propose(PLAIN.replace("    ", "\t")).text
    compile(text, "tabs.py", "exec")
    assert "\t\twith s.step():\n\t\t\toptimizer.zero_grad()\n" in text, text
    words = '"""of\n  two lines"""'
    text = propose(PLAIN.replace("optimizer.zero_grad()", f"print({words})")).text
    assert words in text, text
    one_line = PLAIN.replace("    for step, (x, y) in enumerate(loader):\n        optimizer.zero_grad()\n", "")
    for line in ("    for x, y in loader: train(model(x), y).backward(), optimizer.step(), optimizer.zero_grad()\n",):
        text = one_line[: one_line.index("        loss = ")] + line
        assert propose(text).text == text and "by hand" in propose(text).notes[0], propose(text)


def test_epochs_that_begin_at_one_keep_their_numbers() -> None:
    proposal = propose(PLAIN.replace("range(30)", "range(1, n + 1)"))
    assert "for epoch in (epoch + 1 for epoch in s.epochs(n)):" in proposal.text
    ast.parse(proposal.text)
    later = propose(PLAIN.replace("range(30)", "range(2, n)")).text
    assert "for epoch in (epoch + 2 for epoch in s.epochs(n - 2)):" in later
    shown = propose(PLAIN.replace("range(30)", "tqdm(range(30), desc='epochs')")).text
    assert "for epoch in tqdm(s.epochs(30), desc='epochs'):" in shown, shown
    so_many = propose(PLAIN.replace("range(30)", "range(begin, begin + n)")).text
    assert "for epoch in (epoch + begin for epoch in s.epochs(n)):" in so_many


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("x = 1", "no backward() is found: is this the training script?"),
        ("for x in", "no Python that can be read"),
        ("s = elastic.Session(m, o, d, batch_size=1)", "has a Session already"),
        ("loader = DataLoader(d)\nfor x in loader:\n    loss.backward()", "line 3: backward() is not in a loop over"),
        ("loader = DataLoader(d)\nfor e in range(3):\n    for x in loader:\n        f(x).backward()", "which model"),
        (
            "loader = DataLoader(d)\nwhile True:\n    f(next(given)).backward()",
            "line 3: backward() is not in a loop over",
        ),
        ("loader = DataLoader(d)\ndef f(x):\n    g(x).backward()", "line 3: backward() is not in a loop over"),
        ("import lightning as L\nL.Trainer().fit(m, loader)", "(A framework's loop: docs/how-to/adapters.md)"),
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
    report = checked(tmp_path, monkeypatch, "train.py")
    assert report["verdict"] == "equal", report


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


def test_several_passes_of_a_step_are_named() -> None:
    proposal = propose(GAN)
    assert "s = elastic.Session([net_d, net_g], [opt_d, opt_g], loader)\n" in proposal.text
    assert ["s.step(backwards=N)" in note for note in proposal.notes] == [True], proposal.notes


def test_gradients_added_up_over_batches_are_named() -> None:
    text = PLAIN.replace(
        "        optimizer.step()\n", "        if (step + 1) % 4 == 0:\n            optimizer.step()\n", 1
    )
    assert any("gradients are added up over several batches" in note for note in propose(text).notes)
