"""Options and script read into a `BatchRequest`, with every fault found. Standard library only."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from malletrain.slurm.submission import directives
from malletrain.slurm.submission.directives import BatchOptions, OptionText
from malletrain.slurm.submission.mtbatch_options import ALLOWED, Use
from malletrain.slurm.submission.sbatch import BatchRequest, InvalidBatch, default_tasks
from malletrain.wire.address import Address

_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?\Z")
#: A user's name or one address. It goes into the arguments of a site's program, and never begins with a dash.
_ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}(?:@[A-Za-z0-9][A-Za-z0-9.-]{0,252})?\Z")
#: As sbatch(1) has it; the names of MIG slices have dots, as `1g.10gb:7`.
_GPUS = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}:)?[1-9][0-9]{0,3}\Z")
_CLASS_MIN = re.compile(r"([A-Za-z0-9_.+-]{1,64}):([1-9][0-9]{0,5})\Z")
_PMI = re.compile(r"none\Z|pmi2\Z|pmix(?:_v[0-9]{1,2})?\Z")
_MAIL = ("begin", "end", "fail")
_UNITS = {"": 1, "second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}

_NO_ADDRESS = "neither a user nor one address such as ada@example.org"
_NO_TIME = "neither YYYY-MM-DDTHH:MM[:SS] nor now+COUNT[minutes|hours|days]"
_NO_PMI = "none of none, pmi2, pmix (srun --mpi=list names the site's)"

Read = TypeVar("Read")


def request(
    script: bytes, where: str, options: BatchOptions, arguments: Sequence[str], site: Address, cwd: str
) -> BatchRequest:
    """What the script (of name `where`), the environment and the command line ask for together. Raises `InvalidBatch`
    with every fault found.

    `options`: of the command line and the environment, before the script's own; `arguments`: what follows the
    script's name; `site`: whose partition, account and QOS count where the user says nothing; `cwd`: the caller's
    working directory, an absolute path.
    """
    shell, faults_of_head = directives.interpreter(script, where)
    whole = options.over(directives.from_script(script, where))
    reader = _Reader(whole.texts, [*faults_of_head, *whole.faults])
    least, most = reader.nodes()
    passed = {name: each.value for name, each in whole.texts.items() if ALLOWED[name].use is Use.FORWARD}
    chdir = passed.pop("chdir", cwd)
    if not chdir.startswith("/"):
        chdir = f"{cwd.rstrip('/')}/{chdir}"
    for word in (*arguments, chdir):
        if directives.has_control(word):
            reader.faults.append(f"command line: {word[:40]!r} holds a control character")
    for name, value in (("chdir", chdir), *((n, passed[n]) for n in ("output", "error") if n in passed)):
        if "\\" in value:
            reader.fault(name, f"Slurm takes a backslash in a path for an escape; rename {value[:60]!r}")
    mail, mail_user = reader.mail(), reader.value("mail-user", _matching(_ADDRESS), _NO_ADDRESS, "")
    result = BatchRequest(
        name=passed.pop("job-name", where.rpartition("/")[2]),
        min_nodes=least,
        max_nodes=most,
        partition=passed.pop("partition", site.partition),
        chdir=chdir,
        user_body=script,
        interpreter=shell,
        arguments=tuple(arguments),
        account=passed.pop("account", site.account),
        qos=passed.pop("qos", site.qos),
        gres=reader.gres(passed.pop("gres", "")),
        constraint=passed.pop("constraint", ""),
        passed=tuple(sorted(passed.items())),
        tasks=reader.count("tasks") or default_tasks(most),
        sizes=reader.value("sizes", _sizes, "not a list of node counts, as 1,2,4,8", ()),
        weight=reader.positive("weight") or 1.0,
        elastic=reader.one_of("elastic", "live", "live, restart, tasks"),
        curve=reader.value("curve", _curve, "not NODES:SAMPLES_PER_S, as 4:1500", ()),
        profile=reader.one_of("profile", "", "none, passive, active, downward, given"),
        total_samples=reader.positive("total-samples"),
        budget_node_hours=reader.positive("budget"),
        batch_min=reader.count("batch-min"),
        batch_max=reader.count("batch-max"),
        deadline=reader.value("deadline", _due, _NO_TIME, None),
        mpi=reader.value("mpi", _matching(_PMI), _NO_PMI, "none"),
        resume=reader.count("resume"),
        after=reader.after(),
        mail=mail,
        mail_user=mail_user if mail else "",
        class_min=reader.value("min-on", _class_min, "not CLASS:NODES, as k80:4", ()),
        python=reader.python(cwd),
        trusted="trust" in whole.texts,
        to_check=reader.value("check", _words, "no command: a quotation is not closed", ()),
    )
    for holds, name, what in _conflicts(result, whole.texts, site):
        if holds:
            reader.fault(name, what)
    if reader.faults:
        raise InvalidBatch(reader.faults)
    return result


def _conflicts(asked: BatchRequest, texts: Mapping[str, OptionText], site: Address) -> list[tuple[object, str, str]]:
    """What does not go together: whether it is so, the option at fault, and what to do."""
    least, most = asked.min_nodes, asked.max_nodes
    items, restart = asked.elastic == "tasks", asked.elastic == "restart"
    outside = [size for size in asked.sizes if not least <= size <= most]
    wide = [f"{name}:{nodes}" for name, nodes in asked.class_min if nodes > most]
    low, high = asked.batch_min, asked.batch_max
    leave = "leave one of them out"
    return [
        (asked.partition != site.partition and site.partition, "partition",
         f"pilots run in partition {site.partition} only"),
        (re.search(r"[\[*]", asked.constraint), "constraint", "each pilot finds its node alone: brackets and counts, "
         "which are of all nodes together, mean nothing to it; name one feature, or a choice for each node, as a|b"),
        (outside, "sizes", f"{', '.join(map(str, outside))} is outside --nodes={least}-{most}"),
        (low and high and low > high, "batch-min", f"{low} is above --batch-max={high}"),
        ((low is None) != (high is None), "batch-min",
         "give --batch-min and --batch-max together: the range that the training bears"),
        (restart and low, "batch-min",
         "a script that is restarted chooses its own batch: leave --batch-min and -max out"),
        (restart and asked.resume, "resume", "a script that is restarted loads its own checkpoint: leave it out"),
        (items and least > 1, "nodes", f"independent items need no {least} nodes at once: give 1-MAX"),
        *((items and name in texts, name, "a job of independent items trains nothing: leave it out")
          for name in ("batch-min", "batch-max", "resume")),
        *((items and name in texts, name,
           "independent items scale with the nodes, on any number of them: leave it out")
          for name in ("curve", "profile", "sizes")),
        (asked.to_check and asked.trusted, "check", f"--trust is for scripts that are not checked: {leave}"),
        (asked.to_check and asked.elastic != "live", "check",
         f"--elastic={asked.elastic} does not resize the script while it runs: leave it out"),
        (asked.profile == "given" and not asked.curve, "profile", "given and no --curve"),
        (asked.profile not in ("", "given") and asked.curve, "profile", f"{asked.profile} and --curve: {leave}"),
        (wide, "min-on", f"{', '.join(wide)} is more than the {most} nodes of --nodes"),
        (asked.deadline and not (asked.total_samples and asked.curve), "deadline",
         "needs to know the work and the speed: give --total-samples and --curve too"),
    ]  # fmt: skip


class _Reader:
    """Values out of options, faults into a list."""

    def __init__(self, texts: Mapping[str, OptionText], faults: list[str]) -> None:
        self.texts = texts
        self.faults = faults

    def fault(self, name: str, what: str) -> None:
        option = self.texts.get(name)
        self.faults.append(f"{option.where if option else 'command line'}: --{name}: {what}")

    def text(self, name: str) -> str:
        return self.texts[name].value if name in self.texts else ""

    def value(self, name: str, read: Callable[[str], Read | None], is_what: str, default: Read) -> Read:
        """What `read` makes of an option; where it makes nothing of it, the fault that it `is_what`."""
        text = self.text(name)
        found = read(text) if text else default
        if found is None and text:
            self.fault(name, f"{text[:40]!r} is {is_what}")
        return default if found is None else found

    def one_of(self, name: str, default: str, known: str) -> str:
        return self.value(name, lambda text: text if text in known.split(", ") else None, f"none of {known}", default)

    def count(self, name: str) -> int | None:
        return self.value(name, _count, "not a whole number above 0", None)

    def positive(self, name: str) -> float | None:
        return self.value(name, _positive, "not a number above 0", None)

    def nodes(self) -> tuple[int, int]:
        option = self.texts.get("nodes")
        if option is None:
            self.faults.append("no node range: add `#SBATCH --nodes=MIN-MAX` (as 1-8) to the script")
            return 1, 1
        match = _RANGE.match(option.value)
        if match is None:
            self.fault("nodes", f"{option.value[:40]!r} is not MIN-MAX, as 1-8")
            return 1, 1
        least, most = int(match[1]), int(match[2] or match[1])
        if match[2] is None:
            self.fault("nodes", f"{option.value} is one size; a malleable job needs a range, as 1-{max(2, most)}")
        elif least < 1:
            self.fault("nodes", "MIN must be at least 1 (with no node at all the job waits)")
        elif least > most:
            self.fault("nodes", f"MIN {least} is above MAX {most}")
        return max(1, least), max(1, most)

    def python(self, cwd: str) -> str:
        """The Python that pilots run; "": what is active. A folder of an environment stands for its Python."""
        text = self.text("python")
        path = Path(cwd) / text
        return str(path / "bin" / "python" if path.is_dir() else path) if text else ""

    def gres(self, gres: str) -> str:
        """What --gres asks for, and what --gpus-per-node adds to it."""
        gpus = self.value("gpus-per-node", _matching(_GPUS), "not [TYPE:]COUNT of one type, as 4 or a100:4", "")
        if gpus and any(part.split(":")[0].removeprefix("gres/") == "gpu" for part in gres.split(",")):
            self.fault("gpus-per-node", f"--gres={gres[:40]} names GPUs too: leave one of them out")
        return ",".join(part for part in (gres, gpus and f"gpu:{gpus}") if part)

    def after(self) -> tuple[str, ...]:
        """Dependencies one by one, as `afterok:3`."""
        found = []
        for part in filter(None, self.text("dependency").split(",")):
            kind, *jobs = part.split(":")
            if "?" in part or kind not in ("after", "afterany", "afterok", "afternotok") or not jobs:
                kinds = "after, afterany, afterok, afternotok with numbers of malleable jobs, as afterok:3:4"
                self.fault("dependency", f"{part[:40]!r} is none of {kinds} (all must be met)")
                return ()
            for job in jobs:
                if _count(job) is None:
                    self.fault("dependency", f"{job[:40]!r} is not the number of a malleable job")
                    return ()
                found.append(f"{kind}:{int(job)}")
        return tuple(found)

    def mail(self) -> tuple[str, ...]:
        """Events that the owner is mailed about."""
        words = [word for word in self.text("mail-type").lower().split(",") if word]
        if strange := [word for word in words if word not in ("none", "all", *_MAIL)]:
            what = f"{strange[0][:40].upper()!r} is none of BEGIN, END, FAIL, ALL, NONE: a malleable job has no more"
            self.fault("mail-type", what)
        if "none" in words or strange:
            return ()
        return tuple(kind for kind in _MAIL if kind in words or "all" in words)


def _matching(pattern: re.Pattern[str]) -> Callable[[str], str | None]:
    return lambda text: text if pattern.match(text) else None


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0 else None


def _positive(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < 1e18 else None


def _sizes(text: str) -> tuple[int, ...] | None:
    sizes = [_count(part) for part in text.split(",")]
    return tuple(sorted({size for size in sizes if size})) if all(sizes) else None


def _curve(text: str) -> tuple[tuple[int, float], ...] | None:
    points = {}
    for part in text.split(","):
        nodes, rate = _count(part.partition(":")[0]), _positive(part.partition(":")[2])
        if nodes is None or rate is None:
            return None
        points[nodes] = rate
    return tuple(sorted(points.items()))


def _class_min(text: str) -> tuple[tuple[str, int], ...] | None:
    """Fewest nodes by a word of a class of nodes."""
    found = [_CLASS_MIN.match(part) for part in text.split(",")]
    return tuple(sorted({each[1]: int(each[2]) for each in found if each}.items())) if all(found) else None


def _words(text: str) -> tuple[str, ...] | None:
    try:
        return tuple(shlex.split(text))
    except ValueError:
        return None


def _due(text: str) -> float | None:
    return due_at(text, datetime.now(UTC).astimezone())


def due_at(text: str, now: datetime) -> float | None:
    """A deadline as sbatch(1) writes it, in Unix seconds; None where it is none. Times are of `now`'s zone."""
    match = re.fullmatch(r"now\+(\d{1,9})([a-z]*)", text)
    if match is not None:
        unit = _UNITS.get(match[2].removesuffix("s"))
        return None if unit is None else now.timestamp() + int(match[1]) * unit
    if not re.fullmatch(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?)?", text):
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=now.tzinfo).timestamp()
    except ValueError:
        return None
