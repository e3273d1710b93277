"""Parts of the example search: images from a folder, and children that inherit weights."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import optuna
import pytest
import torch

from tests.study.tiny import ROOT, call, ended

#: Searches after Optuna's own examples, with parameters of a first trial.
OPTUNA = {
    "study_pytorch_simple": {
        "units": [16, 8],
        "dropout": [0.2, 0.3],
        "optimizer": "RMSprop",
        "lr": 0.01,
        "epochs": 1,
    },
    "study_lstm": {"width": 8, "layers": 1, "lr": 0.01, "batch_size": 128, "epochs": 1},
}


@pytest.mark.parametrize("name", OPTUNA)
def test_a_trial_of_a_search_after_optunas_examples_trains(name: str, tmp_path: Path) -> None:
    about = (ROOT / "examples" / f"{name}.py").read_text().split('"""')[1]
    assert "After optuna/optuna-examples, pytorch/" in about and "original: MIT" in " ".join(about.split())
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}; {name}.fit(**{OPTUNA[name]!r})"],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
@pytest.mark.alone
@pytest.mark.parametrize("name", OPTUNA)
def test_a_search_after_optunas_examples_runs(name: str, tmp_path: Path) -> None:
    for each in (f"{name}.py", "digits_data.py"):
        (tmp_path / each).write_text((ROOT / "examples" / each).read_text())
    done = call("run", tmp_path / f"{name}.py", "--trials", "3", "--local", "--concurrent", "1")
    assert done.returncode == 0, done.stderr
    assert sum(ended(tmp_path / f"{name}.py").values()) == 3


@pytest.fixture
def nas(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import study_nas

    yield study_nas
    for name in ("study_nas", "images_data", "digits_data"):
        sys.modules.pop(name, None)


def architecture(width: int, kind: str = "conv3") -> dict[str, object]:
    return {"width": width, "activation": "relu", "cells": [{"kind": kind, "skip": True, "pool": False}]}


def test_a_child_takes_over_what_has_the_same_name_and_shape(nas: ModuleType, tmp_path: Path) -> None:
    parent, like, other = nas.build(architecture(8)), nas.build(architecture(8, "conv5")), nas.build(architecture(4))
    file = tmp_path / "parent.pt"
    torch.save({"state": parent.state_dict()}, file)
    kernel = like.state_dict()["0.operation.weight"].clone()
    taken = nas.inherit(like, str(file))
    assert 0 < taken < len(parent.state_dict())
    assert torch.equal(like.state_dict()["0.around.weight"], parent.state_dict()["0.around.weight"])
    assert torch.equal(like.state_dict()["0.operation.weight"], kernel), "a kernel of another size stays"
    assert nas.inherit(other, str(file)) < taken


def test_the_parent_is_the_most_accurate_child_whose_weights_are_there(nas: ModuleType, tmp_path: Path) -> None:
    study = optuna.create_study(directions=["maximize", "minimize"])
    for number, accuracy in enumerate((0.5, 0.9, 0.95)):
        trial = study.ask()
        weights = tmp_path / f"{number}.pt"
        trial.set_user_attr("weights", str(weights))
        if number < 2:
            weights.touch()
        study.tell(trial, (accuracy, 100))
    assert nas.best_so_far(study.ask()) == str(tmp_path / "1.pt")
    assert nas.best_so_far(optuna.create_study(directions=["maximize", "minimize"]).ask()) == ""


def test_cifar_batches_are_read_and_another_folder_is_refused(nas: ModuleType, tmp_path: Path) -> None:
    for name in ("data_batch_1", "data_batch_2", "test_batch"):
        batch = {b"data": np.full((3, 3072), 255, dtype=np.uint8), b"labels": [0, 5, 9]}
        (tmp_path / name).write_bytes(pickle.dumps(batch))
    train, test, channels, classes = nas.images(str(tmp_path))
    assert (len(train), len(test), channels, classes) == (6, 3, 3, 10)
    pixels, label = train[4]
    assert pixels.shape == (3, 32, 32) and pixels.max() == 1 and label == 5
    assert nas.build(architecture(4), channels, classes)(pixels[None]).shape == (1, 10)
    with pytest.raises(SystemExit, match="holds neither"):
        nas.images(str(tmp_path / "nothing"))
