"""A worker that is frozen, killed or asked to end at each stage: the others train on, to the same result."""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from tests.elastic.coordinator import Coordinator, Pod, running
from tests.elastic.digits import EPOCHS, SCRIPT, Static, diary, slow, wait_lines
from tests.waiting import wait_until

#: As a newcomer: what it does before it has a part in a world. A daemon does not wait for one that is not warm.
JOINING = ["rehearsal", "warm", "build", "roll", "take", "step"]
#: As a member from the beginning; `step` is its first one.
SERVING = ["step", "backward", "sums", "backward#9", "sums#9", "build#2", "evaluation", "evaluation#2"]
QUICK = {("kill", "take"), ("freeze", "step"), ("kill", "sums#9"), ("term", "evaluation")}


def cases(places: list[str]) -> list[ParameterSet]:
    """The quick ones by default; all of them in the nightly run."""
    return [
        pytest.param(kind, place, id=f"{kind}-{place}", marks=[] if (kind, place) in QUICK else pytest.mark.nightly)
        for place in places
        for kind in ("freeze", "kill", "term")
    ]


def train_to_the_end(pod: Pod, daemon: Coordinator, tasks: list[int], static: Static) -> None:
    """The rest train on; then quickly to the end, which is that of a static run."""
    daemon.wait_world(tasks, 90)
    wait_lines(pod.directory, 3 * len(tasks), 60, "steps of the others")
    pod.finish(*tasks)
    daemon.wait_seen("job_completed")
    static.assert_like(pod.directory)


def options(directory: Path) -> list[str]:
    return [*slow(directory), "--evaluate"]


@pytest.mark.parametrize(("kind", "place"), cases(JOINING))
def test_a_newcomer_in_trouble(tmp_path: Path, static: Static, kind: str, place: str) -> None:
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, (0, 1), [SCRIPT, *options(tmp_path)])
        pod.spawn(daemon.url, 2, [SCRIPT, *options(tmp_path)], TROUBLE=f"{kind}@{place}")
        if kind != "freeze":
            assert pod.wait(2) == {"kill": -9, "term": 143}[kind]
        elif place not in ("rehearsal", "warm"):  # one that is not warm yet is waited for, by nobody
            daemon.wait_seen("worker_lost")
        train_to_the_end(pod, daemon, [0, 1], static)
        assert {event.pilot for event in daemon.seen("worker_lost")} <= {"100_2"}


@pytest.mark.parametrize(("kind", "place"), cases(SERVING))
def test_a_member_in_trouble(tmp_path: Path, static: Static, kind: str, place: str) -> None:
    """Members wait for each other to begin; with `build` a newcomer makes them do it, and the third one comes later:
    where it found two others training, its second group is the newcomer's."""
    builds = place.startswith("build")
    given = options(tmp_path) if builds else [*options(tmp_path), "--wait-for", "3"]
    with running(tmp_path) as (daemon, pod):
        for task in range(3):
            if task == 2 and builds:
                daemon.wait_world([0, 1])
            pod.spawn(daemon.url, task, [SCRIPT, *given], 0, **({"TROUBLE": f"{kind}@{place}"} if task == 2 else {}))
        rest = [0, 1]
        if builds:
            daemon.wait_world([0, 1, 2])
            pod.spawn(daemon.url, 3, [SCRIPT, *given])
            rest.append(3)
        if kind != "freeze":
            assert pod.wait(2) == {"kill": -9, "term": 143}[kind]
        train_to_the_end(pod, daemon, rest, static)
        gone = {event.pilot for event in daemon.seen("worker_lost")}
        assert gone <= {"100_2"}
        assert kind != "term" or not gone, "one that is asked to end leaves in order"


@pytest.mark.parametrize("kind", ["kill", pytest.param("freeze", marks=pytest.mark.nightly)])
def test_two_donors_in_trouble_one_after_the_other(tmp_path: Path, static: Static, kind: str) -> None:
    """Each while it gives its state to the newcomer, who then gets it from the third."""
    with running(tmp_path) as (daemon, pod):
        for task, more in enumerate(({"TROUBLE": f"{kind}@give#3"}, {"TROUBLE": f"{kind}@give"}, {})):
            pod.spawn(daemon.url, task, [SCRIPT, *options(tmp_path)], 0, **more)
            daemon.wait_world(list(range(task + 1)))
        pod.spawn(daemon.url, 3, [SCRIPT, *options(tmp_path)])
        train_to_the_end(pod, daemon, [2, 3], static)
        assert {event.pilot for event in daemon.seen("worker_lost")} == {"100_0", "100_1"}


def test_newcomers_whose_first_step_breaks_are_newcomers_again(tmp_path: Path, static: Static) -> None:
    """The state comes to both in a step that one of them is killed in."""
    with running(tmp_path) as (daemon, pod):
        pod.spawn(daemon.url, 0, [SCRIPT, *options(tmp_path)])
        wait_until(lambda: len(diary(tmp_path)) > 3, 60, "steps")
        waiting = [SCRIPT, *options(tmp_path), "--wait-for", "2"]
        pod.spawn(daemon.url, 1, waiting)
        pod.spawn(daemon.url, 2, waiting, TROUBLE="kill@backward")
        assert pod.wait(2) == -9
        train_to_the_end(pod, daemon, [0, 1], static)


@pytest.mark.parametrize("trouble", ["kill@entered#2", pytest.param("freeze@give", marks=pytest.mark.nightly)])
def test_the_only_one_that_has_the_state_is_lost_as_it_gives_it(tmp_path: Path, static: Static, trouble: str) -> None:
    """Before its next step: the newcomer has all of it, and goes on. Or before that: it has nothing, and begins."""
    with running(tmp_path) as (daemon, pod):
        pod.spawn(daemon.url, 0, [SCRIPT, *options(tmp_path)], TROUBLE=trouble)
        wait_until(lambda: len(diary(tmp_path)) > 8, 60, "steps")
        pod.spawn(daemon.url, 1, [SCRIPT, *options(tmp_path)])
        given = trouble.startswith("kill")
        if given:
            assert pod.wait(0) == -9
        train_to_the_end(pod, daemon, [1], static)
    made = [line["step"] for line in diary(tmp_path) if "step" in line]
    assert given == (made == list(range(1, len(made) + 1)))


@pytest.mark.parametrize(
    ("workers", "place"),
    [
        (2, "evaluation"),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in ((1, "evaluation"), (1, "evaluation#2"))),
    ],
)
def test_all_asked_to_end_in_an_evaluation(tmp_path: Path, static: Static, workers: int, place: str) -> None:
    """The state is kept, and the evaluation is done again by those who go on."""
    given = [*options(tmp_path), "--wait-for", str(workers)]
    with running(tmp_path) as (daemon, pod):
        for task in range(workers):
            pod.spawn(daemon.url, task, [SCRIPT, *given], TROUBLE=f"term@{place}")
        assert [pod.wait(task) for task in range(workers)] == [143] * workers
        assert not daemon.seen("worker_lost")
        (saved,) = [each["saved"] for each in daemon.told("worker_left") if each.get("saved")]
        assert Path(saved).exists()
        pod.spawn(daemon.url, 0, [SCRIPT, *options(tmp_path)], restart=1)
        train_to_the_end(pod, daemon, [0], static)
    assert {line["evaluated"] for line in diary(tmp_path) if "evaluated" in line} == set(range(int(EPOCHS)))


def test_training_ends_while_a_group_is_in_the_making(tmp_path: Path, static: Static) -> None:
    """The last worker ends well, and is not aborted with the thread that waits for a newcomer."""
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, (0,), [SCRIPT, *options(tmp_path)])
        made = len(daemon.seen("generation"))
        pod.spawn(daemon.url, 1, [SCRIPT, *options(tmp_path)], TROUBLE="freeze@build")
        wait_until(lambda: len(daemon.seen("generation")) > made, 60, "a plan with the newcomer")
        pod.finish(0)
    static.assert_like(tmp_path)


@pytest.mark.parametrize("form", [(), ("--body",)], ids=["block", "body"])
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_asked_to_end_in_the_middle_of_a_long_step(
    tmp_path: Path, static: Static, workers: int, form: tuple[str, ...]
) -> None:
    """The step is given up, by this worker alone; nothing of it is left."""
    given = [*options(tmp_path), "--wait-for", str(workers), *form]
    last = workers - 1
    with running(tmp_path) as (daemon, pod):
        for task in range(workers):
            trouble = {"TROUBLE": "term@backward#5", "LONG": "-1000"} if task == last else {}
            pod.spawn(daemon.url, task, [SCRIPT, *given], 0, **trouble)
        assert pod.wait(last) == 143
        made = [line["step"] for line in diary(tmp_path) if line["task"] == str(last)]
        assert made == [1, 2, 3, 4], "the fifth is not committed by the one that gave it up"
        assert not daemon.seen("worker_lost")
        if workers == 1:
            pod.spawn(daemon.url, 0, [SCRIPT, *options(tmp_path)], restart=1)
        train_to_the_end(pod, daemon, [0], static)
