"""The habits of `train_habits.py`, by what is right of them: one list for the tests of invariants, for those of
`malletrain check`, and for the table of docs/reference/habits.md."""

from __future__ import annotations

#: Refused by one worker as on the cluster, with what is said.
ALONE = {
    "second_backward": r"a second time in a step.*step.accumulate\(\).*s.step\(backwards=N\)",
    "gan_by_accumulate": r"has gradients of this worker alone.*s.step\(backwards=N\)",
    "adds_up_over_steps": r"has gradients that were added to those of an earlier step",
    "other_model": r"SGD.step\(\) trains a parameter of shape \(4, 10\) that the session",
    "epochs_by_range": r"the epoch's batches are used up: iterate over epochs by `for epoch in s.epochs",
    "norm_in_parts": r"called twice in a step, for parts of the batch \(accumulation\).*virtual_shards",
    "norm_after_backward": r"called after the last backward\(\) of a step: put the model into eval mode",
    "gathered_views": r"one row for each of this worker's 64 samples, not a tensor of shape \(128, 10\)",
    "gathered_in_parts": r"s.gather\(\) inside step.accumulate\(\)",
    "gathered_too_late": r"call s.gather\(\) inside `with s.step\(\):`, before its last backward\(\)",
    "mean_of_weighted": r"s.mean\(\) says over how much its values are: leave weight= out",
    "mean_in_parts": r"s.mean\(\) inside step.accumulate\(\)",
    "catches_exceptions": r"the script caught an exception of a step and went on \(RuntimeError: out of memory\)",
    "meta_learns_in_parts": r"SGD.step\(\) trains a parameter.*`with step.inner_loop\(\):`",
    "meta_learns_in_the_model": r"backward\(\) inside step.inner_loop\(\) reaches 2.bias of the session's model",
    "agrees_inside": r"after the `with s.step\(\):` block",
}

#: Refused by two workers: the habit and its options.
TOGETHER = {
    "one_infinite_element": r"step 2: the gradients of rank0 \(process 1\) are not finite .*, first that of 2.bias",
    "local_break": r"is at another place of the script than the others: in s.step\(\) in epoch \d",
    "local_plateau": r"learns with another lr than the others \(.*s.track\(scheduler",
    "main_evaluates": r"is at another place of the script than the others: in s.evaluate\(\)|and the others in "
    "s.evaluate",
    "own_centres": r"has another buffer centres than the others: a worker changes it by its own samples.*s.gather",
    "own_negatives": r"has another data set than the others: a worker sets it by its own samples",
    "gathers_on_main": r"is at another place of the script than the others: .*s.gather\(\)",
    "means_on_main": r"is at another place of the script than the others: .*s.mean\(\)",
    "meddles_on_main --times 10": r"has another 0.weight than the others: something changes it on one worker",
    "orders_that_differ": r"learns with another order of samples than the others",
    "counter_sets_rate --split": r"rank0 \(process 1\) is not like rank0 \(process 0\) in its data set",
}

#: Refused as a worker joins a training that has begun.
GROWING = {
    "counter_sets_rate": r"another (lr|iter_num)",
    "lambda_over_global": r"learns with another lr than the others|has another count",
}

#: Not tried by a check: it has no worker of that number at that step, or the habit needs one.
_BY_NUMBER = ("one_infinite_element", "orders_that_differ")

#: Each is refused by an invariant, with one worker, with two, or as others join.
REFUSED = [
    *ALONE,
    *dict.fromkeys(habit.split()[0] for habit in (*TOGETHER, *GROWING) if habit not in _BY_NUMBER),
    "set_by_first_batch",
    "shortened_rows",
]

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

#: Each draws in its steps, or has layers that do.
STATISTICAL = ["draws", "draws_between", "left_in_eval"]

RIGHT = [
    "two_denominators",
    "several_means",
    "several_sums",
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
    "own_batches",
]

#: Of these the first are tried at each change.
EQUAL = ["gan", "weighted", "shared_values", "streams", "gathered", "several_means", "keeps_books"]

VERDICTS = {
    **dict.fromkeys(WRONG, ("different", "wrong")),
    **dict.fromkeys(REFUSED, ("wrong", "different")),
    **dict.fromkeys(STATISTICAL, ("statistical",)),
    **dict.fromkeys(RIGHT, ("equal",)),
}
