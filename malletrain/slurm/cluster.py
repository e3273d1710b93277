"""The live cluster: `loop.ports.Cluster` by Slurm's commands. Every change is preceded by a fresh look at the task
and, for a start, at its node: between decision and deed others act too."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from malletrain.domain.decision import CancelTasks, CutLimit, Outcome, RecyclePilot, StartPilot, Stray
from malletrain.domain.errors import ClusterUnavailable
from malletrain.domain.job import ArrayReport, MalleableJob, PilotEnd, task_of
from malletrain.domain.snapshot import Node, SlurmJob, SlurmState, Snapshot
from malletrain.slurm import pilots
from malletrain.slurm.command import MAX_ERROR_CHARS, Commands, is_unreachable
from malletrain.slurm.formats import squeue, text
from malletrain.slurm.formats.hostlist import runs
from malletrain.slurm.formats.states import job_state
from malletrain.slurm.queries import Queries, batches, is_gone
from malletrain.slurm.read_commands import CommandReader
from malletrain.slurm.site.site_facts import Harvest

#: Tasks named in one command, so that its line stays far below ARG_MAX.
MAX_TASKS_PER_COMMAND = 200

#: A task that starts again on its node within the second in which it was requeued is refused by slurmd ("already
#: killed, do not launch batch job") and consumed: credentials are revoked by whole seconds (measured, 22.05).
MIN_RESTART_DELAY_S = 2.0

#: Seconds. A job that began less than so long ago is not killed yet: where its script does not run so far, signals
#: miss it, and it keeps the node for KillWait (seen with 22.05, within the first second).
MIN_KILLED_AGE_S = 3.0

#: Seconds that a job is given to be stopped, before it is killed.
STOP_TIMEOUT_S = 5.0


class SlurmCluster:
    """Slurm, seen and steered. All methods raise `ClusterUnavailable` where Slurm does not answer in time, or with
    what cannot be right; what was done by then is seen in the next snapshot.

    Args:
        commands: runs Slurm's commands.
        harvest: where pilots live; what a task must show before it is released.
        owner_of: the uid that announced a malleable job, by its id; None: not known, and nothing of it is started.
        now: Unix seconds.
        bf_interval_s: bf_interval of SchedulerParameters.
        pyslurm: the command that reads nodes and jobs through pyslurm; none: Slurm's own.
    """

    def __init__(
        self,
        commands: Commands,
        harvest: Harvest,
        owner_of: Callable[[int], int | None],
        now: Callable[[], float] = time.time,
        bf_interval_s: float = 30.0,
        pyslurm: Sequence[str] = (),
    ) -> None:
        self._commands = commands
        self._harvest = harvest
        self._owner_of = owner_of
        self._now = now
        self._queries = Queries(commands, harvest.partition)
        self._reader = CommandReader(commands, now, harvest.partition, bf_interval_s, pyslurm)

    # Looking

    def snapshot(self) -> Snapshot:
        """One round of queries."""
        return self._reader.snapshot()

    def look(self, last: Snapshot) -> Snapshot:
        """The main queue, by one light query, laid over the last snapshot."""
        ours = self._harvest.partition
        return last.with_main_queue(self._reader.main_queue(last.active_ids(ours)), ours)

    def inspect(self, array_id: int, job: MalleableJob) -> ArrayReport:
        """The held tasks of a newly registered array of `job`, and what is wrong with it: none is taken then."""
        rows = self._queries.array(array_id)
        return pilots.inspect(array_id, rows, self._harvest, job.uid)

    def end_of(self, pilot: str) -> PilotEnd:
        """How a pilot's task stands or ended."""
        end = pilots.end_state(self._queries.task(pilot))
        return (self._queries.accounted(pilot) or end) if end.state is SlurmState.UNKNOWN else end

    def ended_main_jobs(self, nodes: Collection[str]) -> Sequence[SlurmJob]:
        return self._queries.ended_main_jobs(nodes)

    # Steering

    def start(self, actions: Sequence[StartPilot]) -> Sequence[Outcome]:
        """Re-read the tasks and their nodes; pin, limit (to whole minutes) and release those that are as they should
        be. Pilots of one task are started together on all their nodes, or not at all. Not done, with the reason, when
        a node is held or wanted by now, or anyone changed the task, a plug-in that rewrites updates included."""
        starts = pilots.together(actions)
        rows = self._queries.tasks(list(starts))
        nodes = self._queries.nodes({action.node for action in actions})
        outcomes: dict[str, Outcome] = {}
        pinned: dict[str, str] = {}
        for task, start in starts.items():
            row = rows.get(task)
            unfit = self._unfit(start, row)
            wrong = unfit or self._why_not_now(start, row, nodes)
            if wrong or row is None:
                outcomes[task] = Outcome(False, f"not started: {wrong}", unfit=bool(unfit))
                continue
            answer = self._commands.run(start.pin(row, self._now()))
            if answer.ok:
                pinned[task] = f"released to {','.join(start.nodes)} for {start.minutes} min"
            else:
                outcomes[task] = _refusal(f"scontrol update: {answer.error}")
        for task, wrong in self._rewritten({task: starts[task] for task in pinned}):
            del pinned[task]
            outcomes[task] = Outcome(False, f"not released, Slurm changed the task: {wrong}", unfit=True)
        failed = self._each(["scontrol", "release"], list(pinned))
        for task, detail in pinned.items():
            released = Outcome(True, detail, restarts=rows[task].restarts)
            outcomes[task] = _refusal(f"scontrol release: {failed[task]}") if task in failed else released
        return [outcomes[task_of(action.pilot)] for action in actions]

    def cut(self, action: CutLimit) -> Outcome:
        row = self._queries.task(action.pilot)
        end = pilots.end_state(row)
        if row is None or end.is_over or end.held:
            word = "vanished" if row is None else "held" if end.held else end.state
            return Outcome(True, f"ended already: {word}")
        if row.partition != self._harvest.partition:
            return Outcome(False, f"it is in partition {row.partition} now: not ours to touch")
        if row.start_time is None or end.state is SlurmState.PENDING:
            return Outcome(False, "it has not started yet")
        if row.end_time is not None and row.end_time <= action.ends_at:
            return Outcome(True, "it ends sooner already")
        minutes = max(1, int((action.ends_at - row.start_time) // 60))
        answer = self._commands.run(["scontrol", "update", f"JobId={task_of(action.pilot)}", f"TimeLimit={minutes}"])
        if not answer.ok:
            return Outcome(is_gone(answer.error), f"scontrol update: {answer.error}")
        return Outcome(True, f"limit cut to {minutes} min")

    def recycle(self, actions: Sequence[RecyclePilot]) -> Sequence[Outcome]:
        """Requeue is lifted for this moment: at other times Slurm would start them by itself after a preemption."""
        tasks = list(dict.fromkeys(task_of(action.pilot) for action in actions))
        rows = self._queries.tasks(tasks)
        outcomes: dict[str, Outcome] = {}
        waiting, running = list[str](), list[str]()
        for pilot in tasks:
            row = rows.get(pilot)
            end = pilots.end_state(row)
            if row is None or end.is_over:
                outcomes[pilot] = Outcome(True, f"ended already: {end.detail}")
            elif row.partition != self._harvest.partition:
                outcomes[pilot] = Outcome(False, f"it is in partition {row.partition} now: not ours to touch")
            elif end.held:
                outcomes[pilot] = self._settle(pilot, row, "held already")
            else:
                (waiting if end.state is SlurmState.PENDING else running).append(pilot)
        # uhold: a hold that the owner may lift; an operator's plain `hold` would be the staff's.
        failed = self._each(["scontrol", "uhold"], waiting)
        for pilot in waiting:
            outcomes[pilot] = Outcome(pilot not in failed, failed.get(pilot, "held before it started"))
        late = {task_of(action.pilot) for action in actions if action.kill}
        outcomes |= self._requeue(running, rows, late)
        # Once it is requeued, Slurm's record of a task forgets that it was preempted (measured, 22.05).
        for pilot in running:
            if pilots.is_preempted(rows[pilot]):
                outcomes[pilot] = replace(outcomes[pilot], preempted=True)
        return [outcomes[task_of(action.pilot)] for action in actions]

    def _kill(self, tasks: Sequence[str]) -> None:
        """Kill what `srun` runs in these tasks, right before they are requeued: it had its time to leave.

        The step, not the job: that ends by SIGTERM and KillWait as ever, and consumes the task. Nothing comes between
        this and `requeuehold`: a task whose step is dead ends a moment later, and is consumed then. (Measured, 22.05,
        KillWait 5 s, a payload deaf to SIGTERM: its node is free after 0.1 s, after 7.4 s by requeuehold alone.)
        """
        for batch in batches(tasks, MAX_TASKS_PER_COMMAND):
            self._commands.run(["scancel", "--signal=KILL", *(f"{task}.0" for task in batch)])

    def _requeue(
        self, running: Sequence[str], rows: Mapping[str, squeue.TaskRecord], late: Collection[str]
    ) -> dict[str, Outcome]:
        outcomes: dict[str, Outcome] = {}
        locked = [pilot for pilot in running if not rows[pilot].requeue]
        for pilot, error in self._each(["scontrol", "update"], locked, "Requeue=1").items():
            outcomes[pilot] = Outcome(is_gone(error), f"scontrol update Requeue=1: {error}")
        open_ones = [pilot for pilot in running if pilot not in outcomes]
        self._kill([pilot for pilot in open_ones if pilot in late])
        refused = self._each(["scontrol", "requeuehold"], open_ones)
        unset = self._each(["scontrol", "update"], open_ones, "Requeue=0")
        for pilot in open_ones:
            if pilot in refused:
                outcomes[pilot] = Outcome(is_gone(refused[pilot]), f"scontrol requeuehold: {refused[pilot]}")
            elif pilot in unset and not is_gone(unset[pilot]):
                detail = f"requeued and held; Requeue=0 failed ({unset[pilot]}) and is set before its next start"
                outcomes[pilot] = Outcome(True, detail)
            else:
                outcomes[pilot] = Outcome(True, "requeued and held")
        return outcomes

    def cancel(self, action: CancelTasks) -> Outcome:
        if not action.pilots:
            return Outcome(True, "nothing to cancel")
        # Looked up first: a task that its owner has made a job of the main queue is left alone. (scancel's own filter
        # `-p harvest 7_[0,2]` cancels the whole array 7 instead: measured, 22.05.)
        present = self._queries.harvest()
        tasks: dict[int, list[int]] = {}
        for pilot in dict.fromkeys(task_of(pilot) for pilot in action.pilots):
            array, task = pilots.split_id(pilot)
            if pilot in present:
                tasks.setdefault(array, []).append(task)
        if not tasks:
            return Outcome(True, "gone already")
        answer = self._commands.run(
            ["scancel", *(f"{array}_[{','.join(runs(set(found)))}]" for array, found in sorted(tasks.items()))]
        )
        if not answer.ok and not all(is_gone(part) for part in answer.error.split(";")):
            return Outcome(False, f"scancel: {answer.error}")
        return Outcome(True, f"{sum(map(len, tasks.values()))} cancelled")

    def take_back(self, strays: Sequence[Stray]) -> Sequence[Outcome]:
        rows = self._queries.jobs_of_harvest()
        outcomes = {stray.job: self._why_not_ended(stray, rows.get(stray.job)) for stray in strays}
        wanted = [rows[job].id for job, outcome in outcomes.items() if outcome is None]
        for batch in batches(wanted, MAX_TASKS_PER_COMMAND):
            self._kill_whole([rows[job] for job in batch if pilots.end_state(rows[job]).state is SlurmState.RUNNING])
            answer = self._commands.run(["scancel", *batch])
            if answer.ok or all(is_gone(part) for part in answer.error.split(";")):
                outcomes |= dict.fromkeys(batch, Outcome(True, "ended"))
            else:
                outcomes |= dict.fromkeys(batch, Outcome(False, f"scancel: {answer.error}"))
        return [outcomes[stray.job] or Outcome(False, "not tried") for stray in strays]

    def _why_not_ended(self, stray: Stray, row: squeue.TaskRecord | None) -> Outcome | None:
        """What is said of a job that is not to be ended (any more); None: it is."""
        if row is None:
            return Outcome(True, "gone already")
        end = pilots.end_state(row)
        if end.is_over or job_state(row.state) is SlurmState.COMPLETING:
            return Outcome(True, f"ended already: {end.detail or 'active'}")
        if row.partition != self._harvest.partition:
            return Outcome(False, f"it is in partition {row.partition} now: not ours to touch")
        if self._harvest.account and row.account != self._harvest.account:
            return Outcome(False, f"its account is {row.account or 'none'} now: not ours to touch")
        if row.user != stray.user:
            return Outcome(True, f"gone already: job {stray.job} is another one, of {row.user}")
        if end.held:
            return Outcome(True, "held, so it takes no node")
        age_s = MIN_KILLED_AGE_S if row.start_time is None else self._now() - row.start_time
        if end.state is SlurmState.RUNNING and 0 <= age_s < MIN_KILLED_AGE_S:
            return Outcome(True, "it has just begun: ended at the next look")
        return None

    def _kill_whole(self, rows: Sequence[squeue.TaskRecord]) -> None:
        """Kill all that these jobs run, right before they are cancelled: one that is deaf to SIGTERM would keep its
        nodes for KillWait more. Errors are of no consequence: what is left KillWait ends.

        Stopped first, so that a script begins no further step. (Measured, 22.05, scripts that ignore SIGTERM and
        begin steps in a loop: their nodes are free after 0.3 s; without the stop after KillWait.)
        """
        if not rows:
            return
        # By its own number: by `1_2` scancel asks again and again for 95 s, though the job is stopped (22.05). The
        # number of an array's last task is the array's, and would stand for all tasks.
        alone = [row for row in rows if row.raw_id != row.array_id]
        jobs = [row.id for row in rows]
        with suppress(ClusterUnavailable):
            if alone:
                stop = ["scancel", "--signal=STOP", "--full", *(str(row.raw_id) for row in alone)]
                self._commands.run(stop, timeout_s=STOP_TIMEOUT_S)
            if last := [row.id for row in rows if row not in alone]:
                self._commands.run(["scancel", "--signal=STOP", "--batch", *last], timeout_s=STOP_TIMEOUT_S)
        if steps := self._queries.steps(jobs):
            self._commands.run(["scancel", "--signal=KILL", *steps])
        self._commands.run(["scancel", "--signal=KILL", "--batch", *jobs])

    # Help

    def _settle(self, pilot: str, row: squeue.TaskRecord, detail: str) -> Outcome:
        if row.requeue:
            answer = self._commands.run(["scontrol", "update", f"JobId={pilot}", "Requeue=0"])
            if not answer.ok:
                return Outcome(True, f"{detail}; Requeue=0 failed ({answer.error}) and is set before its next start")
        return Outcome(True, detail)

    def _each(self, command: list[str], tasks: Sequence[str], *fields: str) -> dict[str, str]:
        """Run one command over many tasks; the error of each that failed: scontrol names the task before each error
        when it is given several."""
        failed: dict[str, str] = {}
        for batch in batches(tasks, MAX_TASKS_PER_COMMAND):
            names = ",".join(batch)
            which = [f"JobId={names}", *fields] if fields else [names]
            answer = self._commands.run([*command, *which])
            if answer.ok:
                continue
            named = {task: why for task, why in text.task_errors(answer.error).items() if task in batch}
            if not named or len(answer.error) >= MAX_ERROR_CHARS:  # cut short: who else failed is not known
                failed |= dict.fromkeys(batch, answer.error)
            failed |= named
        return failed

    def _unfit(self, start: pilots.PinnedTask, row: squeue.TaskRecord | None) -> str:
        """What makes this task no pilot, whatever the node: someone changed it. Empty when nothing does."""
        uid = self._owner_of(start.job)
        return "" if row is None or uid is None else "; ".join(pilots.faults(row, self._harvest, uid))

    def _rewritten(self, pinned: Mapping[str, pilots.PinnedTask]) -> list[tuple[str, str]]:
        """Those of the tasks just pinned that are not as they were asked for, and how."""
        rows = self._queries.tasks(list(pinned))
        found = []
        for task, start in pinned.items():
            row, uid = rows.get(task), self._owner_of(start.job)
            wrong: Sequence[str] = ["Slurm no longer knows it"]
            if row is not None and uid is not None:
                wrong = pilots.changed_by_slurm(row, self._harvest, uid, start.nodes, start.minutes)
            if wrong:
                found.append((task, "; ".join(wrong)))
        return found

    def _why_not_now(self, start: pilots.PinnedTask, row: squeue.TaskRecord | None, nodes: Mapping[str, Node]) -> str:
        """Why this task, sound in itself, may not be started on its nodes now; empty when it may."""
        uid = self._owner_of(start.job)
        if uid is None:
            return f"the owner of job {start.job} is not known"
        if fault := start.fault(self._harvest):
            return fault
        if row is None:
            return "Slurm no longer knows this task"
        if job_state(row.state) is not SlurmState.PENDING or not pilots.is_held(row):
            return f"the task is {row.state.lower()} ({row.reason or 'no reason'}), not held"
        if row.restarts and row.submit_time is not None and self._now() - row.submit_time < MIN_RESTART_DELAY_S:
            return "it was requeued a moment ago, and slurmd would refuse it as killed; it can start next time"
        return start.not_to_be_had(nodes, self._harvest.partition)


def _refusal(detail: str) -> Outcome:
    """A start that Slurm's command failed for: refused, unless the task is gone or slurmctld was not reached."""
    return Outcome(False, detail, refused=not is_gone(detail) and not is_unreachable(detail))
