"""Nodes of unlike GPUs on a real Slurm: classes, and who starts where."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from malletrain.loop.pilot_changes import _kinds
from malletrain.slurm.submission.submit import node_kinds, whole_gres
from scripts.lab import Change, Lab, LabConfig
from tests.slurm.harvesting import Harvesting
from tests.slurm_fixtures import LabFactory

pytestmark = pytest.mark.slurm


@pytest.fixture
def lab(release: str | None, lab_factory: LabFactory) -> Iterator[Lab]:
    lab = lab_factory(LabConfig(nodes=4, profile="fast", users=os.geteuid() == 0, release=release))
    yield lab
    lab.clear()


def unlike(lab: Lab) -> Change:
    """Two nodes of two GPUs, one whose GPU is in three slices (MIG), one without. Terminals stand for devices."""
    n = lab.nodes
    lines = [
        "AutoDetect=off",
        f"NodeName={n[0]},{n[1]} Name=gpu Type=a100 Flags=nvidia_gpu_env File=/dev/tty[0-1]",
        f"NodeName={n[2]} Name=gpu Type=1g.10gb Flags=nvidia_gpu_env File=/dev/tty[0-2]",
    ]
    gres = {n[0]: "gpu:a100:2", n[1]: "gpu:a100:2", n[2]: "gpu:1g.10gb:3"}
    return Change(
        nodes={node: {"Gres": each} for node, each in gres.items()},
        files={"gres.conf": "\n".join(lines) + "\n"},
        settings={"GresTypes": "gpu"},
    )


def test_unlike_gpus_are_classes_and_each_job_has_its_own(lab: Lab) -> None:
    n = lab.nodes
    with lab.changed(unlike(lab), restart=True):
        lab.wait_for(lambda: "a100:2" in lab.run(["sinfo", "-h", "-n", n[0], "-o", "%G"]).stdout, 90)
        harvest = Harvesting(lab)
        kinds = node_kinds(harvest.commands, "harvest")
        assert sorted((kind.nodes, kind.gres) for kind in kinds) == [
            (1, ""), (1, "gpu:1g.10gb:3"), (2, "gpu:a100:2"),
        ]  # fmt: skip
        assert whole_gres(kinds) == "", "they differ"
        classes = _kinds(harvest.snapshot(), "harvest", ())
        assert classes[n[0]] == classes[n[1]]
        assert len({classes[node] for node in n}) == 3
        assert "gpu:1g.10gb:3" in classes[n[2]]

        harvest.submit("--gres=gpu:a100:2", most=4, tasks=4)
        harvest.submit("--gres=gpu:1g.10gb:3", most=4, tasks=4, job=2)
        wanted = {1: {n[0], n[1]}, 2: {n[2]}}
        lab.wait_for(
            lambda: harvest.tick() and {job: harvest.running(job) for job in wanted} == wanted,
            90,
            f"nodes for each of them; {harvest.said()}",
        )
        lab.clear()
