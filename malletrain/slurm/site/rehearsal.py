"""A pilot's life on a site, played for a minute: `malletrain doctor --try`. What Slurm does is seen, whatever its
settings are called.

1. A held task, as `mtbatch` submits it, is pinned to an idle node and released.
2. A main job wants that node, and nothing is done for it: Slurm must preempt the pilot.
3. Another pilot begins there, another main job comes, and the pilot is taken back as the daemon does.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace

from malletrain.domain.decision import RecyclePilot, StartPilot
from malletrain.domain.errors import MalletrainError
from malletrain.domain.snapshot import NodeState, SlurmState
from malletrain.slurm.cluster import SlurmCluster
from malletrain.slurm.command import Commands
from malletrain.slurm.formats.states import job_state
from malletrain.slurm.queries import Queries
from malletrain.slurm.site.site_facts import ERROR, WARNING, Finding, Harvest, Level, SiteFacts
from malletrain.slurm.submission.sbatch import PILOT_OPTIONS, BatchRequest
from malletrain.wire.munge import user_name
from malletrain.wire.sbatch_answer import job_id, likely_job_id

#: Seconds. slurmctld's main scheduler runs once a minute at least (sched_interval, slurm.conf(5)).
PATIENCE_S = 90.0

#: A main job that waits longer for Slurm to preempt a pilot (seconds) is worth a word.
QUICK_S = 10.0

#: Longer than a pilot is watched: one that its own limit ends was not preempted.
_LIMIT_MIN = 10

_POLL_S = 0.2
_BEGUN = (SlurmState.RUNNING, SlurmState.COMPLETING, SlurmState.COMPLETED)


class NotPlayed(MalletrainError):
    """The rehearsal cannot go on; `finding` says why, and what to do."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.what)
        self.finding = finding


@dataclass
class Rehearsal:
    """Plays a pilot's life with jobs of its own.

    Args:
        main_options: of sbatch, for main jobs: partition and account, where the caller's defaults will not do.
        pilot_options: as `pilot.sbatch` has them.
        uid: whose the pilot is, where root calls this; by default the caller's.
    """

    commands: Commands
    facts: SiteFacts
    harvest: Harvest
    main_options: Sequence[str] = ()
    pilot_options: Sequence[str] = PILOT_OPTIONS
    uid: int = field(default_factory=os.getuid)
    name: str = field(default_factory=lambda: f"malletrain-try-{secrets.token_hex(4)}")  #: of all its jobs

    def __post_init__(self) -> None:
        self._node = ""
        self._queries = Queries(self.commands, self.harvest.partition)
        self._cluster = SlurmCluster(self.commands, self.harvest, lambda _job: self.uid)

    def findings(self) -> Generator[Finding, None, None]:
        """What is seen, as it is seen. Close the generator when you stop early: all jobs are cancelled then. Raises
        `ClusterUnavailable`: Slurm does not answer."""
        try:
            yield from self._scenes()
        except NotPlayed as stopped:
            yield stopped.finding
        finally:
            self._clear()

    def _scenes(self) -> Iterator[Finding]:
        node = self._node = self._idle_node()
        as_owner = [] if self.uid == os.getuid() else ["runuser", "-u", user_name(self.uid), "--"]  # root may do more
        remedy = "see the errors above, or give pilots the option that is asked for (pilot.sbatch)"
        array = self._submit(self._pilot(), "a pilot", remedy, ERROR, *as_owner)
        begun_s = self._start(f"{array}_0", node)
        yield Finding.ok(f"tried on {node}: a pilot began {begun_s:.1f} s after its release")
        alone_s = self._main_job(node, lambda: None, f"{array}_0")
        said = f"without the daemon's help a main job takes the pilot's node {alone_s:.1f} s after it was submitted"
        slow = "lower what is of this length: GraceTime, KillWait, PreemptExemptTime, sched_interval, or an epilog"
        yield Finding.ok(said) if alone_s <= QUICK_S else Finding.warning(f"{said} ({self._settings()})", slow)
        self._wait(lambda: self._cluster.snapshot().is_free(node), f"{node} is still busy {PATIENCE_S:.0f} s later")
        self._start(f"{array}_1", node)
        back = RecyclePilot(0, f"{array}_1", node, "rehearsal")
        helped_s = self._main_job(node, lambda: self._cluster.recycle([back]), f"{array}_1")
        yield Finding.ok(f"where the daemon takes the pilot back, it begins {helped_s:.1f} s after it was submitted")

    def _clear(self) -> None:
        """Cancel all jobs of the rehearsal, and wait until none holds a node."""
        users, end = {user_name(os.getuid()), user_name(self.uid)}, time.monotonic() + PATIENCE_S
        listed = ["squeue", "-a", "-h", "-o", "%i", "-n", self.name, "-u", ",".join(users)]
        while time.monotonic() < end and self.commands.ask(listed).strip():
            for user in users:
                self.commands.run(["scancel", "-n", self.name, "-u", user])
            time.sleep(_POLL_S)

    # Jobs

    def _pilot(self) -> list[str]:
        request = BatchRequest(self.name, 1, 1, self.harvest.partition, "/", b"", tasks=2, qos=self.harvest.qos)
        request = replace(request, account=self.harvest.account, pilot_options=tuple(self.pilot_options))
        options = [f"--{name}" + (f"={value}" if value else "") for name, value in request.lines("rehearsal")]
        return [*options, f"--time={_LIMIT_MIN}", "--wrap=exec srun --ntasks=1 sleep 600"]

    def _submit(self, options: Sequence[str], what: str, remedy: str, level: Level, *runner: str) -> int:
        answer = self.commands.run([*runner, "sbatch", "--parsable", "--output=/dev/null", *options])
        number = job_id(answer.output) or likely_job_id(answer.output)
        if not answer.ok or number is None:
            raise NotPlayed(Finding(level, f"sbatch refuses {what}: {answer.error or answer.output[:200]}", remedy))
        return number

    def _start(self, pilot: str, node: str) -> float:
        """Seconds from a pilot's release to its beginning."""
        (outcome,) = self._cluster.start([StartPilot(0, pilot, node, 60.0 * _LIMIT_MIN, "rehearsal")])
        if not outcome.done:
            raise NotPlayed(Finding.error(f"a pilot cannot be started: {outcome.detail}", "see the errors above"))
        return self._wait(
            lambda: self._seen(pilot)[0] is SlurmState.RUNNING,
            f"a pilot pinned to idle node {node} has not begun {PATIENCE_S:.0f} s after its release",
            lambda: f"Slurm's reason is {self._seen(pilot)[1]}: see squeue(1), JOB REASON CODES",
        )

    def _main_job(self, node: str, then: Callable[[], object], pilot: str) -> float:
        """Seconds from the submission of a main job that wants the pilot's node to its beginning."""
        options = [f"--job-name={self.name}", f"--nodelist={node}", "--nodes=1", "--exclusive", "--time=1"]
        refused = "--main='-p PARTITION -A ACCOUNT' says with which options you may submit main jobs"
        job = str(self._submit([*options, *self.main_options, "--wrap=sleep 20"], "a main job", refused, WARNING))
        then()
        took_s = self._wait(
            lambda: self._seen(job)[0] in _BEGUN,
            f"a main job that wants the pilot's node has not begun after {PATIENCE_S:.0f} s ({self._settings()})",
            lambda: f"Slurm's reason is {self._seen(job)[1]}; docs/how-to/admin-slurm.md has what pilots need",
        )
        state, _ = self._seen(pilot)
        if state in (SlurmState.RUNNING, SlurmState.SUSPENDED):
            raise NotPlayed(
                Finding.error(
                    f"the pilot is {state} while a main job runs on its node ({self._settings()})",
                    f"set PreemptMode=REQUEUE and OverSubscribe=NO on partition {self.harvest.partition}",
                )
            )
        self.commands.run(["scancel", job])
        return took_s

    # What is seen

    def _settings(self) -> str:
        """What Slurm is told of preemption, in its own words."""
        harvest, tiers = self.facts.partitions[self.harvest.partition], self.facts.partitions.values()
        return (
            f"PreemptType={self.facts.preempt_type or 'none'}, PreemptMode={self.facts.preempt_mode}, "
            f"{harvest.name}: PreemptMode={harvest.preempt_mode} GraceTime={harvest.grace_s:g}, tiers "
            + ", ".join(f"{each.name}: {each.tier}" for each in tiers if self._node in each.nodes)
            + f", PreemptExemptTime={self.facts.words.get('PreemptExemptTime', 'none')}"
        )

    def _idle_node(self) -> str:
        mains = self.facts.main_partitions(self.harvest.partition)
        snapshot, shared = self._cluster.snapshot(), frozenset[str]().union(*(each.nodes for each in mains))
        reserved = {
            n for each in snapshot.reservations for n in each.nodes if each.start < snapshot.taken_at + 3600.0
        }
        for node in snapshot.nodes:  # (one that is planned is a waiting job's)
            idle = node.state is NodeState.IDLE and snapshot.is_free(node.name) and node.name not in reserved
            if idle and self.harvest.partition in node.partitions and node.name in shared:
                return node.name
        where = f"no node that {self.harvest.partition} shares with a main partition is idle now"
        raise NotPlayed(Finding.warning(f"not tried: {where}", "try again when sinfo shows one"))

    def _seen(self, job: str) -> tuple[SlurmState | None, str]:
        """A job's state, and Slurm's word for why."""
        array, _, task = job.partition("_")
        rows = [row for row in self._queries.array(int(array)) if not task or int(task) in row.tasks]
        return (job_state(rows[0].state), rows[0].reason or rows[0].state) if rows else (None, "none")

    def _wait(self, condition: Callable[[], bool], what: str, remedy: Callable[[], str] = lambda: "") -> float:
        """Seconds until a condition holds. Raises `NotPlayed`: it does not in time."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > PATIENCE_S:
                raise NotPlayed(Finding.error(what, remedy()))
            time.sleep(_POLL_S)
        return time.monotonic() - began
