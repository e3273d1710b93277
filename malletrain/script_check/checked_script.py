"""Runs a training script for some steps as one worker of a check, and writes down what it arrives at.

`python -m malletrain.script_check.checked_script SCRIPT ARGUMENTS...` with a folder MALLETRAIN_CHECK_DIR that is the
user's alone. There, `secret` is what a worker presents to the coordinator. After each step the worker writes its
number to `step-NAME`, waits for the seconds in `pace`, and ends if it has made the steps in `stop-at`. As it ends it
writes `result-NAME.pt` and `end-NAME.json`.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from malletrain.elastic.data.random_seeds import seed_plain
from malletrain.elastic.data.sampler import Sampler
from malletrain.elastic.errors import ElasticError, Released
from malletrain.elastic.launch.failure_report import ENDED
from malletrain.elastic.launch.script_place import line_of
from malletrain.elastic.runtime import Runtime
from malletrain.elastic.session import Session
from malletrain.elastic.state.sharded_model import local
from malletrain.elastic.step import Step
from malletrain.script_check.compared_state import COPY, compared_state
from malletrain.script_check.random_draws import STATISTICAL, RandomDraws
from malletrain.wire import worker_client

#: A script that does not speak of `elastic` and has made so many optimizer steps without a session has none.
STEPS_WITHOUT_SESSION = 20

#: Environment variable: 1 in the run that shows what rounding alone does. It begins with parameters that differ by
#: `NUDGE_UNITS` units of rounding.
NUDGE_VARIABLE, NUDGE_UNITS = "MALLETRAIN_CHECK_NUDGE", 4.0

#: An epoch of a check has so many steps; more, if all epochs together were fewer than a check may take.
STEPS_OF_EPOCH, STEPS_OF_TRAINING = 10, 300

#: The name of a static run.
NAME_VARIABLE = "MALLETRAIN_CHECK_NAME"


class _Over(SystemExit):
    """The run has made its steps."""


class Recorder:
    """Follows one script through its steps.

    Args:
        folder: of the check.
        name: of this worker.
        script: the script's folder.
        speaks: whether the script's text speaks of `elastic`, so that a session may come after other training.
    """

    def __init__(self, folder: Path, name: str, script: Path, *, speaks: bool) -> None:
        self._speaks = speaks
        self._script = script
        self._folder = folder
        self._name = name
        self._session: Session | None = None
        self._first: dict[str, torch.Tensor] = {}
        self._draws = RandomDraws()

    def install(self) -> None:
        """Have the session's parts call this recorder."""
        made, begun, ended, finish = Session.__init__, Step.__enter__, Step.__exit__, Runtime.finish
        epochs, loaded = Session.epochs, Runtime.load_batch
        steps: list[None] = []

        def init(session: Session, *args: Any, **more: Any) -> None:
            made(session, *args, **more)
            self._session = session
            self._first = {}
            if os.environ.get(NUDGE_VARIABLE):
                _nudge(session)

        def short_epochs(session: Session, count: int) -> Iterator[int]:
            _shorten(session, count)
            return epochs(session, count)

        def load(runtime: Runtime) -> Any:
            batch = loaded(runtime)
            self._draws.begin()
            return batch

        def begin(step: Step) -> None:
            self._draws.end()
            if self._session is not None and not self._first:
                self._first = compared_state(self._session, sys._getframe(), self._script)
            begun(step)
            self._draws.begin()

        def end(step: Step, *error: Any) -> Any:
            self._draws.end()
            result = ended(step, *error)
            if error[0] is None:
                self._after_step()
            return result

        def finished(runtime: Runtime, *result: Any) -> None:
            self._write()
            (self._folder / f"finished-{self._name}").touch()
            finish(runtime, *result)

        def without_session(*_: Any) -> None:
            steps.append(None)
            if self._session is None and not self._speaks and len(steps) == STEPS_WITHOUT_SESSION:
                self.note("no session", "the script trains without an elastic.Session")
                raise _Over(1)

        # Wrapped for this process alone: a check must not need a line in the script.
        for owner, name, wrapper in (
            (Session, "__init__", init),
            (Session, "epochs", short_epochs),
            (Runtime, "load_batch", load),
            (Step, "__enter__", begin),
            (Step, "__exit__", end),
            (Runtime, "finish", finished),
        ):
            setattr(owner, name, wrapper)
        register_optimizer_step_post_hook(without_session)

    def note(self, kind: str, text: str) -> None:
        """Write down how the run ended."""
        path = self._folder / f"end-{self._name}.json"
        path.with_suffix(".part").write_text(json.dumps({"kind": kind, "text": text}))
        path.with_suffix(".part").rename(path)  # whoever reads it has all of it

    def _after_step(self) -> None:
        session = self._session
        if session is None:
            return
        done = session.steps_done
        step = self._folder / f"step-{self._name}"
        step.with_suffix(".part").write_text(str(done))
        step.with_suffix(".part").rename(step)
        time.sleep(self._number("pace", 0.0))
        if done >= self._number("stop-at", float("inf")):
            self._write()
            self.note("done", "")
            sys.stdout.flush()
            session._runtime.member.finishing = True
            raise _Over(0)

    def _number(self, name: str, default: float) -> float:
        try:
            return float((self._folder / name).read_text())
        except FileNotFoundError:
            return default

    def _write(self) -> None:
        session = self._session
        if session is None:
            return
        claim = session.info.equality
        additive = not claim.startswith(("statistical", "virtual shards"))
        # A copy that a step makes for itself, as of gradients, is none of what is kept.
        state = compared_state(session, sys._getframe(), self._script)
        last = {name: each for name, each in state.items() if name in self._first or not name.startswith(COPY)}
        # (What is not there as training begins, such as a best score, has moved from 0.)
        result = {
            "first": {name: self._first.get(name, torch.zeros_like(each)) for name, each in last.items()},
            "last": last,
            "step": session.steps_done,
            "epoch": session.epoch,
            "size": session.size,
            "untracked": _untracked(session),
            "equality": STATISTICAL if self._draws.found and additive else claim,
        }
        path = self._folder / f"result-{self._name}.pt"
        torch.save(result, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)


def _untracked(session: Session) -> list[str]:
    """Schedulers and scalers that are neither tracked nor held by one that is."""
    tracked = list(session._runtime.state.tracked.values())
    kinds = torch.optim.lr_scheduler.LRScheduler | torch.amp.GradScaler
    found = [each for each in gc.get_objects() if issubclass(type(each), kinds)]
    known = {*map(id, tracked), *(id(part) for each in [*tracked, *found] for part in _parts(each))}
    names = {type(each).__name__ for each in found if id(each) not in known}
    return [f"a {name} is not tracked: s.track(...) makes it part of the training state" for name in sorted(names)]


def _parts(thing: Any) -> Iterator[Any]:
    """What an object holds, as a chain of schedulers does."""
    for value in getattr(thing, "__dict__", {}).values():
        yield from value if isinstance(value, list | tuple) else [value]


def _shorten(session: Session, epochs: int) -> None:
    """Let epochs be over soon, so that the check meets what the script does at their ends, but not so soon that all
    are over before it is. (Those of an order that consists of batches stay: each epoch's end elsewhere.)"""
    sampler = session._runtime.sampler
    if not isinstance(sampler, Sampler) or epochs < 1 or sampler.batch_ends(0):
        return
    steps = max(STEPS_OF_EPOCH, -(-STEPS_OF_TRAINING // epochs))
    sampler.epoch_length = min(sampler.epoch_length, steps * session.info.batch_size)


def _nudge(session: Session) -> None:
    chance = torch.Generator().manual_seed(0)
    with torch.no_grad():
        trained = [each for each in session._runtime.model.parameters() if each.requires_grad]
        for parameter in map(local, trained):
            if parameter.is_floating_point() or parameter.is_complex():
                wide = torch.complex128 if parameter.is_complex() else torch.float64
                noise = torch.randn(parameter.shape, generator=chance, dtype=torch.float64)
                factor = 1 + NUDGE_UNITS * torch.finfo(parameter.dtype).eps * noise
                parameter.copy_(parameter.to(wide) * factor.to(parameter.device))


def _seed(number: int) -> None:
    """Seed the global generators, for scripts that seed nothing.

    The first worker and the static runs begin alike, so that they can be compared; workers that join do not, as in a
    job, so that what they draw for themselves is found."""
    torch.manual_seed(number)
    seed_plain(number)


def main(arguments: list[str]) -> None:
    """Run the script; exit status 0 once it has made its steps."""
    folder = Path(os.environ["MALLETRAIN_CHECK_DIR"])
    name = os.environ.get("SLURM_ARRAY_TASK_ID") or os.environ[NAME_VARIABLE]
    secret = folder / "secret"
    if "MALLETRAIN_URL" in os.environ:
        worker_client.credential_for = lambda url: secret.read_text()
    recorder = Recorder(
        folder,
        name,
        Path(arguments[0]).resolve().parent,
        speaks="elastic" in Path(arguments[0]).read_text(errors="replace").lower(),
    )
    recorder.install()
    _seed(int(name) if name.isdigit() else 0)
    sys.argv = arguments
    sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
    try:
        runpy.run_path(arguments[0], run_name="__main__")
        recorder.note("done", "")
    except _Over:
        raise
    except Released as error:
        # (Another worker's guard may have ended the job before this one's did.)
        _, found, text = error.reason.partition("ElasticError: ")
        recorder.note("refused" if found else "failed", text or f"a worker was let go: {error.reason}")
        raise
    except SystemExit as error:
        line = line_of(error.__traceback__)
        at = f" ({line})" if line else ""
        if error.code in (0, None):
            recorder.note("refused", f"{ENDED}{at}")
        else:
            recorder.note("failed", f"the script ends itself with status {error.code}{at}")
        raise
    except ElasticError as error:
        line = line_of(error.__traceback__)
        recorder.note("refused", f"{error} ({line})" if line else str(error))
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}".strip()
        line = line_of(error.__traceback__)
        recorder.note("failed", f"{text} ({line})" if line else text)
        traceback.print_exc()
        raise SystemExit(1) from error


if __name__ == "__main__":
    main(sys.argv[1:])
