"""The actuator's bounds, whatever is ordered: without any I/O."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.config import parse
from malletrain.daemon.actuator_main import bounds_from, check_not_alterable
from malletrain.domain.decision import StartPilot
from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import task_of
from malletrain.slurm.actuator.bounds import ActuatorBounds, RateBudget, holds_node, start_refusals
from malletrain.slurm.actuator.server import AuditLog
from malletrain.slurm.formats.squeue import TaskRecord

COMMENT = "malletrain job 1"


def row(task: int, state: str, priority: int) -> TaskRecord:
    return TaskRecord(
        f"7_{task}", 7000 + task, 7, (task,), 1001, "ann", "harvest", "", "", state, "", 1, 60.0, False, 0, None,
        None, None, None, "0", "", "", "NO", None, priority,
    )  # fmt: skip


tasks = st.integers(0, 12)
rows = st.builds(row, tasks, st.sampled_from(["PENDING", "RUNNING", "COMPLETING", "COMPLETED"]), st.integers(0, 1))
starts = st.builds(
    lambda task, part, node, job: StartPilot(job, f"7_{task}" + (f"+{part}" if part else ""), f"n{node}", 60.0, ""),
    tasks, st.integers(0, 2), st.integers(0, 9), st.integers(1, 2),
)  # fmt: skip
bounds = st.builds(
    lambda most, include, exclude: ActuatorBounds(3600.0, most, frozenset(include), frozenset(exclude)),
    st.integers(0, 8),
    *[st.sets(st.builds("n{}".format, st.integers(0, 9)), max_size=5)] * 2,
)


@given(st.lists(starts, max_size=20), bounds, st.lists(rows, max_size=8), st.sets(tasks), st.integers(0, 9))
def test_no_order_widens_a_bound(
    wanted: list[StartPilot], bounds: ActuatorBounds, present: list[TaskRecord], announced: set[int], rate: int
) -> None:
    queue = {each.id: each for each in present}
    comments = {f"7_{task}": COMMENT for task in announced}
    refused = start_refusals(wanted, bounds, queue, comments, rate)
    allowed = {task_of(each.pilot) for each in wanted} - refused.keys()
    active = {name for name, each in queue.items() if holds_node(each)}
    assert len(allowed) <= rate
    assert not allowed or len(active | allowed) <= bounds.max_pilots
    assert allowed <= comments.keys()
    for each in wanted:
        if task_of(each.pilot) in allowed:
            assert not bounds.node_refusal(each.node)
    assert all(refused.values())


@given(st.lists(st.tuples(st.floats(0, 50), st.integers(0, 5)), max_size=40), st.integers(1, 10))
def test_a_rate_holds_in_any_window(steps: list[tuple[float, int]], count: int) -> None:
    budget, now, taken = RateBudget(count, 60.0), 0.0, []
    for seconds, wanted in steps:
        now += seconds
        number = min(wanted, budget.room(now))
        budget.take(number, now)
        taken += [now] * number
        assert sum(now - at < 60.0 for at in taken) <= count


def test_the_bounds_come_from_the_configuration() -> None:
    settings = parse(
        '[pool]\nmax_pilots = 7\ninclude = ["n[1-3]"]\nexclude = ["n2"]\n[pilot]\nmax_minutes = 30\n',
        "malletrain.toml",
    )
    nodes = frozenset({"n1", "n2", "n3"})
    assert bounds_from(settings) == ActuatorBounds(1800.0, 7, nodes, frozenset({"n2"}))


def test_a_configuration_that_others_can_change_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    folder.mkdir(mode=0o755)
    file = folder / "malletrain.toml"
    file.touch(mode=0o644)
    check_not_alterable(file)
    file.chmod(0o664)
    with pytest.raises(InvalidInput, match="chmod go-w"):
        check_not_alterable(file)
    file.chmod(0o644)
    folder.chmod(0o777)
    with pytest.raises(InvalidInput, match=f"may change {folder}"):
        check_not_alterable(file)
    if os.geteuid() == 0:
        folder.chmod(0o755)
        os.chown(file, 12345, -1)
        with pytest.raises(InvalidInput, match="chown root"):
            check_not_alterable(file)


def test_the_record_goes_on_where_logrotate_has_moved_it(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "acts", lambda: 0.0)
    (tmp_path / "acts").rename(tmp_path / "acts.1")
    log.write(({"event": "ordered"},))
    assert json.loads((tmp_path / "acts").read_text()) == {"at": "1970-01-01T00:00:00.000+00:00", "event": "ordered"}


def test_a_record_that_is_a_link_or_has_no_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for place in (tmp_path / "link", tmp_path / "none" / "acts"):
        with pytest.raises(InvalidInput, match=r"LOGS_DIRECTORY"):
            AuditLog(place, lambda: 0.0)
    assert not (tmp_path / "elsewhere").exists()
