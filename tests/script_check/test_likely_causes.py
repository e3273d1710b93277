"""What a check says of a difference: which lines may be its cause; and what it has not met."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from malletrain.script_check.likely_causes import likely_causes
from malletrain.script_check.unmet_conditions import unmet_conditions
from tests.elastic.habit_kinds import WRONG
from tests.script_check.test_check import HABITS, UNSEEDED, checked

TEXT = Path(HABITS).read_text()
PARTS = {node.name: node for node in ast.parse(TEXT).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}

#: What the others are compared with begins to differ as workers join.
JOINED = frozenset(
    {
        "stage_by_steps", "renews_teacher", "annealed_in_closure", "crops_less", "relabels", "index_of_batch",
        "own_generator", "shuffles_in_place", "frozen_average", "average_in_a_class", "average_by_epoch",
    }
)  # fmt: skip

#: By habit, a part of the line that is its fault.
FAULTS = {
    "class_weights": "y, weights)",
    "constant_divisor": 'reduction="none").sum() / BATCH',
    "frozen_average": "mine.lerp_",
    "stage_by_steps": "dataset.noise *= 0.9",
    "ignored_targets": "masked_fill",
    "sum_taken_for_a_mean": 'reduction="sum"',
    "renews_teacher": "teacher",
    "average_in_a_class": "self.shadow[name] = ",
    "contrastive": "first @ second.T",
    "partner_first": "out @ out.T",
    "sum_by_hand": 'reduction="none").sum()',
    "average_by_epoch": "swa.update_parameters",
    "masked_mean": "mask.sum()",
    "rows_left_out": "x[kept]",
    "hardest": "topk",
    "meta_learns_without_a_word": "len(some_x) / len(x)",
    "root_of_mean": ".sqrt()",
    "whitened": "x.std(0)",
    "temperature_of_batch": ".std()",
    "keeps_own_centre": 's.state["centre"] = ',
    "scaled_by_own_figures": "self.sums[0] +=",
    "index_of_batch": "for i, (x, y) in enumerate",
    "own_generator": "chance.random()",
    "shuffles_in_place": "random.shuffle(dataset)",
    "relabels": "dataset.tensors[1][:64] = ",
    "crops_less": "shown_pixels[0] = ",
    "annealed_in_closure": "next(weights)",
    "statistic": "softmax(1).mean(0)",
    "gathered_and_own": "out @ out.T",
    "times_length": "* len(x) / BATCH",
    "clips_in_hooks": "register_hook",
    "inner_gradients": "torch.autograd.grad(",
    "running_mean": "detach().mean(0)",
    "other_loader": "next(other)",
    "loader_inside": "next(other)",
    "tokens_between": "next(other)",
    "loss_weight_by_item": "first.item() / second.item()",
    "replays": "buffer",
    "weighs_by_own_counts": "weight=weights",
}


def lines_of(habit: str) -> set[int]:
    """The lines of a habit, and of the functions and classes that it names."""
    seen, queue = set[str](), [habit]
    while queue:
        name = queue.pop()
        if name in PARTS and name not in seen and name not in ("tick", "data", "net"):
            seen.add(name)
            queue += [node.id for node in ast.walk(PARTS[name]) if isinstance(node, ast.Name)]
    spans = ((PARTS[name].lineno, PARTS[name].end_lineno or 0) for name in seen)
    return {line for first, last in spans for line in range(first, last + 1)}


@pytest.mark.parametrize("habit", WRONG)
def test_the_line_of_a_wrong_habit_is_the_first_that_is_named(habit: str) -> None:
    causes = likely_causes(TEXT, lines_of(habit), joined=habit in JOINED)
    assert causes and FAULTS[habit] in causes[0].text, causes


@pytest.mark.parametrize(
    "line",
    [
        "seen += 1",
        "best = max(best, score)",
        "if score > best: best = score",
        "for i, x in enumerate(s.batches()): f(i)",
    ],
)
def test_what_a_worker_that_joins_begins_anew_is_a_cause(line: str) -> None:
    """A counter, a best score, the patience of an early stop, the index of a batch."""
    (cause,) = likely_causes(f"x = 1\n{line}\n", {1, 2}, joined=True)
    assert (cause.line, cause.text) == (2, line) and "s.state" in cause.why


def test_what_a_script_has_not_executed_is_no_cause() -> None:
    assert likely_causes("x = y.std()\nz = y.std()\n", {2}, joined=False)[0].line == 2
    assert likely_causes("x = y + 1\n", {1}, joined=False) == []
    assert likely_causes("this is no Python", {1}, joined=False) == []


def test_conditions_on_epochs_that_were_not_met_are_named() -> None:
    text = "if epoch == 30:\n    a()\nif s.epoch % 2 == 0:\n    b()\nif epoch > options.warm:\n    c()\n"
    assert unmet_conditions(text, range(3)) == ["line 1: `if epoch == 30:` (--at-epoch 30)"]
    assert unmet_conditions(text, range(30, 33)) == []


@pytest.mark.nightly
@pytest.mark.alone
def test_a_later_epoch_is_met_where_a_check_begins_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an own vector follows from there on is found, and its line named."""
    late = UNSEEDED.replace("for _ in s", "for epoch in s").replace(
        "        with s.step():",
        "        if epoch == 30:\n            x = (x - x.mean(0)) / (1 + x.std(0))\n        with s.step():",
    )
    (tmp_path / "late.py").write_text(late)
    line = 1 + late.splitlines().index("        if epoch == 30:")
    found = checked(tmp_path, monkeypatch, "--at-epoch", "30", str(tmp_path / "late.py"))
    assert found["verdict"] == "different" and found["begins"] == "also with two workers from start to end", found
    assert found["causes"][0].startswith(f"late.py:{line + 1}: "), found
