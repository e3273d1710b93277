"""Options and script read into a `BatchRequest`, with every fault found. Standard library only."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from malletrain.slurm.submission import directives
from malletrain.slurm.submission.directives import BatchOptions, OptionText
from malletrain.slurm.submission.mtbatch_options import ALLOWED, Use
from malletrain.slurm.submission.sbatch import BatchRequest, InvalidBatch, default_tasks

_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?\Z")
#: A user's name or one address. It goes into the arguments of a site's program, and never begins with a dash.
_ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}(?:@[A-Za-z0-9][A-Za-z0-9.-]{0,252})?\Z")
#: As sbatch(1) has it; the names of MIG slices have dots, as `1g.10gb:7`.
_GPUS = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}:)?[1-9][0-9]{0,3}\Z")
_PMI = re.compile(r"none\Z|pmi2\Z|pmix(?:_v[0-9]{1,2})?\Z")


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the site (or the daemon) fills in where the user says nothing. `gres`: all of a node, as `gpu:4`."""

    partition: str
    account: str = ""
    qos: str = ""
    gres: str = ""


def request(
    script: bytes, where: str, options: BatchOptions, arguments: Sequence[str], defaults: Defaults, cwd: str
) -> BatchRequest:
    """What the script, the environment and the command line ask for, together.

    Args:
        script: the user's script.
        where: its name, for messages and for the job's name.
        options: of the command line and the environment; the script's are read here and are weaker.
        arguments: what follows the script's name.
        defaults: the site's.
        cwd: the caller's working directory, an absolute path.

    Raises:
        InvalidBatch: with every fault found.
    """
    shell, faults_of_head = directives.interpreter(script, where)
    whole = options.over(directives.from_script(script, where))
    reader = _Reader(whole.texts, [*faults_of_head, *whole.faults])
    least, most = reader.nodes()
    sizes = reader.sizes(least, most)
    passed = {name: each.value for name, each in whole.texts.items() if ALLOWED[name].use is Use.FORWARD}
    partition = passed.pop("partition", defaults.partition)
    if partition != defaults.partition and defaults.partition:
        reader.fault("partition", f"pilots run in partition {defaults.partition} only")
    chdir = passed.pop("chdir", cwd)
    if not chdir.startswith("/"):
        chdir = f"{cwd.rstrip('/')}/{chdir}"
    for word in (*arguments, chdir):
        if directives.has_control(word):
            reader.faults.append(f"command line: {word[:40]!r} holds a control character")
    for name, value in (("chdir", chdir), *((n, passed[n]) for n in ("output", "error") if n in passed)):
        if "\\" in value:
            reader.fault(name, f"Slurm takes a backslash in a path for an escape; rename {value[:60]!r}")
    batch_min, batch_max = reader.count("batch-min"), reader.count("batch-max")
    if batch_min is not None and batch_max is not None and batch_min > batch_max:
        reader.fault("batch-min", f"{batch_min} is above --batch-max={batch_max}")
    if (batch_min is None) != (batch_max is None):
        reader.fault("batch-min", "give --batch-min and --batch-max together: the range that the training bears")
    tasks = reader.count("tasks") or default_tasks(most)
    elastic = reader.text("elastic", "live")
    if elastic not in ("live", "restart", "tasks"):
        reader.fault("elastic", f"{elastic[:40]!r} is none of live, restart, tasks")
    mpi = reader.text("mpi", "none")
    if not _PMI.match(mpi):
        reader.fault("mpi", f"{mpi[:40]!r} is none of none, pmi2, pmix (srun --mpi=list names the site's)")
    if elastic == "restart" and batch_min is not None:
        reader.fault("batch-min", "a script that is restarted chooses its own batch: leave --batch-min and -max out")
    resume = reader.count("resume")
    if resume is not None and elastic == "restart":
        reader.fault("resume", "a script that is restarted loads its own checkpoint: leave it out")
    processes = reader.processes()
    if processes and elastic == "restart":
        reader.fault("processes-per-node", "a script that is restarted starts its processes itself: leave it out")
    if processes and mpi != "none":
        reader.fault("processes-per-node", f"--mpi={mpi} starts the processes of a node too: leave one of them out")
    if elastic == "tasks":
        reader.of_items(least)
    to_check = reader.to_check(elastic)
    gres = reader.gres(passed.pop("gres", ""))
    after = reader.after()
    mail, mail_user = reader.mail()
    curve, profile = reader.curve(), reader.text("profile", "")
    if profile not in ("", "none", "passive", "active", "downward", "given"):
        reader.fault("profile", f"{profile[:40]!r} is none of none, passive, active, downward, given")
    elif profile and (profile == "given") != bool(curve):
        reader.fault("profile", f"{profile} and " + ("--curve: leave one of them out" if curve else "no --curve"))
    result = BatchRequest(
        name=passed.pop("job-name", where.rpartition("/")[2]),
        min_nodes=least,
        max_nodes=most,
        partition=partition,
        chdir=chdir,
        user_body=script,
        interpreter=shell,
        arguments=tuple(arguments),
        account=passed.pop("account", defaults.account),
        qos=passed.pop("qos", defaults.qos),
        gres=gres or defaults.gres,
        constraint=passed.pop("constraint", ""),
        passed=tuple(sorted(passed.items())),
        tasks=tasks,
        sizes=sizes,
        weight=reader.positive("weight", 1.0) or 1.0,
        elastic=elastic,
        curve=curve,
        profile=profile,
        total_samples=reader.positive("total-samples"),
        budget_node_hours=reader.positive("budget"),
        batch_min=batch_min,
        batch_max=batch_max,
        deadline=reader.deadline(),
        mpi=mpi,
        resume=resume,
        after=after,
        mail=mail,
        mail_user=mail_user if mail else "",
        class_min=reader.class_min(most),
        processes=processes,
        python=reader.python(cwd),
        trusted="trust" in whole.texts,
        to_check=to_check,
    )
    if result.deadline is not None and (result.total_samples is None or not curve):
        reader.fault("deadline", "needs to know the work and the speed: give --total-samples and --curve too")
    if reader.faults:
        raise InvalidBatch(reader.faults)
    return result


class _Reader:
    """Values out of options, faults into a list."""

    def __init__(self, texts: Mapping[str, OptionText], faults: list[str]) -> None:
        self.texts = texts
        self.faults = faults

    def fault(self, name: str, what: str) -> None:
        given = self.texts.get(name)
        self.faults.append(f"{given.where if given else 'command line'}: --{name}: {what}")

    def text(self, name: str, default: str) -> str:
        given = self.texts.get(name)
        return default if given is None else given.value

    def nodes(self) -> tuple[int, int]:
        given = self.texts.get("nodes")
        if given is None:
            self.faults.append("no node range: add `#SBATCH --nodes=MIN-MAX` (as 1-8) to the script")
            return 1, 1
        match = _RANGE.match(given.value)
        if match is None:
            self.fault("nodes", f"{given.value[:40]!r} is not MIN-MAX, as 1-8")
            return 1, 1
        least, most = int(match[1]), int(match[2] or match[1])
        if match[2] is None:
            self.fault("nodes", f"{given.value} is one size; a malleable job needs a range, as 1-{max(2, most)}")
        elif least < 1:
            self.fault("nodes", "MIN must be at least 1 (with no node at all the job waits)")
        elif least > most:
            self.fault("nodes", f"MIN {least} is above MAX {most}")
        return max(1, least), max(1, most)

    def of_items(self, least: int) -> None:
        """Faults of what has no meaning for independent items."""
        if least > 1:
            self.fault("nodes", f"independent items need no {least} nodes at once: give 1-MAX")
        for name in ("batch-min", "batch-max", "resume"):
            if name in self.texts:
                self.fault(name, "a job of independent items trains nothing: leave it out")
        for name in ("curve", "profile", "sizes"):
            if name in self.texts:
                self.fault(name, "independent items scale with the nodes, on any number of them: leave it out")

    def sizes(self, least: int, most: int) -> tuple[int, ...]:
        text = self.text("sizes", "")
        if not text:
            return ()
        parts = text.split(",")
        if not all(part.isascii() and part.isdigit() and len(part) < 7 for part in parts):
            self.fault("sizes", f"{text[:40]!r} is not a list of node counts, as 1,2,4,8")
            return ()
        found = tuple(sorted({int(part) for part in parts}))
        outside = [size for size in found if not least <= size <= most]
        if outside:
            self.fault("sizes", f"{outside[0]} is outside --nodes={least}-{most}")
        return found

    def processes(self) -> str:
        """How often the script runs on each node: a number or `gpu`; "" where nothing is said."""
        name = "processes-per-node"
        return "gpu" if self.text(name, "") == "gpu" else str(self.count(name) or "")

    def python(self, cwd: str) -> str:
        """The Python that pilots run; "": what is active. A folder of an environment stands for its Python."""
        text = self.text("python", "")
        if not text:
            return ""
        path = Path(cwd) / text
        return str(path / "bin" / "python" if path.is_dir() else path)

    def to_check(self, elastic: str) -> tuple[str, ...]:
        """The script, with its arguments, that is to be checked before it is submitted; empty where none is."""
        text = self.text("check", "")
        try:
            words = tuple(shlex.split(text))
        except ValueError as error:
            self.fault("check", f"{text[:40]!r} is no command: {error}")
            return ()
        if words and "trust" in self.texts:
            self.fault("check", "--trust is for scripts that are not checked: leave one of them out")
        if words and elastic != "live":
            self.fault("check", f"--elastic={elastic} does not resize the script while it runs: leave it out")
        return words

    def gres(self, gres: str) -> str:
        """What --gres asks for, and what --gpus-per-node adds to it."""
        gpus = self.text("gpus-per-node", "")
        if not gpus:
            return gres
        if not _GPUS.match(gpus):
            self.fault("gpus-per-node", f"{gpus[:40]!r} is not [TYPE:]COUNT of one type, as 4 or a100:4")
            return gres
        if any(part.split(":")[0].removeprefix("gres/") == "gpu" for part in gres.split(",")):
            self.fault("gpus-per-node", f"--gres={gres[:40]} names GPUs too: leave one of them out")
            return gres
        return ",".join(part for part in (gres, f"gpu:{gpus}") if part)

    def count(self, name: str) -> int | None:
        text = self.text(name, "")
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
            self.fault(name, f"{text[:40]!r} is not a whole number above 0")
            return None
        return int(text)

    def positive(self, name: str, default: float | None = None) -> float | None:
        text = self.text(name, "")
        if not text:
            return default
        value = _number(text)
        if value is None or not 0 < value < 1e18:
            self.fault(name, f"{text[:40]!r} is not a number above 0")
            return default
        return value

    def deadline(self) -> float | None:
        text = self.text("deadline", "")
        at = due_at(text, datetime.now(UTC).astimezone()) if text else None
        if text and at is None:
            self.fault(
                "deadline", f"{text[:40]!r} is neither YYYY-MM-DDTHH:MM[:SS] nor now+COUNT[minutes|hours|days]"
            )
        return at

    def after(self) -> tuple[str, ...]:
        """Dependencies one by one, as `afterok:3`."""
        found = []
        for part in filter(None, self.text("dependency", "").split(",")):
            kind, *jobs = part.split(":")
            if "?" in part or kind not in ("after", "afterany", "afterok", "afternotok") or not jobs:
                self.fault(
                    "dependency",
                    f"{part[:40]!r} is none of after, afterany, afterok, afternotok with numbers of malleable jobs, "
                    "as afterok:3:4 (all must be met)",
                )
                return ()
            for job in jobs:
                if not (job.isascii() and job.isdigit() and 0 < len(job) < 10 and int(job)):
                    self.fault("dependency", f"{job[:40]!r} is not the number of a malleable job")
                    return ()
                found.append(f"{kind}:{int(job)}")
        return tuple(found)

    def mail(self) -> tuple[tuple[str, ...], str]:
        """Events that the owner is mailed about, as `begin`, `end` and `fail`; and where, "" by default."""
        user = self.text("mail-user", "")
        if user and not _ADDRESS.match(user):
            self.fault("mail-user", f"{user[:80]!r} is neither a user nor one address such as ada@example.org")
        words = [word for word in self.text("mail-type", "").upper().split(",") if word]
        for word in words:
            if word not in ("NONE", "BEGIN", "END", "FAIL", "ALL"):
                self.fault(
                    "mail-type", f"{word[:40]!r} is none of BEGIN, END, FAIL, ALL, NONE: a malleable job has no more"
                )
                return (), ""
        kinds = ("begin", "end", "fail")
        if "NONE" in words:
            return (), user
        return kinds if "ALL" in words else tuple(kind for kind in kinds if kind.upper() in words), user

    def class_min(self, most: int) -> tuple[tuple[str, int], ...]:
        """Fewest nodes by a word of a class of nodes."""
        text = self.text("min-on", "")
        found: dict[str, int] = {}
        for part in text.split(",") if text else ():
            name, _, nodes = part.rpartition(":")
            if not re.fullmatch(r"[A-Za-z0-9_.+-]{1,64}", name) or not re.fullmatch(r"[1-9][0-9]{0,5}", nodes):
                self.fault("min-on", f"{part[:40]!r} is not CLASS:NODES, as k80:4")
                return ()
            if int(nodes) > most:
                self.fault("min-on", f"{part[:40]!r} is more than the {most} nodes of --nodes")
            found[name] = int(nodes)
        return tuple(sorted(found.items()))

    def curve(self) -> tuple[tuple[int, float], ...]:
        text = self.text("curve", "")
        points: dict[int, float] = {}
        for part in text.split(",") if text else ():
            nodes, _, rate = part.partition(":")
            value = _number(rate)
            if (
                not (nodes.isascii() and nodes.isdigit() and len(nodes) < 7 and int(nodes) > 0)
                or not value
                or value < 0
            ):
                self.fault("curve", f"{part[:40]!r} is not NODES:SAMPLES_PER_S, as 4:1500")
                return ()
            points[int(nodes)] = value
        return tuple(sorted(points.items()))


_UNITS = {"": 1, "second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}


def due_at(text: str, now: datetime) -> float | None:
    """A deadline as sbatch(1) writes it, in Unix seconds; None where it is none. Times are of `now`'s zone."""
    match = re.fullmatch(r"now\+(\d{1,9})([a-z]*)", text)
    if match:
        unit = _UNITS.get(match[2].removesuffix("s"))
        return None if unit is None else now.timestamp() + int(match[1]) * unit
    if not re.fullmatch(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?)?", text):
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=now.tzinfo).timestamp()
    except ValueError:
        return None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == value and abs(value) < float("inf") else None
