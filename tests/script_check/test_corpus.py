"""The corpus of habits under `malletrain check`: wrong ones are not called equal, right ones are.

The table of all: `python -m scripts.bench.elastic.habits`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from malletrain.cli.scripts import check

ROOT = Path(__file__).parents[2]
HABITS = str(ROOT / "tests" / "elastic" / "train_habits.py")

#: Each trains wrongly without a word of an invariant's, or with one once workers differ.
WRONG = [
    "class_weights",
    "constant_divisor",
    "frozen_average",
    "stage_by_steps",
    "ignored_targets",
    "sum_taken_for_a_mean",
    "renews_teacher",
    "average_in_a_class",
    "contrastive",
    "partner_first",
    "sum_by_hand",
    "average_by_epoch",
    "masked_mean",
    "rows_left_out",
    "hardest",
    "meta_learns_without_a_word",
    "root_of_mean",
    "whitened",
    "temperature_of_batch",
    "keeps_own_centre",
    "scaled_by_own_figures",
    "index_of_batch",
    "own_generator",
    "shuffles_in_place",
    "relabels",
    "crops_less",
    "annealed_in_closure",
    "statistic",
    "gathered_and_own",
    "times_length",
    "clips_in_hooks",
    "inner_gradients",
    "running_mean",
    "other_loader",
    "loader_inside",
    "tokens_between",
    "loss_weight_by_item",
    "replays",
    "weighs_by_own_counts",
]

#: Each is refused by an invariant, with one worker or as others join.
REFUSED = [
    "second_backward",
    "gan_by_accumulate",
    "adds_up_over_steps",
    "other_model",
    "epochs_by_range",
    "norm_in_parts",
    "norm_after_backward",
    "gathered_views",
    "gathered_in_parts",
    "gathered_too_late",
    "catches_exceptions",
    "meta_learns_in_parts",
    "meta_learns_in_the_model",
    "agrees_inside",
    "local_break",
    "local_plateau",
    "main_evaluates",
    "own_centres",
    "gathers_on_main",
    "counter_sets_rate",
    "lambda_over_global",
    "set_by_first_batch",
    "shortened_rows",
]

#: Each draws in its steps, or has layers that do.
STATISTICAL = ["draws", "draws_between", "left_in_eval"]

RIGHT = [
    "two_denominators",
    "several_means",
    "keeps_books",
    "gan",
    "weighted",
    "shared_values",
    "streams",
    "gathered",
    "sum_gathered",
    "own_order",
    "sam",
    "unfreezes",
    "own_against_gathered",
    "gan_norm",
    "gan_shards",
    "sums_in_words",
    "decays_after_block",
    "gathered_centres",
    "stage_by_epoch",
    "mean_of_chunks",
    "penalised",
    "scheduler_outside",
    "decides_by_random",
    "agrees",
    "rewrites_labels",
    "meta_learns",
    "means_of_tasks",
    "writes_in_step",
    "best_score",
    "counter_in_trainer",
    "meta_learns_from_several",
]

QUICK = frozenset({*WRONG[:4], *RIGHT[:2]})

VERDICTS = {
    **dict.fromkeys(WRONG, ("different", "wrong")),
    **dict.fromkeys(REFUSED, ("wrong", "different")),
    **dict.fromkeys(STATISTICAL, ("statistical",)),
    **dict.fromkeys(RIGHT, ("equal",)),
}


@pytest.mark.alone
@pytest.mark.parametrize(
    "habit", [each if each in QUICK else pytest.param(each, marks=pytest.mark.nightly) for each in VERDICTS]
)
def test_a_habit_has_its_verdict(habit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MALLETRAIN_TEST_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    result = CliRunner().invoke(check, ["--json", HABITS, habit, "--epochs", "30"])
    report = json.loads(result.output)
    assert report["verdict"] in VERDICTS[habit], result.output
