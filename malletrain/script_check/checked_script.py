"""Runs a training script for some steps as one worker of a check, and writes down what it arrives at.

Its environment names a folder MALLETRAIN_CHECK_DIR that is the user's alone. There, `secret` is what a worker
presents to the coordinator. A worker that joins begins once `go-NAME` is there. At two chosen steps of its first
session, and at one of the second, a worker writes `held-NAME` and waits until `stage` has a higher number. After the
epoch in which it has made enough steps it lets the script go on to its own end. As it ends it writes
`result-NAME.pt` and `end-NAME.json`.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import random
import runpy
import sys
import time
import traceback
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from malletrain.elastic.data.random_seeds import seed_plain
from malletrain.elastic.data.sampler import Sampler, Share
from malletrain.elastic.errors import ElasticError, Released
from malletrain.elastic.launch.failure_report import ENDED, line_of
from malletrain.elastic.runtime import Runtime
from malletrain.elastic.session import Session
from malletrain.elastic.step import Step
from malletrain.script_check.compared_state import compared_state, is_own, own_values
from malletrain.wire import worker_client

#: A script that does not speak of `elastic` and has made so many optimizer steps without a session has none.
STEPS_WITHOUT_SESSION = 20

#: The run that shows what rounding alone does: it begins with parameters that differ by so many units of rounding.
NUDGED, NUDGE_UNITS = "nudged", 4.0

#: An epoch of a check has so many steps; more, if all epochs together had fewer than a check takes. One that is not
#: over after twice as many as a check takes is left.
STEPS_OF_EPOCH, STEPS_OF_TRAINING = 10, 30

#: In the names of what an earlier session of a script has arrived at, before the session's number.
OF_SESSION = " (session "

#: Ends the names of what a script has changed between its last epoch and its end.
AT_THE_END = " at the script's end"

#: Environment variable: the epoch to begin with.
EPOCH_VARIABLE = "MALLETRAIN_CHECK_EPOCH"

#: What is claimed of a script whose steps draw, in the words of `Session.equality`.
STATISTICAL = (
    "statistical: like a static run, not equal to it, because a step draws random numbers (noise, mixup, a sampled "
    "latent), which depend on the workers. Where equality matters: virtual_shards=N, or random numbers drawn in the "
    "data set's __getitem__."
)

#: Workers that join have connected to the one that waits for them after so long at most.
JOIN_S = 150.0

#: The workers that join, the one that joins a later session, and those of a static run of two.
JOINERS, LATE, PAIR = ("1", "2"), "3", ("10", "11")

#: The last step at which workers wait in the first session, and the one in the second.
LAST_STAGE, LATER_STAGE = 1, 2

#: The run that writes down which lines of the script it executes.
TRACED_RUN = "traced"

#: The name of a static run.
NAME_VARIABLE = "MALLETRAIN_CHECK_NAME"


def put(path: Path, text: str) -> None:
    """Write a file of which a reader has all or nothing."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.rename(path)


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
        self._first_own: dict[str, torch.Tensor] = {}
        self._result: dict[str, Any] = {}
        self._sessions = 0  #: that the script has made
        self._earlier: dict[int, dict[str, Any]] = {}  #: results of those that are over, by number
        self._draws = RandomDraws()
        self._first_epoch = 0
        self._begun: int | None = None  #: steps that training had made as this check began
        self._total, self._in_epochs, self._evaluated = STEPS_OF_TRAINING, False, False
        self.finished = False

    def install(self) -> None:
        """Have the session's parts call this recorder."""
        made, begun, entered, ended = Session.__init__, Step.begin, Step.__enter__, Step.end
        epochs, evaluate, finish = Session.epochs, Session.evaluate, Runtime.finish
        steps: list[None] = []

        def init(session: Session, *args: Any, **more: Any) -> None:
            made(session, *args, **more)
            if self._first:  # (One that this worker has passed over has no result.)
                if not self._result:  # (One that has not ended, which a script may have that is in no job.)
                    self._write(sys._getframe())
                self._earlier[self._sessions] = self._result
            self._session, self._sessions = session, self._sessions + 1
            self._first, self._begun = {}, None
            self._result, self.finished = {}, False
            if self._name == TRACED_RUN:
                self._trace_lines(sys._getframe().f_back)
            if self._name == NUDGED:
                _nudge(session)

        def short_epochs(session: Session, count: int) -> Iterator[int]:
            session._runtime.join()
            begin = int(os.environ.get(EPOCH_VARIABLE) or 0)
            if begin and self._begun is None and self._sessions == 1 and self._name not in JOINERS:
                session._runtime.position.epoch, session._runtime.position.cursor = begin, 0
            _shorten(session, count - begin)
            # (A later loop, such as one that trains all layers, has two epochs of its own.)
            later = self._made() + 2 * STEPS_OF_EPOCH if self._made() else 0
            self._total = max(later, min(STEPS_OF_TRAINING, _steps_of(session, count - begin)))
            self._in_epochs = True
            for epoch in epochs(session, count):
                if self._made() >= self._total:
                    break
                yield epoch
            self._in_epochs = False
            self._write(sys._getframe())

        def evaluated(session: Session, *args: Any, **more: Any) -> Any:
            self._evaluated = True
            return evaluate(session, *args, **more)

        def begin(step: Step, share: Share) -> None:
            if self._session is not None and not self._first:
                self._begin(self._session, sys._getframe())
            begun(step, share)
            self._draws.begin()

        def enter(step: Step) -> Step:
            self._draws.end()
            entered(step)
            self._draws.begin()
            return step

        def end(step: Step, *error: Any, left: bool = False, **more: Any) -> None:
            self._draws.end()
            ended(step, *error, left=left, **more)
            if not any(error) and not left and step._runtime.committed:
                self._after_step()

        def finished(runtime: Runtime, *result: Any) -> None:
            self.finished = True
            self._write(sys._getframe())
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
            (Session, "evaluate", evaluated),
            (Step, "begin", begin),
            (Step, "__enter__", enter),
            (Step, "end", end),
            (Runtime, "finish", finished),
        ):
            setattr(owner, name, wrapper)
        register_optimizer_step_post_hook(without_session)

    def note(self, kind: str, text: str) -> None:
        """Write down how the run ended."""
        put(self._folder / f"end-{self._name}.json", json.dumps({"kind": kind, "text": text}))

    def _trace_lines(self, frame: types.FrameType | None) -> None:
        """Write down, as the process ends, the script's lines that are executed from now on."""
        lines: dict[str, set[int]] = {}

        def trace(frame: types.FrameType, event: str, _: Any) -> Any:
            file = frame.f_code.co_filename
            if not is_own(file, self._script):
                return None
            lines.setdefault(file, set()).add(frame.f_lineno)
            return trace

        while frame is not None:
            frame.f_trace, frame = trace, frame.f_back
        sys.settrace(trace)
        path = self._folder / "lines"
        atexit.register(lambda: path.write_text(json.dumps({file: sorted(each) for file, each in lines.items()})))

    def end(self) -> tuple[str, str]:
        """How a script has ended that raised no error."""
        trained = self._session is not None and self._session._runtime.joined
        return ("refused", ENDED) if trained and not self.finished else ("done", "")

    def _begin(self, session: Session, frame: types.FrameType) -> None:
        self._first = compared_state(session)
        self._first_own = own_values(session, frame, self._script)
        base = self._folder / f"begun-{self._sessions}"
        if not base.exists():  # in the first session by the first worker, which is alone; in others by any
            put(base, str(session.steps_done))
        self._begun, self._first_epoch = int(base.read_text()), session.epoch

    def _made(self) -> int:
        """Steps that this check has made."""
        return 0 if self._session is None or self._begun is None else self._session.steps_done - self._begun

    def _after_step(self) -> None:
        session = self._session
        if session is None:
            return
        made = self._made()
        put(self._folder / f"step-{self._name}", str(session.steps_done))
        first, last = 2 * self._total // 5, 3 * self._total // 5
        for stage, steps in ((0, first), (LAST_STAGE, last)) if self._sessions == 1 else ((LATER_STAGE, first),):
            if made >= max(1, steps) and self._stage() <= stage:
                self._hold(session, stage)
        if made >= self._total * (2 if self._in_epochs else 1):
            self._write(sys._getframe())
            self.note("done", "")
            sys.stdout.flush()
            session._runtime.member.finishing = True
            raise _Over(0)

    def _hold(self, session: Session, stage: int) -> None:
        """Wait until the check goes on, and where workers join until they have connected."""
        put(self._folder / f"held-{self._name}", str(stage))
        while self._stage() <= stage:
            time.sleep(0.01)
        if stage == LAST_STAGE:
            return
        builds = session._runtime.member.pending_groups._builds
        until = time.monotonic() + JOIN_S
        while not any(each.wait(0.0) for each in list(builds.values())) and time.monotonic() < until:
            time.sleep(0.01)

    def _stage(self) -> int:
        """The stage that the check has come to; without a word of it, beyond the last."""
        path = self._folder / "stage"
        return int(path.read_text()) if path.exists() else LATER_STAGE + 1

    def _write(self, frame: types.FrameType) -> None:
        session = self._session
        if session is None:
            return
        claim = session.info.equality
        additive = not claim.startswith(("statistical", "virtual shards"))
        last = compared_state(session)
        if self._result and self._result["step"] == session.steps_done:  # what has changed since the last epoch
            before = self._result["last"]
            kept = {name: each for name, each in before.items() if not name.endswith(AT_THE_END)}
            last = {
                **kept,
                **{
                    name + AT_THE_END: each
                    for name, each in last.items()
                    if name in kept and not torch.equal(kept[name], each)
                },
            }
        own = {**own_values(session, frame, self._script), **self._result.get("own", {})}
        self._result = {
            "first": {
                name: self._begun_as(self._first.get(name.removesuffix(AT_THE_END)), each)
                for name, each in last.items()
            },
            "last": last,
            "first_own": {name: self._begun_as(self._first_own.get(name), each) for name, each in own.items()},
            "own": own,
            "step": session.steps_done,
            "epoch": session.epoch,
            "first_epoch": self._first_epoch,
            "ended": self.finished,
            "evaluated": self._evaluated,
            "untracked": _untracked(session),
            "equality": STATISTICAL if self._draws.found and additive else claim,
        }
        path = self._folder / f"result-{self._name}.pt"
        torch.save(_of_all(self._earlier, self._result), path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)

    def _begun_as(self, begun: torch.Tensor | None, last: torch.Tensor) -> torch.Tensor:
        """What a tensor has begun as. What is not there as training begins, such as a best score, has moved from 0;
        so has what a later session keeps as an earlier one has left it."""
        if begun is None or (self._sessions > 1 and torch.equal(begun, last)):
            return torch.zeros_like(last)
        return begun


def _of_all(earlier: Mapping[int, Mapping[str, Any]], last: Mapping[str, Any]) -> dict[str, Any]:
    """The result of all sessions of a script: what is an earlier one's has its number in its name."""
    found = dict(last)
    for number, each in earlier.items():
        for part in ("first", "last", "first_own", "own"):
            found[part] = {**found[part], **{f"{name}{OF_SESSION}{number})": one for name, one in each[part].items()}}
        found["step"], found["epoch"] = found["step"] + each["step"], found["epoch"] + each["epoch"]
        if each["equality"].startswith("statistical"):
            found["equality"] = each["equality"]
    return found


def _steps_of(session: Session, epochs: int) -> int:
    """Steps of so many epochs."""
    sampler = session._runtime.sampler
    if not isinstance(sampler, Sampler):
        return STEPS_OF_TRAINING
    return epochs * max(1, -(-sampler.epoch_length // session.info.batch_size))


def _untracked(session: Session) -> list[str]:
    """Schedulers and scalers that are neither tracked nor held by one that is."""
    tracked = list(session._runtime.state.tracked.values())
    objects = gc.get_objects()
    kinds = torch.optim.lr_scheduler.LRScheduler | torch.amp.GradScaler
    found_kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, kinds)}
    found = [each for each in objects if type(each) in found_kinds]
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
        for parameter in trained:
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
    """Run a script with its arguments; exit status 0 once it has made its steps."""
    folder = Path(os.environ["MALLETRAIN_CHECK_DIR"])
    name = os.environ.get("SLURM_ARRAY_TASK_ID") or os.environ[NAME_VARIABLE]
    secret = folder / "secret"
    if "MALLETRAIN_URL" in os.environ:
        worker_client.credential_for = lambda url: secret.read_text()
    script = Path(arguments[0]).resolve()  # what is the script's own is told by whole paths
    speaks = "elastic" in script.read_text(errors="replace").lower()
    recorder = Recorder(folder, name, script.parent, speaks=speaks)
    recorder.install()
    while name in (*JOINERS, PAIR[1]) and not (folder / f"go-{name}").exists():
        time.sleep(0.01)
    _seed(int(name) if name.isdigit() and name != PAIR[0] else 0)
    sys.argv = arguments
    sys.path.insert(0, str(script.parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
        kind, text = recorder.end()
        recorder.note("failed" if text else kind, text)
    except _Over:
        raise
    except BaseException as error:
        recorder.note(*_end_by(error, recorder))
        if isinstance(error, Exception) and not isinstance(error, ElasticError):
            traceback.print_exc()
            raise SystemExit(1) from error
        raise


def _end_by(error: BaseException, recorder: Recorder) -> tuple[str, str]:
    """How a run has ended that ended by this: the kind, and for people."""
    line = line_of(error.__traceback__)
    at = f" ({line})" if line else ""
    if isinstance(error, Released):
        # (Another worker's guard may have ended the job before this one's did.)
        _, found, text = error.reason.partition("ElasticError: ")
        return "refused" if found else "failed", text or f"a worker was let go: {error.reason}"
    if isinstance(error, SystemExit):
        kind, text = (
            recorder.end() if not error.code else ("failed", f"the script ends itself with status {error.code}")
        )
        return kind, f"{text}{at}"
    if isinstance(error, ElasticError):
        return "refused", f"{error}{at}"
    return "failed", f"{type(error).__name__}: {error}".strip() + at


class RandomDraws:
    """Notices random numbers that a step draws from the global generators, as `found`: its result then depends on how
    samples lie on workers, by right."""

    def __init__(self) -> None:
        self.found = False
        self._before: list[Any] | None = None

    def begin(self) -> None:
        """What follows may draw."""
        self._before = None if self.found else _states()

    def end(self) -> None:
        """Whatever was to be watched is over."""
        before, self._before = self._before, None
        if before is not None and not all(_same(*pair) for pair in zip(before, _states(), strict=False)):
            self.found = True


def _states() -> list[Any]:
    states: list[Any] = [torch.get_rng_state(), random.getstate()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states.append([generator.get_offset() for generator in torch.cuda.default_generators])
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        key = numpy.random.get_state()
        states.append((key[1].tobytes(), key[2:]))
    return states


def _same(old: Any, new: Any) -> bool:
    return torch.equal(old, new) if isinstance(old, torch.Tensor) else bool(old == new)
