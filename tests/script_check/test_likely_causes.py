"""What a check says of a difference: which lines may be its cause; and what it has not met."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from malletrain.script_check.likely_causes import likely_causes, unmet_conditions
from tests.elastic.train_habits import HABITS, Kind
from tests.script_check.conftest import Checked
from tests.script_check.test_check import SCRIPT_OF_HABITS, UNSEEDED

TEXT = Path(SCRIPT_OF_HABITS).read_text()
PARTS = {node.name: node for node in ast.parse(TEXT).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}

#: Of these a line is the fault.
WRONG = [name for name, habit in HABITS.items() if habit.kind is Kind.WRONG and habit.said]


def lines_of(habit: str) -> set[int]:
    """The lines of a habit, and of the functions and classes that it names."""
    seen, queue = set[str](), [habit]
    while queue:
        name = queue.pop()
        if name in PARTS and name not in seen and name not in ("tick", "data", "net", "habit"):
            seen.add(name)
            queue += [node.id for node in ast.walk(PARTS[name]) if isinstance(node, ast.Name)]
    spans = ((PARTS[name].lineno, PARTS[name].end_lineno or 0) for name in seen)
    return {line for first, last in spans for line in range(first, last + 1)}


@pytest.mark.parametrize("habit", WRONG)
def test_the_line_of_a_wrong_habit_is_the_first_that_is_named(habit: str) -> None:
    found = HABITS[habit]
    causes = likely_causes(TEXT, lines_of(habit), joined=found.joined)
    assert causes and found.said in causes[0].text, causes


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("learn(cross_entropy(out, y, reduction='none').topk(len(x) // 4).values.mean())", "compared"),
        ("learn(cross_entropy(model(x), y, weights))", "own count"),
        ("learn(cross_entropy(model(x), y) * len(x) / BATCH)", "a factor"),
        ("loss = cross_entropy(model(x), y.masked_fill(y < 3, -100))", "own count"),
        ("kept = x > 0; loss = cross_entropy(model(x[kept]), y[kept])", "own count"),
        ("mean = out.softmax(1).mean(0)", "statistic"),
        ("loss = cross_entropy(out, y, reduction='none').sum() / 64", "a sum"),
        ("inputs = x + 0.1 * torch.randn_like(x)", "random numbers"),
    ],
)
def test_what_depends_on_the_part_of_a_batch_is_a_cause(line: str, why: str) -> None:
    assert why in likely_causes(line, {1}, joined=False)[0].why


@pytest.mark.parametrize(
    "line",
    [
        "seen += 1",
        "best = max(best, score)",
        "if score > best: best = score",
        "mine.lerp_(theirs, 0.1)",
        "self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * each",
        "buffer.extend(rows)",
        "sums[0] += value * value",
    ],
)
def test_what_a_worker_that_joins_begins_anew_is_a_cause(line: str) -> None:
    """A counter, a best score, the patience of an early stop, the index of a batch, an average."""
    (cause,) = likely_causes(f"x = 1\n{line}\n", {1, 2}, joined=True)
    assert (cause.line, cause.text) == (2, line) and "s.state" in cause.why


def test_what_a_script_has_not_executed_is_no_cause() -> None:
    assert likely_causes("x = y.std()\nz = y.std()\n", {2}, joined=False)[0].line == 2
    assert likely_causes("x = y + 1\n", {1}, joined=False) == []
    assert likely_causes("no Python", {1}, joined=False) == []


def test_conditions_on_epochs_that_were_not_met_are_named() -> None:
    text = "if epoch == 30:\n    a()\nif s.epoch % 2 == 0:\n    b()\nif epoch > options.warm:\n    c()\n"
    assert unmet_conditions(text, range(3)) == ["line 1: `if epoch == 30:` (--at-epoch 30)"]
    assert unmet_conditions(text, range(30, 33)) == []


@pytest.mark.nightly
@pytest.mark.alone
def test_a_later_epoch_is_met_where_a_check_begins_there(checked: Checked) -> None:
    """What an own vector follows from there on is found, and its line named."""
    late = UNSEEDED.replace("for _ in s", "for epoch in s").replace(
        "        optimizer.zero_grad()",
        "        if epoch == 30:\n            x = (x - x.mean(0)) / (1 + x.std(0))\n        optimizer.zero_grad()",
    )
    line = 1 + late.splitlines().index("        if epoch == 30:")
    found = checked("--at-epoch", "30", text=late)
    assert found["verdict"] == "different" and "two workers" in found["begins"], found
    assert found["causes"][0].startswith(f"script.py:{line + 1}: "), found
