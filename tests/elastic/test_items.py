"""Independent items: each has one committed result, whatever becomes of the processes that work on them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.elastic.data.item_folder import MAX_BATCHES, ItemFolder, ItemRange, committed_items
from malletrain.elastic.errors import ItemsError
from malletrain.elastic.items import Items
from malletrain.loop.membership.next_world import JobTerms
from tests.elastic.coordinator import (
    HERE,
    ROOT,
    Coordinator,
    Pod,
    another,
    kill_node,
    last_generation,
    outside_slurm,
    running,
)
from tests.waiting import wait_until

SCRIPT = str(HERE / "bag_of_items.py")
TERMS = JobTerms(restarts=True, items=True)

# --- the folder -----------------------------------------------------------------------------------------------


@given(st.integers(-5, 5), st.integers(1, 50), st.integers(1, 60))
def test_batches_have_each_item_once(first: int, count: int, batch: int) -> None:
    items = ItemRange(first, count, batch)
    assert [item for number in range(items.batches) for item in items.of(number)] == list(range(first, first + count))


@given(steps=st.lists(st.tuples(st.sampled_from(["claim", "commit", "release", "age", "take"]), st.integers(0, 2),
                                st.integers(0, 2)), max_size=40))  # fmt: skip
def test_a_batch_has_one_holder_and_one_result(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    """Three workers in any order; `age` makes one look lost, though it goes on: a frozen process that wakes."""
    path = tmp_path_factory.mktemp("bag")
    workers = [ItemFolder(path, ItemRange(0, 3, 1), 10.0) for _ in range(3)]
    holder: dict[int, int] = {}
    lost: set[int] = set()
    results: dict[int, bytes] = {}
    for what, who, number in steps:
        worker = workers[who]
        if what == "age":
            os.utime(worker._own, (1.0, 1.0))
            lost.add(who)
        elif what == "claim":
            assert worker.claim(number) == (number not in holder)
            holder.setdefault(number, who)
        elif what == "take":
            lost.discard(who)  # to look at the time it touches its file
            assert worker.take_over(number) == (holder.get(number) in lost)
            if holder.get(number) in lost:
                holder[number] = who
        elif what == "release":
            worker.release(number)
            if holder.get(number) == who:
                del holder[number]
        else:
            data = f"{who} of {len(results)}".encode()
            assert worker.commit(number, data) == (number not in results)
            results.setdefault(number, data)
        assert worker.claimed() == holder.keys()
        assert worker.committed() == results.keys()
        assert {n: worker.result(n) for n in results} == results
    assert committed_items(path) == (len(results), len(results))


def test_no_trace_is_left_of_claims_and_parts(tmp_path: Path) -> None:
    with Items(tmp_path, 10, batch=3) as items:
        for batch in items:
            assert batch.commit(b"x")
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert names == ["items.json", "results/0", "results/1", "results/2", "results/3"]


def test_a_later_run_goes_on_where_the_first_one_ended(tmp_path: Path) -> None:
    with contextlib.suppress(KeyError), Items(tmp_path, 6) as items:
        for batch in items:
            if len(list(tmp_path.glob("results/*"))) == 2:
                raise KeyError
            batch.commit(str(batch.items[0]).encode())
    with Items(tmp_path, 6) as items:
        assert len([batch.commit(str(batch.items[0]).encode()) for batch in items]) == 4
        assert [(list(found), result) for found, result in items.results()] == [
            ([n], str(n).encode()) for n in range(6)
        ]


def test_what_is_wrong_is_said_with_what_to_do(tmp_path: Path) -> None:
    for wrong, words in (
        (lambda: Items(tmp_path, 0), "range with"),
        (lambda: Items(tmp_path, range(0, 9, 2)), "range with"),
        (lambda: Items(tmp_path, 3, batch=0), "batch=0: "),
        (lambda: Items(tmp_path, 3, lease_s=0.5), "least 1 s"),
        (lambda: Items(tmp_path, MAX_BATCHES + 1).__enter__(), "give batch=2 or more"),
        (lambda: next(iter(Items(tmp_path, 3))), "`with` statement"),
    ):
        with pytest.raises(ItemsError, match=words):
            wrong()
    with Items(tmp_path, 3) as items:
        with pytest.raises(ItemsError, match=r"items 0 to 0 .*no result"):
            list(items.results())
        with pytest.raises(ItemsError, match=r"batch\.commit"):
            for _ in items:
                pass
    with pytest.raises(ItemsError, match=r"items 0 to 2 .*of 1: "):
        Items(tmp_path, 4).__enter__()
    assert not list((tmp_path / "workers").iterdir())


# --- processes ------------------------------------------------------------------------------------------------


class Diary:
    """What the script of these tests wrote down."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "diary"

    def of(self, word: str, who: str = "") -> list[int]:
        """The batches that the processes of task `who` began, or committed."""
        lines = [line.split() for line in self._path.read_text().splitlines()] if self._path.exists() else []
        return [int(number) for said, number, by in lines if said == word and by.startswith(who)]


def launch(daemon: Coordinator, pod: Pod, *tasks: int, finish_s: float = 5.0) -> None:
    for task in tasks:
        pod.launch(daemon.url, task, sys.executable, SCRIPT, str(finish_s))


def assert_it_leaves(daemon: Coordinator, pod: Pod) -> None:
    """Once it has said so, its task is requeued, as the daemon does."""
    daemon.wait_seen("worker_left")
    pod.kill(0, signal.SIGTERM)
    assert pod.wait(0, 90) == 143


def assert_each_once(directory: Path, killed: int = 0) -> None:
    """Of the workers `killed` each may have committed a batch that it did not come to write down."""
    commits = Counter(Diary(directory).of("commit"))
    assert set(commits.values()) == {1}
    assert len(commits) >= 60 - killed
    results = [(directory / "out" / "results" / str(number)).read_text() for number in range(60)]
    assert ",".join(results) == ",".join(str(item * item) for item in range(1, 301))


def test_each_item_is_committed_once_through_resizes_and_kills(tmp_path: Path) -> None:
    diary = Diary(tmp_path)
    (tmp_path / "pace").write_text("0.5")  # enough is left for the newcomer, and as the others are stopped
    for task in (0, 1):
        (tmp_path / f"long-{task}").touch()
    with running(tmp_path, TERMS, reconnect_s=1.0) as (daemon, pod):
        launch(daemon, pod, 0, 1, finish_s=60.0)
        daemon.wait_world([0, 1])
        wait_until(lambda: len(diary.of("begin")) == 2, 120, "both work")
        launch(daemon, pod, 2, finish_s=60.0)
        wait_until(lambda: len(diary.of("commit", "2.")) > 2, 120, "the newcomer works")
        (tmp_path / "long").touch()
        (tmp_path / "pace").unlink()
        kill_node(pod.processes[1].pid)
        daemon.wait_world([0, 2])
        daemon.leave(0)
        (tmp_path / "long-0").unlink()
        (tmp_path / "long").unlink()
        assert_it_leaves(daemon, pod)
        assert diary.of("begin", "0.") == diary.of("commit", "0."), "it finished its batch before it left"
        daemon.wait_world([2])
        assert pod.wait(2, 120) == 0, "it took over what the lost worker held"
        assert "100_1" in [event.pilot for event in daemon.seen("worker_lost")]
        assert [each["result"] for each in daemon.told("job_completed")] == [{"items": 300}]
        assert max(each["total"] for each in daemon.told("samples")) == 300
        assert all(each["pause_s"] == 0 for each in daemon.told("switched"))
    assert_each_once(tmp_path, killed=1)
    assert diary.of("all") == [0]


def test_all_whose_items_are_done_wait_for_the_daemon_to_hear_of_it(tmp_path: Path) -> None:
    diary = Diary(tmp_path)
    (tmp_path / "long").touch()
    with running(tmp_path, TERMS) as (daemon, pod):
        launch(daemon, pod, 0, 1)
        daemon.wait_world([0, 1])
        wait_until(lambda: len(diary.of("begin")) == 2, 120, "they work")
        generations = last_generation(daemon)
        daemon.stop()
        (tmp_path / "long").unlink()
        wait_until(lambda: len(diary.of("all")) == 2, 120, "the end of both scripts")
        with pytest.raises(subprocess.TimeoutExpired):
            pod.wait(0, 12)
        with another(generations, daemon.port, TERMS) as again:
            again.wait_seen("job_completed")
            assert {"items": 300} in [each["result"] for each in again.told("job_completed")]
            assert pod.wait(0, 90) == pod.wait(1, 90) == 0
    assert_each_once(tmp_path)


def test_a_batch_that_cannot_be_finished_is_given_back_at_once(tmp_path: Path) -> None:
    (tmp_path / "long").touch()
    diary = Diary(tmp_path)
    with running(tmp_path, TERMS) as (daemon, pod):
        launch(daemon, pod, 0, 1, finish_s=0.2)
        daemon.wait_world([0, 1])
        wait_until(lambda: len(diary.of("begin")) == 2, 120, "both work")
        daemon.leave(0)
        assert_it_leaves(daemon, pod)
        claims = tmp_path / "out" / "claims"
        assert [int(path.name) for path in claims.iterdir()] == diary.of("begin", "1.")
        assert not diary.of("commit")


def test_a_job_fails_when_nobody_gets_on(tmp_path: Path) -> None:
    """Each worker's script fails at the same item; all others are done first, but for one that is under way."""
    (tmp_path / "fail").touch()
    with running(tmp_path, TERMS) as (daemon, pod):
        launch(daemon, pod, 0, 1)
        said = daemon.wait_seen("job_failed").reason
        assert "with status 3, 3 times" in said
    done = Counter(Diary(tmp_path).of("commit"))
    assert max(done.values()) == 1 and 1 not in done and len(done) >= 58


def two_processes(directory: Path, finish_s: float = 5.0) -> list[subprocess.Popen[bytes]]:
    """The script twice, without a daemon."""
    env = outside_slurm(MALLETRAIN_TEST_DIR=str(directory))
    return [subprocess.Popen([sys.executable, SCRIPT, str(finish_s)], env=env) for _ in range(2)]


def test_several_processes_without_a_daemon_share_the_items(tmp_path: Path) -> None:
    assert [each.wait(180) for each in two_processes(tmp_path)] == [0, 0]
    assert_each_once(tmp_path)
    assert len(Diary(tmp_path).of("all")) == 2


def test_sigterm_ends_the_processes_after_their_batches(tmp_path: Path) -> None:
    (tmp_path / "pace").write_text("0.5")  # the items do not end before
    processes, diary = two_processes(tmp_path, 60.0), Diary(tmp_path)
    wait_until(lambda: len(diary.of("begin")) > 4, 120, "they work")
    for each in processes:
        each.terminate()
    assert [each.wait(90) for each in processes] == [143, 143]
    assert sorted(diary.of("begin")) == sorted(diary.of("commit"))
    assert not diary.of("all")
    assert not list((tmp_path / "out" / "claims").iterdir())


def test_the_how_to_shows_what_its_example_prints(tmp_path: Path) -> None:
    example = [sys.executable, str(ROOT / "examples" / "digits_predict.py"), str(tmp_path / "out")]
    printed = subprocess.run(
        example, env=outside_slurm(), capture_output=True, text=True, check=True, timeout=180
    ).stdout
    assert printed in (ROOT / "docs" / "how-to" / "independent-items.md").read_text()
