"""The doors to Slurm: `mtbatch`, the cluster's adapter and the actuator, over a fake of Slurm's commands."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from malletrain import __version__
from malletrain.cli.mtbatch import main as mtbatch_main
from malletrain.config import parse as parse_config
from malletrain.domain.decision import Action, CancelTasks, CutLimit, Outcome, RecyclePilot, StartPilot
from malletrain.domain.errors import MalletrainError
from malletrain.domain.snapshot import Node, Reservation, SlurmJob, Snapshot
from malletrain.loop.trackers.harm_signals import PAUSE_S, SLOW_CYCLES_PER_HOUR
from malletrain.site_rules import harvest_of, rules_from
from malletrain.slurm.actuator.bounds import ActuatorBounds
from malletrain.slurm.actuator.protocol import ActuatorRequest, write_reply, write_request
from malletrain.slurm.actuator.server import Actuator, AuditLog
from malletrain.slurm.cluster import SlurmCluster
from malletrain.slurm.command import CommandResult, Commands
from malletrain.slurm.site.site_facts import Harvest
from malletrain.slurm.site.site_facts import parse as parse_site
from tests.corpus import doors
from tests.corpus.fake_slurm import FakeSlurm

Json = dict[str, Any]


@contextlib.contextmanager
def _answered_by(slurm: FakeSlurm) -> Iterator[None]:
    """No command runs: `slurm` answers."""

    def run(self: Commands, argv: Sequence[str], timeout_s: float | None = None) -> CommandResult:
        status, out, err = slurm.call(argv)
        return CommandResult(out, "; ".join(err.split("\n")[:-1]) if status else "")

    with patch.object(Commands, "run", run):
        yield


def mtbatch(slurm: FakeSlurm, *argv: str, **environ: str) -> doors.Done:
    """`mtbatch ARGV` in the present folder; paths, interpreter and version are left out of what it prints."""
    with _environment(environ), _answered_by(slurm):
        done = doors.run(mtbatch_main, argv)
    python = {shlex.quote(sys.executable): "/python", sys.executable: "/python"}
    hidden = {str(Path.cwd()): "/here", **python, f"mtbatch {__version__}": "mtbatch VERSION"}
    out, err = done.out, done.err
    for text, instead in hidden.items():
        out, err = out.replace(text, instead), err.replace(text, instead)
    return doors.Done(done.status, out, err)


def malletrain(slurm: FakeSlurm, *argv: str) -> doors.Done:
    """`malletrain ARGV` over this Slurm."""
    with _environment({}), _answered_by(slurm):
        return doors.malletrain(*argv)


@contextlib.contextmanager
def _environment(environ: Mapping[str, str]) -> Iterator[None]:
    """This environment alone, with a home in the present folder, and its time zone."""
    own = {"PATH": "/nonexistent", "HOME": str(Path.cwd()), "LANG": "C.UTF-8", "TZ": "UTC"}
    try:
        with patch.dict(os.environ, {**own, **environ}, clear=True):
            time.tzset()
            yield
    finally:
        time.tzset()


# --- The cluster ----------------------------------------------------------------------------------------------


def action(do: str, job: int = 1, pilot: str = "", node: str = "", **more: Any) -> Action:
    """An action for Slurm."""
    match do:
        case "start":
            return StartPilot(job, pilot, node, more["limit_s"], "")
        case "cut":
            return CutLimit(job, pilot, node, more["ends_at"], "")
        case "recycle":
            return RecyclePilot(job, pilot, node, "")
        case "cancel":
            return CancelTasks(job, tuple(more["pilots"]), "")
        case _:
            raise ValueError(do)


class Adapter:
    """The live cluster, at a fixed time; jobs below 100 belong to uid 1001, others to no user."""

    def __init__(self, slurm: FakeSlurm, now: float, *, max_nodes: int = 1, max_time_s: float | None = None) -> None:
        harvest = Harvest("harvest", "hacct", "hqos", max_time_s, max_nodes)
        commands = Commands({})
        self._slurm = slurm
        self._it = SlurmCluster(commands, harvest, _owner, lambda: now)
        self._actuator = Actuator(
            commands, harvest, ActuatorBounds(3600.0), AuditLog(Path(os.devnull), lambda: now), lambda: now
        )

    def apply(self, actions: Sequence[Action]) -> object:
        """What became of actions of one kind, or why nothing did."""
        starts = [it for it in actions if isinstance(it, StartPilot)]
        recycles = [it for it in actions if isinstance(it, RecyclePilot)]
        if starts:
            return self._or_error(lambda: [_outcome_row(o) for o in self._it.start(starts)])
        if recycles:
            return self._or_error(lambda: [_outcome_row(o) for o in self._it.recycle(recycles)])
        (one,) = actions
        if isinstance(one, CutLimit):
            return self._or_error(lambda: _outcome_row(self._it.cut(one)))
        if isinstance(one, CancelTasks):
            return self._or_error(lambda: _outcome_row(self._it.cancel(one)))
        raise ValueError(one)

    def order(self, line: bytes) -> str:
        """The actuator's answer to a line."""
        with _answered_by(self._slurm):
            return write_reply(self._actuator.answer(line)).decode()

    def snapshot(self) -> object:
        return self._or_error(lambda: snapshot_row(self._it.snapshot()))

    def look(self) -> object:
        """A light look after a whole one."""
        return self._or_error(lambda: snapshot_row(self._it.look(self._it.snapshot())))

    def inspect(self, array: int) -> object:
        """A new array of a job of uid 1001."""
        return self._or_error(lambda: _report_row(self._it.inspect(array, doors.job(1))))

    def end_of(self, pilot: str) -> object:
        """How a pilot stands or ended."""

        def asked() -> Json:
            it = self._it.end_of(pilot)
            return {
                "state": it.state.value,
                "preempted": it.preempted,
                "held": it.held,
                "exit_code": it.exit_code,
                "detail": it.detail,
            }

        return self._or_error(asked)

    def _or_error(self, call: Callable[[], object]) -> object:
        try:
            with _answered_by(self._slurm):
                return call()
        except MalletrainError as error:
            return {"error": str(error)}


def _owner(job: int) -> int | None:
    return 1001 if job < 100 else None


def order_line(actions: Sequence[Any]) -> str:
    """The line that the daemon sends the actuator."""
    return write_request(ActuatorRequest(tuple(actions), {it.job_id: 1001 for it in actions})).decode()


def _outcome_row(it: Outcome) -> Json:
    return {"done": it.done, "detail": it.detail, "unfit": it.unfit}


def _report_row(it: Any) -> Json:
    return {"array": it.array_id, "tasks": list(it.tasks), "faults": list(it.faults)}


def snapshot_row(it: Snapshot) -> Json:
    """A snapshot as it is recorded."""
    return {
        "taken_at": it.taken_at,
        "nodes": [_node_row(node) for node in it.nodes],
        "jobs": [_job_row(job) for job in it.jobs],
        "reservations": [_reservation_row(each) for each in it.reservations],
        "plan": {
            "last_cycle_at": it.plan.last_cycle_at,
            "interval_s": it.plan.interval_s,
            "depth": it.plan.depth,
            "queue_length": it.plan.queue_length,
            "main_cycle_s": it.plan.main_cycle_s,
        },
        "warnings": list(it.warnings),
        "leaves": dict(it.leaves),
    }


def _node_row(it: Node) -> Json:
    return {
        "name": it.name,
        "state": it.state.value,
        "partitions": list(it.partitions),
        "cpus": it.cpus,
        "memory_mib": it.memory_mib,
        "gres": it.gres,
        "features": list(it.features),
        "weight": it.weight,
        "flags": sorted(it.flags),
        "reason": it.reason,
    }


def _job_row(it: SlurmJob) -> Json:
    return {
        "id": it.id,
        "raw_id": it.raw_id,
        "user": it.user,
        "account": it.account,
        "partition": it.partition,
        "qos": it.qos,
        "state": it.state.value,
        "reason": it.reason,
        "name": it.name,
        "node_count": it.node_count,
        "array": [it.array_id, it.task_count],
        "het": it.het_id,
        "time_limit_s": it.time_limit_s,
        "submitted": it.submit_time,
        "eligible": it.eligible_time,
        "starts": it.start_time,
        "ends": it.end_time,
        "nodes": list(it.nodes),
        "planned": list(it.planned_nodes),
        "required": list(it.required_nodes),
        "excluded": list(it.excluded_nodes),
        "features": it.features,
        "gres": it.gres,
        "dependency": it.dependency,
        "priority": it.priority,
        "switches": it.switches,
    }


def _reservation_row(it: Reservation) -> Json:
    return {
        "name": it.name,
        "start": it.start,
        "end": it.end,
        "nodes": list(it.nodes),
        "flags": sorted(it.flags),
        "users": list(it.users),
        "accounts": list(it.accounts),
    }


# --- The site -------------------------------------------------------------------------------------------------


def site_rules(text: str, config: str, partitions: str) -> Json:
    """What decisions are given of a configuration, on a site that answers so for its own."""
    configuration, facts = parse_config(text, "malletrain.toml"), parse_site(config, partitions)
    rules, harvest = rules_from(configuration, facts), harvest_of(configuration, facts)
    preemptions = configuration.breaker.preemptions_per_hour
    return {
        "harvest": [harvest.partition, harvest.account, harvest.qos, harvest.max_time_s, harvest.max_nodes],
        "breaker": [
            preemptions,
            preemptions // 2,
            max(1, preemptions // 10),
            SLOW_CYCLES_PER_HOUR,
            PAUSE_S,
        ],
        "partition": rules.harvest_partition,
        "horizon_s": rules.horizon_s,
        "objective": [rules.objective.value, rules.alpha],
        "weights": [dict(rules.account_weights), dict(rules.account_shares)],
        "limits": [
            {
                "name": it.name,
                "users": sorted(it.users),
                "accounts": sorted(it.accounts),
                "nodes": [it.least_nodes, it.most_nodes],
                "available": it.available,
                "draw": it.per_node,
            }
            for it in rules.limits
        ],
        "user_share": rules.user_share,
        "budgets": [[it.name, sorted(it.accounts), it.node_s, it.period.value] for it in rules.budgets],
        "waits": [rules.max_wait_s, rules.turn_s],
        "keep": [rules.keep_idle, rules.keep_leaves],
        "pilots": [rules.max_pilots, rules.max_nodes, rules.max_pilot_s, rules.max_starts, rules.max_queue],
        "margins": [rules.margin_s, rules.exit_s, rules.min_hole_s],
        "leave": [rules.leave_lead_s, rules.leave_patience_s, rules.usual_leave_s],
        "start": [rules.start_patience_s, rules.unknown_s, rules.claim_patience_s, rules.claim_again_s],
        "ends": [rules.exit_patience_s, rules.max_top_up, rules.max_failures],
        "probing": [rules.probing.profile.value, rules.probing.windows, rules.probing.share, rules.probing.each],
        "nodes": [sorted(rules.include_nodes), sorted(rules.exclude_nodes)],
    }
