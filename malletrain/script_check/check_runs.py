"""The runs of a check: one whose workers come, go and are killed; static ones of as many steps, of one worker and of
two; and one of one worker that begins a few units of rounding elsewhere, so that parameters that rounding alone moves
are distinguished from wrong ones. Where the two of one worker differ, a third one says whether that is rounding."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from malletrain.elastic.comm.addresses import free_port
from malletrain.loop.membership.next_world import JobTerms
from malletrain.loop.membership.state import MembershipSettings
from malletrain.script_check.checked_script import (
    AT_THE_END,
    EPOCH_VARIABLE,
    JOINERS,
    LATE,
    LATER_STAGE,
    NAME_VARIABLE,
    NUDGED,
    OF_SESSION,
    PAIR,
    TRACED_RUN,
    put,
)
from malletrain.script_check.comparison import (
    FEW_ROUNDING_UNITS,
    ROUNDING_UNITS,
    TensorDifference,
    compare,
    mostly,
    own_apart,
    unlike_static_runs,
    unsettled,
)
from malletrain.script_check.forked_runs import ForkedRun, Starter
from malletrain.script_check.likely_causes import likely_causes, unmet_conditions
from malletrain.script_check.local_coordinator import LocalCoordinator

#: Seconds without a further step after which a run counts as stuck.
PATIENCE_S = 180.0

#: A worker that a busy machine does not run for seconds is not lost: the one that is killed hangs up.
PATIENT = MembershipSettings(check_in_s=60.0, reconnect_s=60.0)
JOB, ARRAY = 1, 1
STATIC, REPEATED = "static", "repeated"

#: Runs that need no other worker.
ALONE = (STATIC, REPEATED, NUDGED, TRACED_RUN)

#: Lines of the script that are named as causes, and characters of each.
MAX_CAUSES, MAX_TEXT = 3, 100


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check has found.

    Attributes:
        verdict: `equal`; `statistical` where it differs and equality by numbers is not claimed; `undecided` where
            rounding alone moves most parameters as far; `different`; `wrong` where the script was stopped;
            `not repeatable` where two static runs of it differ; `failed` where it raised an error of its own; `no
            session`; or `too short`.
        during: what was going on: `alone`, `joining`, `three workers`, `after a kill`, `two workers`, or `compared`.
        text: for people: the script's error, what differs, or what could not be compared.
        steps: made in each run.
        equality: what the session claims.
        differences: of the parameters and whatever else is compared, the largest first.
        epochs: that ended in each run; they are shorter than in training, so that their ends are met.
        notes: schedulers and scalers that are not tracked, although it may have changed nothing here.
        unmet: what the script does and these runs have not met.
        begins: in which runs a difference is.
        causes: lines of the script that may be its cause, the likeliest first.
    """

    verdict: str
    during: str
    text: str = ""
    steps: int = 0
    equality: str = ""
    differences: list[TensorDifference] = field(default_factory=list)
    epochs: int = 0
    notes: list[str] = field(default_factory=list)
    unmet: list[str] = field(default_factory=list)
    begins: str = ""
    causes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether the script may be submitted as it is."""
        return self.verdict in ("equal", "statistical", "undecided")

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "good": self.good}


class _Ended(Exception):
    """A run ended before its time."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind, self.text = kind, text


def check_script(
    script: Path,
    arguments: Sequence[str],
    say: Callable[[str], None],
    at_epoch: int | None = None,
    checkpoints: Path | None = None,
) -> CheckReport:
    """Check a script. Its processes run in the present directory, with its own output in a log of the check.

    Args:
        script: a Python file.
        arguments: for it.
        say: gets a line of progress at each stage.
        at_epoch: the epoch that training begins with. Default: that of the checkpoint, or the first.
        checkpoints: a job's folder of checkpoints, whose newest training begins with.

    Raises:
        TimeoutError: a run is stuck.
    """
    with tempfile.TemporaryDirectory(prefix="malletrain-check-") as name:
        run = _Run(Path(name), [str(script), *arguments], at_epoch, checkpoints)
        try:
            return _check(run, say)
        finally:
            run.end()


def _check(run: _Run, say: Callable[[str], None]) -> CheckReport:
    during = "alone"
    try:
        say("one worker trains")
        run.stage(0)
        run.coordinator.start()
        run.spawn("0")
        for name in JOINERS:  # which import what they need meanwhile
            run.spawn(name)
        run.wait_held(0)
        during = "joining"
        say("two workers join")
        for name in JOINERS:
            run.let_go(name)
        run.stage(1)
        run.wait_world("0", *JOINERS)
        during = "three workers"
        run.wait_held(1)
        during = "after a kill"
        say("one of the three is killed")
        run.coordinator.terms = JobTerms()
        run.kill("2")
        run.stage(LATER_STAGE)
        run.wait_world("0", "1")
        late = _join_later_session(run, say)
        for name in ("0", "1", *late):
            run.wait_end(name)
        resized, peers = run.result("0"), [run.result(name) for name in ("1", *late)]
        say(f"static runs make the same {int(resized['step'])} steps")
        during = "alone"
        run.train(STATIC, NUDGED)
        static, nudged, repeated = run.result(STATIC), run.result(NUDGED), None
        if unlike_static_runs(static, nudged):
            run.train(REPEATED)
            repeated = run.result(REPEATED)
        during = "two workers"
        run.train_pair()
    except _Ended as ended:
        if ended.kind == "done":
            return CheckReport(
                "too short",
                during,
                f"the script was over after {run.steps('0')} steps: have it train for longer, about 30 steps",
                run.steps("0"),
            )
        verdict = {"refused": "wrong", "no session": "no session"}.get(ended.kind, "failed")
        return CheckReport(verdict, during, ended.text, run.steps("0"))
    pair = [run.result(name) for name in PAIR]
    report = report_of(resized, peers[0], static, repeated, nudged, pair, peers[1:])
    if report.verdict == "different":
        joined = report_of(pair[0], pair[1], static, None, nudged).good
        begins = "only where workers join or are lost" if joined else "also with two workers from start to end"
        say("a further run says which lines the script executes")
        report = replace(report, begins=begins, causes=_causes(run, joined=joined))
    unmet = list(_unmet(resized, run.text))
    return replace(report, epochs=int(resized["epoch"]), notes=resized["untracked"], unmet=unmet)


def _join_later_session(run: _Run, say: Callable[[str], None]) -> list[str]:
    """Have a worker join in the script's second session, if there is one; the worker that did."""
    comes = run.comes(lambda: run.is_held(LATER_STAGE), "the end of the run")
    if comes:
        say("another one joins the second session")
        run.spawn(LATE)
    run.stage(LATER_STAGE + 1)
    return [LATE] if comes and run.comes(lambda: run.is_world("0", "1", LATE), "a further worker") else []


def _unmet(resized: Mapping[str, Any], text: str) -> Iterator[str]:
    """What the script does and the runs did not come to, for people."""
    if not resized["ended"]:
        yield "no epoch ended in it" if not resized["epoch"] else "the script's own end"
    if ".evaluate(" in text and not resized["evaluated"]:
        yield "s.evaluate(...)"
    yield from unmet_conditions(text, range(resized["first_epoch"], resized["epoch"]))


def _causes(run: _Run, *, joined: bool) -> list[str]:
    """What in the lines that the script executes may be the cause."""
    with contextlib.suppress(_Ended):
        run.train(TRACED_RUN)
    found: list[str] = []
    for file, lines in run.lines().items():
        likely = likely_causes(Path(file).read_text(errors="replace"), lines, joined=joined)
        found += [f"{Path(file).name}:{each.line}: `{each.text[:MAX_TEXT]}`: {each.why}" for each in likely]
    return found[:MAX_CAUSES]


def report_of(
    resized: Mapping[str, Any],
    peer: Mapping[str, Any],
    static: Mapping[str, Any],
    repeated: Mapping[str, Any] | None,
    nudged: Mapping[str, Any],
    pair: Sequence[Mapping[str, Any]] = (),
    late: Sequence[Mapping[str, Any]] = (),
) -> CheckReport:
    """What follows from the results of the runs: each the parameters as training began (`first`) and at its end
    (`last`), the script's own values (`own`), the number of steps (`step`), and what the session claims (`equality`).
    `peer` joined, those of `late` in a later session; `pair` trained from the start; `repeated` is None where the
    static run and the nudged one are alike."""
    steps, equality = int(static["step"]), str(resized["equality"])
    claims = not equality.startswith("statistical")
    if any(int(each["step"]) != steps for each in (resized, *pair)):
        return CheckReport("too short", "compared", "the runs made different numbers of steps", steps, equality)
    worlds = [("the resized run", resized, joined) for joined in (peer, *late)]
    if pair:
        worlds.append(("a static run of two", pair[0], pair[1]))
    for world, one, other in worlds:
        apart = [each for each in _replicas(one, other, claims=claims) if not each.equal]
        if apart:
            text = f"the workers of {world} differ from each other, first in {apart[0].name}"
            return CheckReport("different", "compared", text, steps, equality, apart)
    why = unlike_static_runs(static, repeated) if repeated else ""
    if why:
        return CheckReport("not repeatable", "compared", why, steps, equality)
    report = _of_sizes(static, [resized, *pair[:1]], nudged, steps, equality)
    for joined in (peer, *late) if pair and report.good else ():
        own = own_apart(static, nudged, pair, resized, joined, claims=claims)
        if not own:
            continue
        text = f"{own[0].name} is another one where workers join: s.state or s.track(...) makes it part of training"
        return CheckReport("different", "compared", text, steps, equality, own)
    return report


def _replicas(one: Mapping[str, Any], other: Mapping[str, Any], *, claims: bool) -> list[TensorDifference]:
    """How two workers of a run differ as the last epoch ends. (Buffers may where equality is not claimed; of a
    session that was over before a worker joined that one has nothing.)"""
    ours = {
        name: each
        for name, each in one["last"].items()
        if (claims or not name.startswith("buffer ")) and AT_THE_END not in name
        if name in other["last"] or OF_SESSION not in name
    }
    return compare(one["first"], ours, other["last"])


def _of_sizes(
    static: Mapping[str, Any],
    others: Sequence[Mapping[str, Any]],
    nudged: Mapping[str, Any],
    steps: int,
    equality: str,
) -> CheckReport:
    """Whether runs of other sizes arrive where the static one does."""
    claims = not equality.startswith("statistical")
    units = ROUNDING_UNITS if claims else FEW_ROUNDING_UNITS
    ends = [each["last"] for each in others]
    strict = _largest(compare(static["first"], static["last"], end, units=units) for end in ends)
    if all(each.equal for each in strict):
        moved = any(not torch.equal(tensor, static["last"][name]) for name, tensor in static["first"].items())
        text = "" if moved else "training has changed no parameter: nothing is shown"
        return CheckReport("equal", "compared", text, steps, equality, strict)
    chaotic = unsettled(static["first"], static["last"], nudged["last"])
    differences = _largest(compare(static["first"], static["last"], end, nudged["last"], units=units) for end in ends)
    beyond = [each for each in differences if not each.equal]
    if not beyond:
        names = ", ".join(each.name for each in chaotic)
        text = f"not compared, because rounding alone decides them: {names}" if names else ""
        if mostly(chaotic, static["last"]):
            text = f"after {steps} steps rounding alone decides most parameters, first {chaotic[0].name}"
            return CheckReport("undecided", "compared", text, steps, equality, differences)
        return CheckReport("equal", "compared", text, steps, equality, differences)
    worst = beyond[0]
    text = f"{worst.name} differs by {worst.difference:.2g} of what training has changed it by"
    verdict = "different" if claims else "statistical"
    return CheckReport(verdict, "compared", text, steps, equality, differences)


def _largest(compared: Iterable[list[TensorDifference]]) -> list[TensorDifference]:
    """Of each tensor the largest difference, the most different first."""
    found: dict[str, TensorDifference] = {}
    for each in itertools.chain.from_iterable(compared):
        found[each.name] = max(each, found.get(each.name, each), key=lambda one: one.difference)
    return sorted(found.values(), key=lambda each: (-each.difference, each.name))


class _Run:
    """The processes of a check, and the folder in which they and it write."""

    def __init__(
        self, folder: Path, command: Sequence[str], at_epoch: int | None = None, checkpoints: Path | None = None
    ) -> None:
        self._folder = folder
        self._processes: dict[str, ForkedRun] = {}
        self._at_epoch, self._checkpoints = at_epoch, checkpoints
        self._of_pair: LocalCoordinator | None = None
        self.text = Path(command[0]).read_text(errors="replace")
        secret = secrets.token_hex()
        (folder / "secret").write_text(secret)
        self.coordinator = LocalCoordinator(secret, JOB, JobTerms(sizes=(1, 3)), PATIENT)
        self._starters = {
            seed: Starter(folder, command, self._common_environment(seed), folder / f"log-seed-{seed}")
            for seed in ("0", "random")
        }

    def spawn(self, name: str) -> None:
        """Start a worker."""
        starter = self._starters[_seed_of_hashes(name)]
        self._processes[name] = starter.start(self._environment(name), self._folder / f"log-{name}")

    def _common_environment(self, seed: str) -> dict[str, str]:
        """What processes have with this seed of hashes; they are in no job."""
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("SLURM", "MALLETRAIN", "TORCHELASTIC"))
            and key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        }
        # Each run with as many threads: they decide how a matrix product is rounded.
        threads = str(max(1, (os.cpu_count() or 1) // 3))
        default = {"OMP_NUM_THREADS": threads, "PYTHONHASHSEED": seed}
        return {**default, **kept, "MALLETRAIN_CHECK_DIR": str(self._folder)}

    def _environment(self, name: str) -> dict[str, str]:
        """As a process of a job of one task each has it, or one that is in none."""
        environ = self._common_environment(_seed_of_hashes(name))
        # As torchrun --standalone --nproc-per-node=1 sets it, for scripts that ask torch.distributed for their node.
        environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port("127.0.0.1"))}
        alone = name in ALONE
        job = name if alone else "pair" if name in PAIR else "job"
        environ["MALLETRAIN_CHECKPOINT_DIR"] = str(self._folder / f"checkpoints-{job}")
        if alone:
            environ[NAME_VARIABLE] = name
        if self._at_epoch is not None:
            environ[EPOCH_VARIABLE] = str(self._at_epoch)
        if self._checkpoints is not None:
            environ["MALLETRAIN_RESUME"] = str(self._checkpoints)
        if not alone:
            coordinator = self._pair() if name in PAIR else self.coordinator
            environ |= {
                "MALLETRAIN_URL": coordinator.url,
                "MALLETRAIN_JOB": str(coordinator.job),
                "MALLETRAIN_ADDRESS": "127.0.0.1",
                "SLURM_JOB_ID": f"{os.getpid()}{int(name):03}",  # processes of a node meet by it
                "SLURM_ARRAY_JOB_ID": str(ARRAY),
                "SLURM_ARRAY_TASK_ID": name,
                "SLURM_RESTART_COUNT": "0",
                "SLURMD_NODENAME": f"worker{name}",
            }
        return environ

    def train(self, *names: str) -> None:
        """Have workers that need no other one train side by side to their end."""
        for name in names:
            self.spawn(name)
        for name in names:
            self.wait_end(name)

    def train_pair(self) -> None:
        """Have two workers train from the start, of which the one that begins as the static runs do is the older."""
        for name in PAIR:
            self.spawn(name)
        self._wait(lambda: bool(self._pair().events), "a worker", ending=True)
        self.let_go(PAIR[1])
        for name in PAIR:
            self.wait_end(name)

    def stage(self, number: int) -> None:
        put(self._folder / "stage", str(number))

    def let_go(self, name: str) -> None:
        put(self._folder / f"go-{name}", "")

    def steps(self, name: str) -> int:
        """Steps that training has made when this worker last ended one."""
        path = self._folder / f"step-{name}"
        return int(path.read_text()) if path.exists() else 0

    def wait_held(self, stage: int) -> None:
        self._wait(lambda: self.is_held(stage), f"stage {stage}")

    def wait_world(self, *tasks: str) -> None:
        self._wait(lambda: self.is_world(*tasks), f"a world of {len(tasks)} workers")

    def is_held(self, stage: int) -> bool:
        """Whether the first worker waits at this stage."""
        path = self._folder / "held-0"
        return path.exists() and path.read_text() == str(stage)

    def is_world(self, *tasks: str) -> bool:
        return set(self.coordinator.world()) == {f"{ARRAY}_{task}" for task in tasks}

    def comes(self, condition: Callable[[], bool], what: str) -> bool:
        """Whether a condition is met before the first worker ends."""
        process = self._processes["0"]
        self._wait(lambda: condition() or process.poll() is not None, what, ending=True)
        return condition()

    def wait_end(self, name: str) -> None:
        self._wait(lambda: self._processes[name].poll() is not None, "the end of the run", ending=True)
        end = self._end_of(name)
        if end.kind != "done":
            raise end

    def _wait(self, condition: Callable[[], bool], what: str, *, ending: bool = False) -> None:
        """Wait for a condition as long as steps are made. Raises `_Ended`: a process ended first; `TimeoutError`: no
        step was made for long."""
        progress, since = self._progress(), time.monotonic()
        while not condition():
            if not ending and (self._folder / "finished-0").exists():
                raise _Ended("done", "")  # those who came too late fail for it
            for other, process in self._processes.items():
                if process.poll() is not None and not (ending and self._end_of(other).kind == "done"):
                    raise self._end_of(other)
            if self._progress() != progress:
                progress, since = self._progress(), time.monotonic()
            if time.monotonic() - since > PATIENCE_S:
                raise TimeoutError(
                    f"no further step for {PATIENCE_S:.0f} s while waiting for {what}\n{self.log_tail()}"
                )
            time.sleep(0.01)

    def _progress(self) -> list[int]:
        return [self.steps(name) for name in self._processes]

    def _end_of(self, name: str) -> _Ended:
        # A worker that was stopped because another one had raised an error tells less than that one.
        paths = [self._folder / f"end-{other}.json" for other in (name, *self._processes)]
        ends = [json.loads(path.read_text()) for path in paths if path.exists()]
        bad = next((end for end in ends if end["kind"] != "done"), None)
        if bad is None and not paths[0].exists():
            status = self._processes[name].poll()
            said = f"a process of the script ended with status {status} without a word\n{self.log_tail(name)}"
            return _Ended("failed", said)
        return _Ended("done", "") if bad is None else _Ended(bad["kind"], bad["text"])

    def log_tail(self, name: str = "0") -> str:
        """The last lines of a worker's output."""
        path = self._folder / f"log-{name}"
        return "\n".join(path.read_text(errors="replace").splitlines()[-12:]) if path.exists() else ""

    def kill(self, name: str) -> None:
        self._processes.pop(name).kill()

    def result(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = torch.load(self._folder / f"result-{name}.pt", weights_only=True)
        return found

    def lines(self) -> dict[str, list[int]]:
        """The lines that the traced run has executed, by file."""
        path = self._folder / "lines"
        found: dict[str, list[int]] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
        for starter in self._starters.values():
            starter.end()
        self.coordinator.stop()
        if self._of_pair is not None:
            self._of_pair.stop()

    def _pair(self) -> LocalCoordinator:
        """Names one world of two, and no other."""
        if self._of_pair is None:
            terms = JobTerms(min_nodes=2, max_nodes=2)
            self._of_pair = LocalCoordinator(self.coordinator.secret, JOB + 1, terms, PATIENT)
            self._of_pair.start()
        return self._of_pair


def _seed_of_hashes(name: str) -> str:
    """In workers that join, what follows from the order of a set is another thing."""
    return "0" if name in ALONE or name in ("0", PAIR[0]) else "random"
