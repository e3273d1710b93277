"""A replay over nodes of several classes: by class, with the account kept as ever."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import Curve, ResizeCosts
from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.job_files import read_jobs
from malletrain.replay.options import Options
from malletrain.replay.policy_inputs import NodeClass, parse_node_class
from malletrain.replay.result import Result
from malletrain.replay.run import replay
from malletrain.replay.sizer import parse_policy
from malletrain.replay.traces.trace import IDLE
from malletrain.replay.workload import TrainingJob
from malletrain.sizing.problem import OnClasses
from tests.messages import naming
from tests.replay.small import job, trace, traces, workloads
from tests.sizing.problems import examples

TWO = (NodeClass("new", 0, 4), NodeClass("old", 4, 8))


def run(of: ClusterTrace, jobs: list[TrainingJob], classes: tuple[NodeClass, ...], name: str = "auto") -> Result:
    found = replay(of, jobs, [parse_policy(name, 300.0)], Options(classes=classes), processes=1)
    return found.results[name]


def steady(seconds: float = 3600.0) -> ClusterTrace:
    return trace([(0.0, n, IDLE) for n in range(8)], 8, seconds)


def on(new: float, old: float, spans: bool = False) -> OnClasses:
    return OnClasses({"new": Curve.linear(8, new), "old": Curve.linear(8, old)}, spans=spans)


def test_each_class_goes_to_the_job_that_gains_most_by_it() -> None:
    jobs = [
        replace(job(1, curve=Curve.linear(8, 10.0), most=4), on_classes=on(40.0, 10.0)),
        replace(job(2, curve=Curve.linear(8, 10.0), most=4), on_classes=on(11.0, 10.0)),
    ]
    found = run(steady(), jobs, TWO)
    assert found.samples == pytest.approx([4 * 40.0 * 3600, 4 * 10.0 * 3600])
    assert found.totals.speedup == pytest.approx(found.totals.ideal, rel=1e-6)
    for name in ("equal", "greedy", "matching"):
        assert run(steady(), jobs, TWO, name).samples.sum() <= found.samples.sum() + 1e-6


def test_a_job_that_spans_classes_has_shares_by_speed() -> None:
    alone = job(1, curve=Curve.linear(8, 10.0), most=8)
    one = run(steady(), [replace(alone, on_classes=on(20.0, 10.0))], TWO)
    both = run(steady(), [replace(alone, on_classes=on(20.0, 10.0, spans=True))], TWO)
    assert one.samples[0] == pytest.approx(4 * 20.0 * 3600)
    assert both.samples[0] == pytest.approx((4 * 20.0 + 4 * 10.0) * 3600)


def test_classes_that_are_alike_train_as_one_where_jobs_may_span_them() -> None:
    curve = Curve(((1, 10.0), (8, 70.0)))
    plain = [job(n, curve=curve, most=8, costs=ResizeCosts(5, 1, 1)) for n in (1, 2)]
    alike = OnClasses({"new": curve, "old": curve}, spans=True)
    by_class = run(steady(), [replace(each, on_classes=alike) for each in plain], TWO)
    by_count = replay(steady(), plain, [parse_policy("auto", 300.0)], Options(), processes=1).results["auto"]
    assert by_class.samples.sum() == pytest.approx(by_count.samples.sum(), rel=1e-6)


@examples(25)
@given(traces(max_nodes=6), workloads())
def test_the_account_is_kept_whatever_comes(of: ClusterTrace, jobs: list[TrainingJob]) -> None:
    nodes = len(of.nodes)
    if nodes < 2:
        return
    found = run(of, jobs, (NodeClass("new", 0, nodes // 2, 2.0), NodeClass("old", nodes // 2, nodes)))
    totals = found.totals
    assert totals.occupied <= totals.idle + 1e-6
    parts = totals.productive + totals.stalled + totals.activating
    assert parts == pytest.approx(totals.occupied, abs=1e-3)
    assert totals.speedup <= totals.ideal * (1 + 1e-6) + 1e-6
    units = np.array([max(each.curve.throughput(1), 1e-9) for each in jobs])
    assert (found.samples >= -1e-9).all() and np.isfinite(found.samples / units).all()


def test_jobs_say_how_they_run_on_classes_in_their_file(tmp_path: Path) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text(
        '[[job]]\nname="a"\nmax_nodes=4\nspans=true\n[job.class_min]\nold=2\n[job.curves.new]\n1=40.0\n4=150.0\n'
        "[job.curves.old]\n1=10.0\n4=35.0\n"
    )
    (each,) = read_jobs(file, ResizeCosts())
    assert each.on_classes is not None and each.on_classes.spans and each.on_classes.min == {"old": 2}
    assert each.curve == each.on_classes.curves["old"], "speed-ups count by its slowest class"
    for wrong in ("spans=1\n", "curves=3\n"):
        file.write_text(f'[[job]]\nname="a"\nmodel="vgg16"\n{wrong}')
        with pytest.raises(InvalidInput):
            read_jobs(file, ResizeCosts())


def test_classes_are_read_and_what_they_are_not_for_is_refused() -> None:
    assert parse_node_class("a100=0:64@3") == NodeClass("a100", 0, 64, 3.0)
    for text in ("a100", "a100=5:5", "a100=0:4@0", "=0:4"):
        with pytest.raises(InvalidInput, match=r"replay\.node_class"):
            parse_node_class(text)
    for classes in ((NodeClass("new", 0, 8),), (NodeClass("a", 0, 5), NodeClass("b", 4, 8)), TWO[:1] * 2,
                    (NodeClass("a", 0, 3), NodeClass("b", 4, 8))):  # fmt: skip
        with pytest.raises(InvalidInput, match=r"replay\.node_class"):
            run(steady(), [job(1)], classes)
    with pytest.raises(InvalidInput, match=naming("classes")):
        run(steady(), [job(1)], TWO, "one-node")
