"""One arm of the harm bench: a lab that plays a main queue, and what became of each job on it."""

from __future__ import annotations

import re
import textwrap
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from malletrain.slurm.formats import hostlist, sdiag, text
from scripts.lab import Lab, LabConfig, LabError
from scripts.play.load import MainJob
from scripts.play.player import Player

#: Nodes of one leaf switch.
LEAF = 4

#: So often (seconds) staff asks for a short reservation of two nodes, and so much later it begins.
RESERVE_EVERY_S, RESERVE_LEAD_S = 90.0, 40.0

#: slurmctld's log as it starts a job (22.05 to 26.05).
STARTED = re.compile(
    r"(sched: Allocate|backfill: (?:_start_job: )?Started|_slurm_rpc_allocate_resources)"
    r"\D*JobId=(\d+)(?:_\d+\((\d+)\))?"
)
_RPC = re.compile(r"\s+([A-Z_]+)\s+\(\s*\d+\) count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)")
_FIELD = re.compile(r"(?:^| )([A-Za-z]+)=(\S*)")


#: Its script lets pilots skip prolog and epilog.
RECIPE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "admin-slurm.md"


def lab_config(nodes: int, profile: str, *, preemption: bool) -> LabConfig:
    """A lab with leaf switches of four nodes and two classes of Weight. Without preemption as with, harvest partition
    and all: only that Slurm would preempt nothing."""
    leaves = [f"SwitchName=leaf{i} Nodes=n[{i * LEAF:03d}-{i * LEAF + LEAF - 1:03d}]" for i in range(nodes // LEAF)]
    topology = "\n".join([*leaves, f"SwitchName=top Switches=leaf[0-{nodes // LEAF - 1}]"]) + "\n"
    settings = [("TopologyPlugin", "topology/tree"), ("SlurmctldDebug", "info")]
    if not preemption:
        settings += [("PreemptType", "preempt/none"), ("PreemptMode", "OFF")]
    return LabConfig(
        nodes=nodes,
        profile="site" if profile == "site" else "fast",
        users=True,
        preempt_mode="REQUEUE",
        settings=tuple(settings),
        node_attributes=tuple((i, "Weight=10") for i in range(nodes // 2, nodes)),
        files=(("topology.conf", topology),),
    )


def rpcs_by_kind(sdiag_text: str) -> dict[str, tuple[int, float]]:
    """What slurmctld was asked since its counters were reset, by kind of message (sdiag(1)): how often, and for how
    many seconds in all."""
    found = (_RPC.fullmatch(line.rstrip()) for line in sdiag_text.splitlines())
    return {match[1]: (int(match[2]), int(match[3]) / 1e6) for match in found if match}


class Arm:
    """A lab of the bench while it plays."""

    def __init__(self, name: str, lab: Lab, jobs: Sequence[MainJob]) -> None:
        self.name = name
        self.lab = lab
        self.player = Player(lab, jobs, "bob", lab.path / "main")
        self._stop = threading.Event()
        self._staff = threading.Thread(target=self._reserve, name=f"staff of {name}", daemon=True)
        self._asked: list[tuple[float, bool]] = []
        self._reserved: list[tuple[str, float, float]] = []

    def reset(self) -> None:
        """Count Slurm's cycles from now on."""
        self.lab.run(["sdiag", "-r"])

    def start(self, begin: float) -> None:
        """Play from `begin` (time.time()) on."""
        self._begin = begin
        self.player.start(begin)
        self._staff.start()

    def stop(self) -> None:
        """Submit and reserve nothing more."""
        self._stop.set()
        self._staff.join()
        self.player.stop()

    def facts(self) -> dict[str, object]:
        """What became of each job, and of the lab; times in seconds."""
        nodes_of = self._nodes()
        how = self._how()
        jobs: dict[str, dict[str, object]] = {}
        for played in self.player.played():
            job, number = played.job, self.player.ids.get(played.job.number)
            nodes = nodes_of.get(f"main{job.number}", [])
            indices = [int(name[1:]) for name in nodes]
            jobs[str(job.number)] = {
                "id": number,
                "submitted_at": self.player.submitted_at(job.number),
                "on": nodes,
                "kind": job.kind.value,
                "nodes": job.nodes,
                "submit_s": job.submit_s,
                "start_s": played.start_s,
                "refused": played.refused,
                "how": how.get(number or 0, "at once"),
                "near_reservation": self._near_reservation(job.submit_s),
                "leaves": len({i // LEAF for i in indices}),
                "heavy": sum(1 for i in indices if i >= len(self.lab.nodes) // 2),
            }
        counts = self.lab.run(["sdiag"]).stdout
        means = [int(n) / 1e6 for n in re.findall(r"Mean cycle:\s+(\d+)", counts)]
        seen = sdiag.parse(counts)
        return {
            "jobs": jobs,
            "reservations": len(self._asked),
            "reservations_refused": sum(1 for _, made in self._asked if not made),
            "drained": self.lab.run(["sinfo", "-h", "-N", "-t", "drain,drng,down,fail", "-o", "%N"]).stdout.split(),
            "main_cycle_s": means[0] if means else None,
            "main_cycle_max_s": seen.main_cycle_max_s,
            "backfill_cycle_s": means[1] if len(means) > 1 else None,
            "backfill_cycle_max_s": seen.backfill_cycle_max_s,
        }

    def end_all(self) -> None:
        """End all main jobs, so that Slurm's record of ended jobs has those that still ran."""
        self.lab.run(["scancel", "-p", "batch"])
        self.lab.wait_for(lambda: not self.lab.run(["squeue", "-h", "-p", "batch"]).stdout.strip(), 60, "no main job")

    def busy(self, epilog_s: float) -> list[tuple[str, float, float]]:
        """When which node had a main job that has ended, with its prolog and `epilog_s` after it, or was reserved for
        staff: node, from, to (Unix seconds)."""
        jobs = [
            (node, start, end + epilog_s)
            for name, nodes, start, end in self._completions()
            if name.startswith("main") and end > start
            for node in nodes
        ]
        return jobs + self._reserved

    def _reserve(self) -> None:
        number = 0
        while not self._stop.wait(max(0.0, self._begin + (number + 1) * RESERVE_EVERY_S - time.time())):
            number += 1
            at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + RESERVE_LEAD_S))
            asked = ["scontrol", "create", "reservation", f"ReservationName=staff{number}", f"StartTime={at}"]
            try:
                self.lab.run([*asked, "Duration=1", "NodeCnt=2", "Users=root"])
                shown = self.lab.run(["scontrol", "-o", "show", "reservation", f"staff{number}"]).stdout
                for row in text.reservations(shown):
                    self._reserved += [(node, row.start, row.end) for node in row.nodes]
                made = True
            except LabError:
                made = False
            self._asked.append((time.time() - self._begin, made))

    def _near_reservation(self, submit_s: float) -> bool:
        return any(at - 5.0 <= submit_s <= at + RESERVE_LEAD_S + 60.0 for at, made in self._asked if made)

    def _how(self) -> dict[int, str]:
        """By which scheduler each job was started."""
        found = {}
        for line in (self.lab.log / "slurmctld.log").read_text(errors="replace").splitlines():
            match = STARTED.search(line)
            if match:
                found[int(match[3] or match[2])] = "backfilled" if match[1].startswith("backfill") else "top"
        return found

    def _nodes(self) -> dict[str, list[str]]:
        nodes: dict[str, list[str]] = {}
        for name, held, _, _ in self._completions():
            nodes.setdefault(name, []).extend(held)
        return nodes

    def _completions(self) -> list[tuple[str, list[str], float, float]]:
        """Slurm's own record of ended jobs (jobcomp/filetxt): name, nodes, start, end."""
        path = self.lab.log / "jobcomp.txt"
        rows = []
        for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
            row = dict(_FIELD.findall(line))
            start, end = _moment(row.get("StartTime", "")), _moment(row.get("EndTime", ""))
            held = row.get("NodeList", "")
            if start and end and held not in ("", "(null)"):
                rows.append((row.get("Name", ""), list(hostlist.expand(held, str(path))), start, end))
        return rows


def _moment(text: str) -> float:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return 0.0


def labs_up(stack: ExitStack, directory: Path, configs: dict[str, LabConfig]) -> dict[str, Lab]:
    """The labs of all arms, taken down by `stack`."""
    return {name: stack.enter_context(Lab.up(directory / name, config)) for name, config in configs.items()}


def epilog_wrapper(text: str, scripts: Path, which: str) -> str:
    """The document's script for `which` (prolog or epilog), its folder /etc/slurm put at `scripts`."""
    found = re.search(r"```sh\n( *#!/bin/sh\n *# /etc/slurm/epilog.*?)```", text, re.DOTALL)
    if found is None:
        raise SystemExit(f"{RECIPE} has no script that begins with `# /etc/slurm/epilog`")
    return textwrap.dedent(found[1]).rstrip(" ").replace("epilog", which).replace("/etc/slurm", str(scripts))


def skip_epilog(lab: Lab) -> None:
    """Let pilots skip the lab's own prolog and epilog: put the script before them. slurmd reads them at each job."""
    scripts = lab.path / "scripts"
    for which in ("prolog", "epilog"):
        own = scripts / which
        own.rename(scripts / f"{which}.site")
        quick = scripts / f"{which}.harvest"
        quick.write_text("#!/bin/sh\nexit 0\n")
        own.write_text(epilog_wrapper(RECIPE.read_text(encoding="utf-8"), scripts, which))
        for each in (own, quick):
            each.chmod(0o755)
