"""Mallory puts files where Alice's checkpoints are looked for: nothing of his is run, read or overwritten."""

from __future__ import annotations

import io
import os
import pickle
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as _checkpoint
from torch import nn

from malletrain.domain.errors import InvalidInput
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.link.standalone_record import RECORD_VARIABLE, record
from malletrain.elastic.private_folder import PrivateFolder
from malletrain.elastic.state import checkpoint_store
from malletrain.elastic.state.checkpoint_store import SKELETON, STATE_FILE, CheckpointStore
from malletrain.elastic.state.tensor_file import write_tensors
from malletrain.elastic.state.training_state import Position, TrainingState
from malletrain.study.storage import open_storage
from malletrain.study.trial_spec import TrialSpec
from malletrain.wire.messages import Leaving
from tests.messages import naming

NOBODY = 65534

#: Exported without types.
_dcp: Any = _checkpoint


def state(step: int = 1) -> TrainingState:
    model = nn.Linear(3, 2)
    return TrainingState(model, [torch.optim.SGD(model.parameters())], Position(step=step))


class Poison:
    """Runs when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.mark,)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """What a poison that has run leaves."""
    return tmp_path / "it-ran"


def test_a_poisoned_checkpoint_of_an_earlier_release_is_not_run(tmp_path: Path, mark: Path) -> None:
    """The attack: torch.distributed.checkpoint unpickles its metadata."""
    checkpoint = tmp_path / "c" / "step-5"
    checkpoint.mkdir(parents=True, mode=0o700)
    (checkpoint / ".metadata").write_bytes(pickle.dumps(Poison(mark)))
    with pytest.raises(ElasticError, match=naming("no checkpoint")):
        CheckpointStore(tmp_path / "c").load(state())
    assert not mark.exists()
    with pytest.raises(Exception):  # noqa: B017 - to know that the poison works
        _dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata.keys()
    assert mark.exists()


@pytest.mark.parametrize("how", ["plain", "zipped"])
def test_a_poisoned_skeleton_is_not_run(tmp_path: Path, mark: Path, how: str) -> None:
    poison = pickle.dumps(Poison(mark))
    if how == "zipped":
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as file:
            file.writestr("archive/data.pkl", poison)
            file.writestr("archive/version", "3\n")
        poison = packed.getvalue()
    kept = CheckpointStore(tmp_path / "c").save(state())
    content, texts = checkpoint_store._content(state(), copied=True)
    content[SKELETON] = torch.frombuffer(bytearray(poison), dtype=torch.uint8)
    with (kept / STATE_FILE).open("wb") as out:
        write_tensors(out, content, texts)
    with pytest.raises(ElasticError, match=naming("no checkpoint")):
        CheckpointStore(tmp_path / "c").load(state())
    assert not mark.exists()


def his(tmp_path: Path) -> Path:
    """A folder with a checkpoint that Mallory likes Alice to load."""
    CheckpointStore(tmp_path / "his").save(state(99))
    return tmp_path / "his"


def refuses(store: CheckpointStore, words: str) -> None:
    for call in (store.load, store.save):
        with pytest.raises(ElasticError, match=words):
            call(state())


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "c").symlink_to(his(tmp_path))
    refuses(CheckpointStore(tmp_path / "c"), r"c .*symbolic link")
    CheckpointStore(tmp_path / "c").discard()
    assert (tmp_path / "his" / "step-99" / STATE_FILE).exists()


def test_links_in_the_folder_are_not_followed(tmp_path: Path) -> None:
    theirs = his(tmp_path)
    CheckpointStore(tmp_path / "c").save(state(1))
    (tmp_path / "c" / "step-7").symlink_to(theirs / "step-99")
    linked = tmp_path / "c" / "step-8"
    linked.mkdir(mode=0o700)
    (linked / STATE_FILE).symlink_to(theirs / "step-99" / STATE_FILE)
    found = CheckpointStore(tmp_path / "c").load(loaded := state())
    assert found == tmp_path / "c" / "step-1"
    assert loaded.position.step == 1
    CheckpointStore(tmp_path / "c").discard()
    assert (theirs / "step-99" / STATE_FILE).exists(), "links are removed, not what they lead to"


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o1777])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    CheckpointStore(tmp_path / "c").save(state())
    (tmp_path / "c").chmod(mode)
    refuses(CheckpointStore(tmp_path / "c"), r"other users .*c \(mode .*chmod go-w")


def test_a_file_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    (CheckpointStore(tmp_path / "c").save(state()) / STATE_FILE).chmod(0o620)
    with pytest.raises(ElasticError, match=r"other users .*state\.safetensors"):
        CheckpointStore(tmp_path / "c").load(state())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
@pytest.mark.parametrize("what", ["", "step-1", f"step-1/{STATE_FILE}"])
def test_what_belongs_to_another_user_is_refused(tmp_path: Path, what: str) -> None:
    CheckpointStore(tmp_path / "c").save(state())
    os.chown(tmp_path / "c" / what, NOBODY, -1)
    with pytest.raises(ElasticError, match=naming("another user")):
        CheckpointStore(tmp_path / "c").load(state())


def test_a_fifo_in_place_of_the_file_does_not_hold_the_worker(tmp_path: Path) -> None:
    kept = CheckpointStore(tmp_path / "c").save(state())
    (kept / STATE_FILE).unlink()
    os.mkfifo(kept / STATE_FILE)
    with pytest.raises(ElasticError, match=naming("regular file")):
        CheckpointStore(tmp_path / "c").load(state())


def test_what_is_made_is_for_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        CheckpointStore(tmp_path / "a" / "b").save(state())
    finally:
        os.umask(before)
    made = list((tmp_path / "a").rglob("*"))
    assert any(path.name == STATE_FILE for path in made)
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in [tmp_path / "a", *made])


def test_the_folder_that_was_checked_is_the_one_that_is_used(tmp_path: Path) -> None:
    """Between the check and the use of a path Mallory, who can write to the folder above, exchanges it."""
    (tmp_path / "c").mkdir(mode=0o700)
    with PrivateFolder.at(tmp_path / "c") as folder:
        (tmp_path / "c").rename(tmp_path / "aside")
        (tmp_path / "c").symlink_to(tmp_path)
        with open("file", "x", opener=folder.opener) as file:
            file.write("hers")
    assert (tmp_path / "aside" / "file").read_text() == "hers"
    assert not (tmp_path / "file").exists()


# --- Other places -------------------------------------------------------------------------------------------------


def test_a_trial_does_not_run_what_others_could_have_asked_for(tmp_path: Path) -> None:
    spec = TrialSpec("t", str(tmp_path / "trial"), "/a/script.py")
    spec.write()
    assert TrialSpec.read(tmp_path / "trial") == spec
    (tmp_path / "trial").chmod(0o770)
    with pytest.raises(ElasticError, match=naming("other users")):
        TrialSpec.read(tmp_path / "trial")
    with pytest.raises(InvalidInput, match=naming("other users")):
        spec.write()


def test_a_study_goes_on_from_its_users_own_journal_alone(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        open_storage(str(tmp_path / "a.journal"))
    finally:
        os.umask(before)
    open_storage(str(tmp_path / "a.journal"))
    (tmp_path / "a.journal").chmod(0o664)
    with pytest.raises(InvalidInput, match=naming("other users")):
        open_storage(str(tmp_path / "a.journal"))
    open_storage(str(tmp_path / "a.journal"), must_exist=True)  # to look at it


def test_a_record_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "record").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        record({RECORD_VARIABLE: str(tmp_path / "record")}, Leaving("x"))
    assert not (tmp_path / "other").exists()
