"""Saved outputs: of every release in the recorded collection, of this project's own recordings, and noise."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.errors import InvalidInput
from malletrain.domain.snapshot import NodeState, SlurmState, Snapshot
from malletrain.slurm import read_files
from malletrain.slurm.formats import json_shapes, normalise, saved_tables
from tests.conftest import DATA
from tests.messages import naming

OUTPUTS = DATA / "slurm-outputs"
FIXTURES = Path(__file__).parent / "fixtures"
RECORDED = sorted(path for path in FIXTURES.iterdir() if path.is_dir()) if FIXTURES.is_dir() else []

VERSIONS = sorted(path.relative_to(OUTPUTS) for path in OUTPUTS.glob("slurm-web/*/*"))
PARTS = {"scontrol-show-node": "slurm-nodes", "squeue": "slurm-jobs", "reservations": "slurm-reservations"}


def folder_of(target: Path, **files: Path) -> Path:
    for name, source in files.items():
        ending = (".json" if ".json" in source.suffixes else ".txt") + (".gz" if source.suffix == ".gz" else "")
        shutil.copy(source, target / (name.replace("_", "-") + ending))
    return target


def counts(seen: Snapshot) -> dict[str, int]:
    return dict(Counter(node.state.value for node in seen.nodes))


@pytest.mark.data
@pytest.mark.parametrize(
    "version", sorted(path.relative_to(OUTPUTS) for path in OUTPUTS.glob("slurm-web/*/*")), ids=str
)
def test_slurmrestd_of_each_release(version: Path, tmp_path: Path) -> None:
    sources = {name: next((OUTPUTS / version).glob(f"{stem}.json*")) for name, stem in PARTS.items()}
    seen = read_files.snapshot(
        folder_of(tmp_path, **{name.replace("-", "_"): path for name, path in sources.items()})
    )
    documents = {name: _load(path) for name, path in sources.items()}
    assert {node.name for node in seen.nodes} == {node["name"] for node in documents["scontrol-show-node"]["nodes"]}
    for raw in documents["scontrol-show-node"]["nodes"]:
        node = seen.node[raw["name"]]
        assert node.cpus == raw["cpus"]
        assert set(raw["state"]) <= node.flags
        if "DRAIN" in raw["state"]:
            assert node.state is NodeState.DRAINED
    assert [job.raw_id for job in seen.jobs] == [job["job_id"] for job in documents["squeue"]["jobs"]]
    for job, raw in zip(seen.jobs, documents["squeue"]["jobs"], strict=True):
        assert job.state.value == raw["job_state"][0].lower()
        limit = raw["time_limit"]
        assert job.time_limit_s == (None if limit["infinite"] else limit["number"] * 60)
        if job.planned_nodes:
            assert job.start_time is not None
    assert [r.name for r in seen.reservations] == [r["name"] for r in documents["reservations"]["reservations"]]
    assert all(r.nodes and r.start < r.end for r in seen.reservations)


def _load(path: Path) -> dict[str, list[dict[str, Any]]]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        document: dict[str, list[dict[str, Any]]] = json.load(file)
    return document


@pytest.mark.data
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("rivos/sinfo_out.json", {"mixed": 1, "idle": 1, "allocated": 1, "down": 1}),
        ("fox/node_output.txt", {"mixed": 21, "allocated": 5, "idle": 12, "drained": 3, "reserved": 1}),
        ("gsi/sinfo.txt", None),
        ("osc-2020/sinfo.txt", None),
        ("meta-gcm/sinfo-output-for-structured.txt", {"idle": 2, "allocated": 1, "mixed": 6, "drained": 1}),
        ("meta-gcm/sample-sinfo-output.txt", {"drained": 1, "allocated": 2}),
    ],
)
def test_sinfo_of_real_sites(source: str, expected: dict[str, int] | None, tmp_path: Path) -> None:
    path = _given(source)
    seen = read_files.snapshot(folder_of(tmp_path, sinfo=path))
    if expected is None:  # one node a line: word for word
        lines = [line for line in path.read_text().splitlines() if line.strip(" |,")]
        assert len(seen.nodes) == len({line.replace(",", "|").split("|")[0] for line in lines})
        assert sum("idle" in line for line in lines) == counts(seen)["idle"]
    else:
        assert counts(seen) == expected


@pytest.mark.data
@pytest.mark.parametrize(
    ("source", "jobs", "state"),
    [
        ("gsi/squeue.txt", 41, None),
        ("osc-2020/squeue.txt", None, None),
        ("rivos/squeue_out.json", 2, None),
        ("fox/scontrol_resource1.txt", 3, SlurmState.PENDING),
        ("fox/scontrol_resource2.txt", 3, SlurmState.PENDING),
        ("meta-gcm/sample-squeue-output.txt", 5, None),
        ("meta-gcm/scontrol_out_multi_node.txt", 1, SlurmState.RUNNING),
        ("meta-gcm/scontrol_out_main_array_job.txt", 2, SlurmState.RUNNING),
    ],
)
def test_queues_of_real_sites(source: str, jobs: int | None, state: SlurmState | None, tmp_path: Path) -> None:
    seen = read_files.snapshot(folder_of(tmp_path, sinfo=_given("gsi/sinfo.txt"), squeue=_given(source)))
    assert seen.jobs
    if jobs is not None and source != "gsi/squeue.txt":
        assert len(seen.jobs) == jobs
    assert SlurmState.UNKNOWN not in {job.state for job in seen.jobs}
    if state is not None:
        assert {job.state for job in seen.jobs} == {state}


def _given(source: str) -> Path:
    path = OUTPUTS / source
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path


@pytest.mark.skipif(not RECORDED, reason="nothing recorded yet (scripts/record-fixtures)")
@pytest.mark.parametrize("folder", RECORDED, ids=lambda path: path.name)
def test_our_own_recordings_read_the_same_in_every_form(folder: Path, tmp_path: Path) -> None:
    """text and JSON of one cluster at one time, recorded by scripts/record-fixtures, say the same."""
    forms: list[Snapshot] = []
    for nodes in ("scontrol-show-node.txt", "sinfo.txt", "sinfo.json", "scontrol-show-node.json"):
        for queue in ("squeue.txt", "squeue.json"):
            if not (folder / nodes).exists() or not (folder / queue).exists():
                continue
            target = tmp_path / f"{nodes}-{queue}"
            target.mkdir()
            for name in (nodes, queue, "reservations.txt"):
                shutil.copy(folder / name, target / name)
            forms.append(read_files.snapshot(target))
    assert len(forms) >= 2
    expected = json.loads((folder / "expected.json").read_text())
    for seen in forms:
        assert {node.name: node.state.value for node in seen.nodes} == expected["nodes"]
        assert sorted((job.raw_id, job.state.value) for job in seen.jobs) == sorted(map(tuple, expected["jobs"]))
        assert [r.name for r in seen.reservations] == expected["reservations"]


def test_default_tables_by_their_headings() -> None:
    rows = saved_tables.nodes(
        "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n"
        "batch*       up   infinite      1 drain* n000\nbatch*       up   infinite      7   idle n[001-007]\n"
        "harvest      up   infinite      7   idle n[001-007]\n",
        "sinfo",
    )
    seen = normalise.snapshot(1.0, rows)
    assert counts(seen) == {"drained": 1, "idle": 7}
    assert seen.node["n003"].partitions == ("batch", "harvest")
    jobs = saved_tables.jobs(
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n"
        "         7_[0-9%2]     batch a job na    alice PD       0:00      1 (JobArrayTaskLimit)\n"
        "              1234     batch     wrap      bob  R       0:01      2 n[000-001]\n",
        "squeue",
    )
    assert [(job.id, job.state, job.reason, job.nodes) for job in jobs] == [
        ("7_[0-9%2]", "PD", "JobArrayTaskLimit", ""),
        ("1234", "R", "", "n[000-001]"),
    ]


def test_grouped_sinfo_of_recent_releases() -> None:
    document = {
        "sinfo": [
            {
                "node": {"state": ["IDLE", "PLANNED"]},
                "nodes": {"nodes": ["n1", "n2"]},
                "partition": {"name": "batch"},
                "cpus": {"maximum": 4, "allocated": 0},
                "memory": {"maximum": 100},
                "weight": {"maximum": {"set": True, "infinite": False, "number": 3}},
                "gres": {"total": "gpu:2"},
                "features": {"active": "x,y"},
                "reason": {"description": ""},
            }
        ]
    }
    seen = normalise.snapshot(1.0, json_shapes.nodes(document, "sinfo.json"))
    assert counts(seen) == {"planned": 2}
    node = seen.node["n2"]
    assert (node.cpus, node.memory_mib, node.weight, node.gres, node.features) == (4, 100, 3, "gpu:2", ("x", "y"))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("sinfo.json", b"{", "not JSON"),
        ("sinfo.json", b"[]", "object"),
        ("sinfo.json", b'{"nodes": [{"name": "n1"}]}', "or state"),
        ("sinfo.json", b'{"errors": [{"description": "no permission"}]}', "no permission"),
        ("sinfo.json", b'{"errors": [{"error": "Unable to contact"}], "nodes": []}', "Unable to contact"),
        ("sinfo.txt.gz", b"not gzip", "sinfo.txt.gz"),
        ("sinfo.txt", b"", "no node"),
        ("sinfo.txt", b"a b c\nd e f\n", "no column"),
        ("scontrol-show-node.txt", b"NodeName=n1\n", "a state"),
        ("scontrol-show-node.txt", b"NodeName=n1 State=IDLE\xff\n", None),
    ],
)
def test_bad_files_are_named(name: str, content: bytes, said: str | None, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    if said is None:
        assert read_files.snapshot(tmp_path).nodes[0].state is NodeState.UNKNOWN
        return
    with pytest.raises(InvalidInput, match=said) as caught:
        read_files.snapshot(tmp_path)
    assert name in str(caught.value) or said == "no node"


def test_no_folder_and_no_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=naming(tmp_path / "nowhere", "folder")):
        read_files.snapshot(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="no scontrol-show-node or sinfo"):
        read_files.snapshot(tmp_path)
    (tmp_path / "sinfo.txt").touch()
    (tmp_path / "sinfo.json").touch()
    with pytest.raises(InvalidInput, match="keep one"):
        read_files.snapshot(tmp_path)


_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=15,
)
_node = st.fixed_dictionaries(
    {"name": st.just("n1") | _json, "state": st.just(["IDLE"]) | _json},
    optional=dict.fromkeys(
        ("partitions", "cpus", "alloc_cpus", "weight", "reason", "features", "nodes", "node"), _json
    ),
)
_job = st.fixed_dictionaries(
    {"job_id": st.just(5) | _json, "job_state": st.just(["RUNNING"]) | _json},
    optional=dict.fromkeys(("array_job_id", "array_task_id", "array_task_string", "time_limit", "nodes"), _json),
)


@given(st.lists(_node, max_size=3), st.lists(_job, max_size=3))
def test_any_json_is_read_or_refused_in_words(nodes: list[object], jobs: list[object]) -> None:
    for parse in (
        lambda: json_shapes.nodes({"nodes": nodes}, "f"),
        lambda: json_shapes.nodes({"sinfo": nodes}, "f"),
        lambda: json_shapes.jobs({"jobs": jobs}, "f"),
        lambda: json_shapes.reservations({"reservations": nodes}, "f"),
        lambda: normalise.snapshot(
            1.0, json_shapes.nodes({"nodes": nodes}, "f"), json_shapes.jobs({"jobs": jobs}, "f"), task_by_task=""
        ),
    ):
        try:
            parse()
        except InvalidInput as error:
            assert str(error)


@given(st.text(max_size=200))
def test_any_table_is_read_or_refused_in_words(noise: str) -> None:
    for parse in (saved_tables.nodes, saved_tables.jobs):
        try:
            assert isinstance(parse(noise, "f"), list)
        except InvalidInput as error:
            assert str(error)
