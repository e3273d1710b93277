"""`malletrain init`: a plain script becomes malleable by the lines that it proposes."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from malletrain.cli.scripts import init
from malletrain.script_check.proposal import propose
from tests.script_check.conftest import Checked

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

SESSION = "s = elastic.Session(model, optimizer, loader)\n"

#: The script once it is malleable.
MALLEABLE = (
    PLAIN.replace("TensorDataset\n", "TensorDataset\nfrom malletrain import elastic\n")
    .replace("for epoch in range(30)", f"{SESSION}s.track(scheduler=scheduler)\nfor epoch in s.epochs(30)")
    .replace("enumerate(loader)", "enumerate(s.batches())")
    .replace("torch.save", "s.finish()\ntorch.save")
)


def test_the_usual_loop_is_changed_in_a_handful_of_lines() -> None:
    proposal = propose(PLAIN)
    assert proposal.text == MALLEABLE
    assert not proposal.notes
    diff = proposal.diff(PLAIN, "train.py")
    assert diff.startswith("--- train.py\n+++ train.py (malleable)\n")


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

LOADER = "DataLoader(data, batch_size=64, shuffle=True, num_workers=0)"
MADE = f"loader = {LOADER}\n"


def plain(old: str, new: str) -> str:
    """The plain script with a part replaced."""
    assert old in PLAIN
    return PLAIN.replace(old, new)


#: What is special of a script, and lines of what is proposed.
PROPOSED = {
    "a loader in the loop's own line": (
        plain(MADE, "").replace("enumerate(loader)", f"enumerate({LOADER})"),
        [f"s = elastic.Session(model, optimizer, {LOADER})\n", "enumerate(s.batches())"],
    ),
    "a class that is given the model, and does not train it": (
        plain("torch.manual_seed(0)", "class Judge:\n    def __init__(self, net):\n        self.net = net\n")
        + "Judge(model)\n",
        [SESSION],
    ),
    "a script that uses the session's name": (
        plain("torch.manual_seed(0)", "s = 8\ntorch.manual_seed(s)"),
        [
            f"session = {SESSION[4:]}",
            "s = 8\n",
            "for epoch in session.epochs(30):",
            "enumerate(session.batches())",
        ],
    ),
    "a function that uses the session's name": (
        FUNCTION.replace("def main():", "def main(s):"),
        [
            "def train(session, args, model, train_loader, opt, epoch):",
            "train(session, args, model, loader, optimizer, epoch)",
        ],
    ),
    **{
        f"{new} for {old}": (plain(old, new), [line, "for step, (x, y) in enumerate(s.batches()):"])
        for old, new, line in [
            ("range(30)", "range(1, n + 1)", "for epoch in (epoch + 1 for epoch in s.epochs(n)):"),
            ("range(30)", "range(2, n)", "for epoch in (epoch + 2 for epoch in s.epochs(n - 2)):"),
            ("range(30)", "range(begin, begin + n)", "for epoch in (epoch + begin for epoch in s.epochs(n)):"),
            ("range(30)", "tqdm(range(30), desc='epochs')", "for epoch in tqdm(s.epochs(30), desc='epochs'):"),
            # As in SupContrast, and where another file makes them.
            (MADE, f"def made(data):\n    loader = {LOADER}\n    return loader\nloader = made(data)\n", SESSION),
            (MADE, "loader = other.set_loader(data)\n", SESSION),
            ("torch.optim.SGD(model.parameters(), lr=0.05)", "set_optimizer(options, model)", SESSION),
        ]
    },
    "a scheduler in the main part": (
        "".join(PLAIN.splitlines(True)[:5])
        + "if __name__ == '__main__':\n"
        + "".join(f"    {line}\n" for line in PLAIN.splitlines()[5:]),
        ["    s.track(scheduler=scheduler)\n"],
    ),
    "a loop in a function": (
        FUNCTION,
        [
            "def train(s, args, model, train_loader, opt, epoch):",
            "    for batch_idx, (data, target) in enumerate(s.batches()):\n        opt.zero_grad()",
            "        if batch_idx % 10 == 0:",
            "    loader = DataLoader(data, batch_size=64, shuffle=True)",
            "    s = elastic.Session(model, optimizer, loader)\n    for epoch in",
            "        train(s, args, model, loader, optimizer, epoch)",
            "    s.finish()",
        ],
    ),
    "loops in methods": (
        TRAINER,
        [
            "self.s = elastic.Session(self.net, self.opt, self.loader)",
            "for epoch in self.s.epochs(epochs):",
            "for i, (x, y) in enumerate(self.s.batches()):",
            "self.s.finish()",
            "    loader = DataLoader(data(), batch_size=8, shuffle=True)\n",  # the class is given it
        ],
    ),
    "attributes that the class makes itself": (
        TRAINER.replace("self.count = net, 3", "self.count = net, 3\n        self.sched = StepLR(opt, 1)")
        .replace("self.loader = batches", "self.loader = DataLoader(data(), 8)")
        .replace("self.opt = opt", "self.opt = torch.optim.Adam(self.net.parameters())"),
        ["self.s = elastic.Session(self.net, self.opt, self.loader)", "self.s.track(sched=self.sched)"],
    ),
}


@pytest.mark.parametrize("special", PROPOSED)
def test_what_is_special_of_a_script_is_kept(special: str) -> None:
    text, lines = PROPOSED[special]
    changed = propose(text).text
    compile(changed, "train.py", "exec")
    assert [line for line in lines if line not in changed] == [], changed


@pytest.mark.parametrize(
    ("parameters", "passed"), [("", ""), ("epoch=0, *rest, key=1", "epoch"), ("*, epoch", "epoch=epoch")]
)
def test_a_function_of_any_signature_is_given_the_session(parameters: str, passed: str) -> None:
    text = FUNCTION.replace("train_loader", "loader").replace("opt.", "optimizer.")
    text = text.replace("def train(args, model, loader, opt, epoch):", f"def train({parameters}):")
    changed = propose(text.replace("train(args, model, loader, optimizer, epoch)", f"train({passed})")).text
    compile(changed, "train.py", "exec")
    assert f"def train({', '.join(filter(None, ['s', parameters]))}):" in changed, changed
    assert f"        train({', '.join(filter(None, ['s', passed]))})\n" in changed, changed


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (PLAIN.replace("manual_seed(0)", "seed()\nclass DataLoader:\n    pass"), "this DataLoader"),
        (PLAIN.replace("from torch.utils.data import", "from mine.data import"), "this DataLoader"),
        (PLAIN.replace("torch.manual_seed(0)", "import os; seed = (\n    0)"), "by hand"),
        ("x = 1", "no backward()"),
        ("for x in", "no Python"),
        ("s = elastic.Session(m, o, d, batch_size=1)", "has a Session already"),
        ("loader = DataLoader(d)\nfor x in loader:\n    loss.backward()", "line 3: backward()"),
        ("loader = DataLoader(d)\nfor e in range(3):\n    for x in loader:\n        f(x).backward()", "which model"),
        (
            "loader = DataLoader(d)\nwhile True:\n    f(next(given)).backward()",
            "line 3: backward()",
        ),
        ("loader = DataLoader(d)\ndef f(x):\n    g(x).backward()", "line 3: backward()"),
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
def test_what_is_proposed_is_equal_to_a_static_run(checked: Checked) -> None:
    report = checked(text=propose(PLAIN.replace("range(30)", "range(60)")).text)
    assert report["verdict"] == "equal", report


def test_each_fold_is_a_session() -> None:
    proposal = propose(FOLDS)
    assert "    s = elastic.Session(model, optimizer, loader)\n    for epoch in s.epochs(10):" in proposal.text
    assert "    s.finish()\n    scores.append" in proposal.text
    assert not proposal.notes
    stages = propose(FOLDS + FOLDS[FOLDS.index("for train") :].replace("Net()", "Other()"))
    assert any("another loop" in note for note in stages.notes)


def test_branches_of_which_one_is_taken_are_one_backward() -> None:
    """With mixed precision or without."""
    scaled = (
        "        if scaled:\n            scaler.scale(loss).backward()\n        else:\n            loss.backward()\n"
    )
    assert propose(PLAIN.replace("        loss.backward()\n", scaled)).notes == propose(PLAIN).notes
    both = scaled + "        (0.1 * loss).backward()\n"
    notes = propose(PLAIN.replace("        loss.backward()\n", both)).notes
    assert [note for note in notes if "several backward() calls" in note]


def test_what_the_session_does_not_know_is_noted() -> None:
    """Several passes of a step, gradients that are added up over batches, a scaler that is made under a condition."""
    proposal = propose(GAN)
    assert "s = elastic.Session([net_d, net_g], [opt_d, opt_g], loader)\n" in proposal.text
    assert ["s.step(backwards=N)" in note for note in proposal.notes] == [True], proposal.notes
    step = "        optimizer.step()\n"
    text = PLAIN.replace(step, f"        if (step + 1) % 4 == 0:\n    {step}", 1)
    assert any("several batches" in note for note in propose(text).notes)
    scaler = "if args.amp:\n    scaler = torch.amp.GradScaler()\nfor epoch in range"
    proposal = propose(PLAIN.replace("for epoch in range", scaler))
    assert "s.track(scheduler=scheduler)\n" in proposal.text
    assert any("s.track(scaler=scaler)" in note for note in proposal.notes), proposal.notes
