"""`elastic.ddp`: a loop over a DataLoader as it is, equal to its static run over changes of size and a kill; what
cannot be kept is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.elastic.coordinator import HERE, Forked, outside_slurm, running
from tests.elastic.digits import assert_equal, run_alone
from tests.elastic.test_habits import assert_matches
from tests.waiting import wait_until

SCRIPT = str(HERE / "train_ddp.py")

REFUSED = {
    "real_group": r"init_process_group has been called.*Leave it out",
    "distributed_sampler": r"leave DistributedSampler out: DataLoader\(dataset, batch_size=N, shuffle=True\)",
    "epochs_by_range": r"the epoch's batches are used up: iterate over epochs by `for epoch in",
    "evaluates_within": r"evaluate\(\) belongs after the loop over batches",
    "accumulates_over_batches": r"without a backward\(\) outside step.accumulate\(\)",
    "leaves_a_batch": r"without a backward\(\)",
    "second_backward": r"a second time in a step",
    "torch_sync_batchnorm": r"elastic.sync_batchnorm\(model\)",
    "shards": r"virtual_shards=...\): a loop over shards",
}


@pytest.mark.parametrize("habit", REFUSED)
def test_what_cannot_be_kept_is_refused_by_name(habit: str, tmp_path: Path) -> None:
    log = tmp_path / "alone.log"
    status = Forked(outside_slurm(MALLETRAIN_TEST_DIR=str(tmp_path)), log, [SCRIPT, habit]).wait(180)
    text = log.read_text().replace("\n", " ")
    assert status == 1, text
    assert "ElasticError" in text
    assert_matches(REFUSED[habit], text)


def bodies_of(directory: Path, task: int) -> list[int]:
    path = directory / f"bodies-{task}"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def test_a_loop_over_a_loader_is_equal_over_changes_of_size(tmp_path: Path) -> None:
    """From one worker to three; one is killed within its fourth step; another joins. That step is repeated by the
    others, with the scheduler and the script's own count taken back."""
    static = run_alone(tmp_path / "static", SCRIPT, "usual")
    with running(tmp_path) as (daemon, pod):
        pod.spawn(daemon.url, 0, [SCRIPT, "usual"])
        wait_until(lambda: len(bodies_of(tmp_path, 0)) >= 2, 60, "two steps")
        pod.spawn(daemon.url, 1, [SCRIPT, "usual"])
        pod.spawn(daemon.url, 2, [SCRIPT, "usual"], TROUBLE="kill@backward#4")
        wait_until(lambda: len(bodies_of(tmp_path, 2)) >= 2, 60, "two steps of three")
        daemon.wait_world([0, 1])
        made = len(bodies_of(tmp_path, 0))
        wait_until(lambda: len(bodies_of(tmp_path, 0)) >= made + 1, 60, "a step of two")
        pod.spawn(daemon.url, 3, [SCRIPT, "usual"])
        daemon.wait_world([0, 1, 3])
        pod.finish(0)
    assert_equal(torch.load(tmp_path / "final.pt"), static, 1e-12)
    bodies = [bodies_of(tmp_path, task) for task in (0, 1)]
    assert any(len(set(each)) < len(each) for each in bodies), "the kill must have aborted a step on some worker"
    assert "statistical" not in pod.logs(), "what takes a step back is none of the script's operations"
