"""Time that was probably no idle time is found and left out; the machine's nodes are those that sinfo names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from malletrain.replay.cluster_trace import ClusterTrace, Window, cluster_trace
from malletrain.replay.likely_outages import likely_outages, without_outages
from malletrain.replay.traces import read_machine, read_trace
from malletrain.replay.traces.events import read_outages
from malletrain.replay.traces.trace import BUSY, IDLE
from tests.messages import says
from tests.replay.small import trace
from tests.replay.test_command import malletrain

DAY = 86_400
BEGIN = 1_700_000_000


def busy_log(path: Path, nodes: int, days: float, *, pause: tuple[float, float] = (0, 0), away: float = 0.0) -> Path:
    """Every node works 50 of 60 minutes, but for a maintenance from `pause[0]` to `pause[1]` days, and node 0, which
    is used from day `away` on."""
    rows = ["JobID|Start|End|NodeList"]
    job = 0
    for node in range(nodes):
        for hour in range(int(24 * days)):
            begin = hour * 3600 + 600 * (node % 3)
            if (pause[0] * DAY <= begin + 3000 and begin < pause[1] * DAY) or (node == 0 and begin < away * DAY):
                continue
            job += 1
            rows.append(f"{job}|{BEGIN + begin}|{BEGIN + begin + 3000}|c{node:03d}")
    path.write_text("\n".join(rows) + "\n")
    return path


def idle_share(machine: ClusterTrace) -> float:
    idle, _ = machine.counts
    return float(idle @ np.diff(np.append(machine.time, machine.end))) / (len(machine.nodes) * machine.seconds)


def test_a_maintenance_is_found_and_left_out(tmp_path: Path) -> None:
    usual = cluster_trace(read_trace(busy_log(tmp_path / "a", 20, 4)), Window())
    machine = cluster_trace(read_trace(busy_log(tmp_path / "b", 20, 4, pause=(2.0, 2.5))), Window())
    assert idle_share(machine) > idle_share(usual) + 0.08
    found = likely_outages(machine)
    assert [each.whole for each in found] == [True]
    assert found[0].end - found[0].start == pytest.approx(DAY / 2, abs=4000)
    left = without_outages(machine, found)
    assert idle_share(left) == pytest.approx(idle_share(usual), abs=0.02)
    assert likely_outages(usual) == ()


def test_a_node_that_came_later_is_found(tmp_path: Path) -> None:
    machine = cluster_trace(read_trace(busy_log(tmp_path / "a", 20, 8, away=5.0)), Window())
    found = likely_outages(machine)
    assert [(each.whole, each.name) for each in found] == [(False, "c000")]
    _, down = without_outages(machine, found).counts
    assert down[0] == 1
    assert down[-1] == 0


def test_what_is_left_out_was_idle_and_nothing_else_changes(tmp_path: Path) -> None:
    machine = cluster_trace(read_trace(busy_log(tmp_path / "a", 17, 8, pause=(2.0, 2.5), away=5.0)), Window())
    found = likely_outages(machine)
    left = without_outages(machine, found)
    lost = sum(each.node_seconds for each in found)
    total = machine.seconds * len(machine.nodes)
    assert (idle_share(machine) - idle_share(left)) * total == pytest.approx(lost, rel=1e-6)
    busy = [len(m.nodes) * m.seconds * (1 - idle_share(m)) - _down(m) for m in (machine, left)]
    assert busy[0] == pytest.approx(busy[1])


def _down(machine: ClusterTrace) -> float:
    _, down = machine.counts
    return float(down @ np.diff(np.append(machine.time, machine.end)))


def test_an_idle_machine_is_no_outage() -> None:
    rows = [(0.0, n, IDLE) for n in range(30)] + [(500.0, n, BUSY) for n in range(10)]
    assert likely_outages(trace(rows, 30, 20_000.0)) == ()


def test_a_node_named_only_in_outages_is_no_idle_node(tmp_path: Path) -> None:
    log = busy_log(tmp_path / "log", 3, 1)
    events = tmp_path / "events"
    events.write_text(f"NodeName|TimeStart|TimeEnd\nold7|{BEGIN}|{BEGIN + 600}\n")
    assert cluster_trace(read_trace(log), Window(), read_outages(events)).nodes == ("c000", "c001", "c002")


def test_sinfo_says_which_nodes_there_are(tmp_path: Path) -> None:
    log = busy_log(tmp_path / "log", 3, 1)
    said = tmp_path / "nodes.sinfo"
    said.write_text(
        "c001|batch*|(null)\nc002|batch*|(null)\nc002|long|(null)\ng1|gpu|gpu:a100:4(S:0-1)\ng2|gpu|gpu:4\n"
    )
    nodes = read_machine(said)
    machine = cluster_trace(read_trace(log), Window(machine=nodes))
    assert machine.nodes == ("c001", "c002", "g1", "g2")
    assert any(says(warning, "2 nodes", "no job") for warning in machine.warnings)
    assert any(says(warning, "1 nodes", "log", "machine") for warning in machine.warnings)


def test_numbers_that_outgrew_their_zeros_are_one_machine(tmp_path: Path) -> None:
    """sinfo writes `n[01-120]` for n01 to n99, n100 to n120."""
    said = tmp_path / "nodes.sinfo"
    said.write_text("n[01-120]|main*|(null)\n")
    machine = read_machine(said)
    assert len(machine) == 120
    assert {"n01", "n99", "n100", "n120"} <= machine
    log = tmp_path / "log"
    log.write_text(
        "JobID|Start|End|NodeList\n1|2026-10-01T00:00:00|2026-10-01T06:00:00|n[01-02]\n"
        "2|2026-10-01T08:00:00|2026-10-01T09:00:00|n[099-101,01-120]\n"
    )
    assert len(cluster_trace(read_trace(log), Window()).nodes) == 121  # n099, too


def test_a_size_completes_a_log_with_node_lists(tmp_path: Path) -> None:
    log = busy_log(tmp_path / "log", 3, 1)
    machine = cluster_trace(read_trace(log), Window(node_count=5))
    assert len(machine.nodes) == 5
    assert machine.nodes[:3] == ("c000", "c001", "c002")
    lost = cluster_trace(read_trace(log), Window(exclude=frozenset({"c001"})))
    assert lost.nodes == ("c000", "c002")


def test_the_answer_is_given_with_and_without(tmp_path: Path) -> None:
    log = busy_log(tmp_path / "log", 20, 4, pause=(2.0, 2.5))
    answers = {}
    for how in ("leave-out", "count"):
        done = malletrain("replay", str(log), "--mix", "imagenet:5", f"likely_outages={how}", "--json", "-")
        assert done.returncode == 0, done.stderr
        assert "Likely outages" in done.stderr
        answers[how] = json.loads(done.stdout)
    left, counted = answers["leave-out"], answers["count"]
    hours = left["trace"]["likely_outages"]["node_seconds"]
    assert counted["policies"]["auto"]["idle_node_seconds"] - left["policies"]["auto"]["idle_node_seconds"] == (
        pytest.approx(hours)
    )
    assert [each["trace"]["likely_outages"]["left_out"] for each in (left, counted)] == [True, False]


def test_a_configurations_node_lists_count(tmp_path: Path) -> None:
    log = busy_log(tmp_path / "log", 4, 1)
    (tmp_path / "malletrain.toml").write_text('[pool]\nkeep_idle = 0\nexclude = ["c[000-001]"]\n')
    done = malletrain("replay", str(log), "--config", str(tmp_path / "malletrain.toml"), "--json", "-")
    assert json.loads(done.stdout)["trace"]["nodes"] == 2
