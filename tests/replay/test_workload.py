"""Workloads: files of two kinds, mixes by name; what is wrong is named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.errors import InvalidInput, MalletrainError
from malletrain.domain.job import ResizeCosts
from malletrain.replay.job_files import read_jobs
from malletrain.replay.workload import IMAGENET, MIXES, POLLUX_SAMPLES, mix, shifted

COSTS = ResizeCosts(2.0, 18.0, 12.0)


def write(tmp_path: Path, text: str, name: str = "jobs.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_own_columns(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "job,model,curve,submit_time,min_nodes,max_nodes,total_samples,weight,rescale_up_s,rescale_down_s\n"
        "a,vgg16,,2021-02-10T20:21:15,1,32,1e6,2,17,11\nb,,1:10;4:30,60,,,,,,\n",
    )
    a, b = read_jobs(path, COSTS)
    assert a.curve == IMAGENET["vgg16"]
    assert (a.job.max_nodes, a.job.total_samples, a.job.weight, a.costs.grow_s, a.costs.activate_s) == (
        32,
        1e6,
        2,
        17,
        2,
    )
    assert (b.curve.points, b.job.max_nodes, b.job.submitted_at, b.costs) == (((1, 10.0), (4, 30.0)), 4, 60.0, COSTS)
    assert [each.job.submitted_at for each in shifted([a, b], 2e9)] == [2e9, 2e9 + 60]


def test_toml(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '[[job]]\nmodel = "resnet18"\ncount = 2\nmax_nodes = 16\nsizes = [1, 4, 16]\n'
        '[[job]]\nname = "mine"\ncurve = {1 = 5, 8 = 30}\nsubmit = 2021-02-10T00:00:00Z\ngrow_s = 1\n',
        "jobs.toml",
    )
    jobs = read_jobs(path, COSTS)
    assert [each.job.name for each in jobs] == ["resnet18-1", "resnet18-2", "mine-3"]
    assert jobs[0].job.sizes == (1, 4, 16)
    assert (jobs[2].job.submitted_at, jobs[2].costs.grow_s) == (1612915200.0, 1.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("job,model\na,unknown\n", r":2: model 'unknown'"),
        ("model,max_nodes\nvgg16,0\n", r":2: max_nodes: .* 1"),
        ("model,max_nodes\nvgg16,2.5\n", r":2: max_nodes: .*integer"),
        ("model,min_nodes,max_nodes\nvgg16,5,2\n", r":2: max_nodes 2 is below min_nodes 5"),
        ("model,total_samples\nvgg16\n", r":2: 1 fields .* 2"),
        ("curve\n1:2;1:3\n", r":2: curve: .*rise"),
        ("curve\n1;2\n", r":2: curve: .*'1;2'"),
        ("a,b\n1,2\n", r":1: .*curve"),
        ("model\n", "no job"),
    ],
)
def test_faults_are_named_with_their_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        read_jobs(write(tmp_path, text), COSTS)


@pytest.mark.parametrize(
    ("text", "said"),
    [("x = [", "(at end"), ("x = 1", "no [[job]] table"), ("[[job]]\nspeed = 1", "speed: Extra inputs"),
     ("[[job]]\nname = 'a'", "a curve"), ("[[job]]\ncurve = {a = 1}", "curve.a")],
)  # fmt: skip
def test_faults_of_toml(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_jobs(write(tmp_path, text, "jobs.toml"), COSTS)
    assert said in str(caught.value)


@given(st.text(alphabet="model,curve\n1:2;vgg6\"' x-.", max_size=80))
def test_no_text_breaks_the_reader(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "jobs.csv"
    path.write_text("model,curve,max_nodes\n" + text)
    try:
        jobs = read_jobs(path, COSTS)
    except MalletrainError as error:
        assert str(path) in str(error)
    else:
        assert all(each.job.min_nodes <= each.job.max_nodes for each in jobs)


def test_mixes() -> None:
    jobs = mix("imagenet:9,nas:2", COSTS, seed=1)
    assert [each.job.id for each in jobs] == list(range(1, 12))
    assert len({each.curve for each in jobs[:7]}) == 7
    assert jobs == mix("imagenet:9,nas:2", COSTS, seed=1) != mix("imagenet:9,nas:2", COSTS, seed=2)
    for name in MIXES:
        assert len(mix(name, COSTS)) == 1
    for bad in ("", "x:1", "imagenet:0", "imagenet:-1", "imagenet:1e3", "imagenet:99999999"):
        with pytest.raises(InvalidInput):
            mix(bad, COSTS)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "count"),
    [("bftrainer/jobs_imagenet_1001.csv.gz", 1001), ("bftrainer/jobs_hps_shufflenet_10.csv.gz", 10)],
)  # fmt: skip
def test_published_workloads(data_dir: Path, name: str, count: int) -> None:
    assert len(read_jobs(data_dir / name, COSTS)) == count


@pytest.mark.data
def test_the_shipped_curves_are_the_measured_ones(data_dir: Path) -> None:
    rows = (data_dir / "bftrainer" / "scaling_imagenet.csv").read_text().splitlines()[1:]
    for row in rows:
        model, nodes, rate, _ = row.split(",")
        assert IMAGENET[model].throughput(int(nodes)) == float(rate)
    assert set(POLLUX_SAMPLES) == {"bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"}
