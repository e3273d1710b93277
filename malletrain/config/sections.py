"""What may stand in the file: every section and key with its default, its bounds and a line about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, field_validator

#: What a site's submit filter may ask of each pilot (slurm/submission/sbatch.py, SITE_OPTIONS).
PILOT_OPTION = (
    r"^--(exclusive|mem=\w+|time=1|(cpus-per-task|hint|mail-user|mcs-label|ntasks-per-node|wckey)=[\w@.:+-]+)$"
)


def _word(value: str) -> str:
    """A name that goes into Slurm commands: nothing that a shell, a list or an option parser would misread."""
    if value and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.@+-]*", value):
        raise ValueError("use letters, digits and _ . - + @ only, starting with a letter or digit")
    return value


#: The shape alone; who opens the list says what else is wrong with it.
_NODE_LIST = re.compile(r"(?:[\w.\-, ]|\[[\d\-,]+\])+", re.ASCII)


def _node_list(value: str) -> str:
    if not _NODE_LIST.fullmatch(value):
        raise ValueError("not a list of nodes as Slurm writes it, such as n[001-128]")
    return value


def _absolute(value: str) -> str:
    if value and not Path(value).is_absolute():
        raise ValueError("give an absolute path")
    return value


def _seconds(value: object) -> object:
    """A duration with its unit, "2s", "500ms", "1min", or a number of seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(ms|s|min)", value.strip()) if isinstance(value, str) else None
    if match is not None:
        return float(match[1]) * {"ms": 0.001, "s": 1.0, "min": 60.0}[match[2]]
    if isinstance(value, str):
        raise ValueError('give seconds as a number, or a duration such as "2s", "500ms" or "1min"')  # noqa: TRY004 - pydantic's word
    return value


Seconds = Annotated[float, BeforeValidator(_seconds)]
Word = Annotated[str, AfterValidator(_word)]
NonEmptyWord = Annotated[Word, Field(min_length=1)]
NodeList = Annotated[str, AfterValidator(_node_list)]
AbsolutePath = Annotated[str, AfterValidator(_absolute)]


class Section(BaseModel):
    """Unknown keys are refused; values are not converted from another type; nothing can be changed later."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, str_strip_whitespace=True, allow_inf_nan=False
    )


class SlurmSection(Section):
    """The harvest partition that pilots run in."""

    partition: NonEmptyWord = "harvest"
    """Partition that pilots run in: low PriorityTier, preemptible."""
    account: Word = ""
    """Account that pilots are charged to."""
    qos: Word = ""
    """QOS of pilots, best with UsageFactor=0; empty: the account's default."""
    preemptible_partitions: list[NonEmptyWord] = []
    """Main partitions whose jobs other main jobs may preempt."""
    conf: AbsolutePath = ""
    """Path of slurm.conf; empty: Slurm's own default."""

    def environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """What Slurm's commands are run in: this process's `own`, pointed at the slurm.conf that is named."""
        return {**own, "SLURM_CONF": self.conf} if self.conf else dict(own)


class ChargingSection(Section):
    """Whose account a job's node-hours count for, in budgets, shares and reports."""

    account: Literal["default_account", "default_wckey", "pilots"] = "default_account"
    """Whom to charge: the owner's account or wckey in Slurm; `pilots`: slurm.account."""
    users: dict[Word, NonEmptyWord] = {}
    """Exceptions by user: {ada = "physics"}."""


class ActuatorSection(Section):
    """The process that steers Slurm, where that is to be another one than the one that listens on the network."""

    socket: AbsolutePath = ""
    """The actuator's Unix socket; empty: no separate actuator."""
    listener: NonEmptyWord = "malletrain"
    """User of malletraind; all others are refused."""


class PoolSection(Section):
    """Which nodes may be harvested, and how many at most."""

    keep_idle: Annotated[int, Field(ge=0)] = 1
    """Idle nodes left for `srun -I`, whole hetjobs, bursts."""
    keep_leaves: Annotated[int, Field(ge=0)] = 0
    """Whole leaf switches left idle, for jobs that need one."""
    max_pilots: Annotated[int, Field(ge=1, le=5000)] = 100
    """Most pilots; each lengthens slurmctld's cycles."""
    include: list[NodeList] = []
    """Nodes to harvest; empty: the partition's, except cloud and powered-down ones."""
    exclude: list[NodeList] = []
    """Nodes never to harvest."""


class PromiseSection(Section):
    """What the main queue is promised; the daemon keeps as few nodes idle, and as many pilots, as keep it."""

    main_delay_p95: Annotated[Seconds, Field(ge=0, le=3600)] | None = None
    """Longest delay of 95 % of main jobs: seconds, or "500ms"."""
    controller_cycle: Literal["off", "auto"] | Annotated[float, Field(ge=1.05, le=100)] = "off"
    """Longest main cycle, as a multiple of one without pilots; `auto`: 1.5, or harmless."""

    @property
    def cycle_ratio(self) -> float | None:
        """The longest main cycle, as a multiple of one without pilots; None: no such promise."""
        if isinstance(self.controller_cycle, int | float):
            return self.controller_cycle
        return 1.5 if self.controller_cycle == "auto" else None


class PilotSection(Section):
    """Times of one pilot."""

    max_minutes: Annotated[int, Field(ge=1, le=60)] = 60
    """Longest time limit of a pilot; at least 30 suits most sites."""
    max_nodes: Annotated[int, Field(ge=1, le=256)] = 256
    """Most nodes of a pilot; several only if `max_pilots` binds."""
    margin_s: Literal["auto"] | Annotated[float, Field(ge=0, le=3600)] = "auto"
    """Seconds from a pilot's end to the next planned job; `auto`: by Slurm's settings, and measured."""
    leave_patience_s: Annotated[float, Field(ge=1, le=120)] = 10.0
    """Seconds that a worker has to save and leave before it is killed."""
    sbatch: list[Annotated[str, Field(pattern=PILOT_OPTION)]] = ["--exclusive", "--mem=0", "--time=1"]
    """Remove what your submit filter rejects; add what it asks for, as `--wckey=harvest`."""


class LoopSection(Section):
    """How often the daemon looks."""

    tick_s: Annotated[float, Field(ge=1, le=300)] = 10.0
    """Seconds between full polls; the queue is polled five times as often."""

    @property
    def watch_interval_s(self) -> float:
        """Seconds between two light looks at the main queue, for yielding in time: a fifth of a tick, since a
        backfill cycle that comes first preempts (2 s of 10: docs/explanation/promise.md has what that costs)."""
        return max(0.5, self.tick_s / 5)  # each is one squeue


class LimitSection(Section):
    """A limit on the malleable jobs of some users and accounts together; on all of them where none is named."""

    name: Annotated[str, Field(min_length=1, max_length=80)]
    """What `malletrain explain` calls it."""
    users: list[Word] = []
    """Jobs of these users count."""
    accounts: list[Word] = []
    """Jobs of these accounts count too."""
    most_nodes: Annotated[int, Field(ge=0)] | None = None
    """They hold at most so many nodes."""
    least_nodes: Annotated[int, Field(ge=1)] | None = None
    """They are given at least so many, as far as they want them and the nodes are there."""
    available: Annotated[float, Field(ge=0)] | None = None
    """Of something that each node draws (watts, licences), so much is there."""
    per_node: Annotated[float, Field(gt=0)] = 1.0
    """What a node of a job draws of it."""


class BudgetSection(Section):
    """Node-hours for the malleable jobs of some accounts together, anew in each period."""

    name: Annotated[str, Field(min_length=1, max_length=80)]
    """What `malletrain explain` calls it."""
    accounts: Annotated[list[Word], Field(min_length=1)]
    """The accounts that spend it."""
    node_hours: Annotated[float, Field(ge=0)]
    """So many hours of one node are there in a period."""
    period: Literal["day", "week", "month"] = "month"
    """Calendar period, in UTC; weeks begin on Monday."""


class SizingSection(Section):
    """How nodes are shared out between malleable jobs."""

    policy: NonEmptyWord = "auto"
    """auto, exact, milp, lp, equal, goodput, or a plug-in's."""
    objective: Literal["throughput", "jct", "srpt", "fair"] = "throughput"
    """Most training, short completion (jct: by remaining work, srpt: by rank), or fair shares."""
    alpha: Annotated[float, Field(ge=0, le=100)] = 0.0
    """Fairness between jobs: 0 none, 1 proportional, above: more equal."""
    class_features: list[NonEmptyWord] = []
    """Features that distinguish classes of nodes, besides GRES and processors; or `memory`."""
    user_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Most of the nodes for one user while others wait."""
    account_weights: dict[Word, Annotated[float, Field(gt=0, le=1000)]] = {}
    """Weights of accounts' jobs; with objective `fair`, their shares."""
    limits: list[LimitSection] = []
    """Caps, guaranteed shares, power, licences: see below."""
    budgets: list[BudgetSection] = []
    """Node-hours of accounts by day, week or month: see below."""

    @field_validator("budgets")
    @classmethod
    def _names_differ(cls, value: list[BudgetSection]) -> list[BudgetSection]:
        names = [each.name for each in value]
        if len(set(names)) < len(names):
            raise ValueError("two budgets have the same name")
        return value


class ApiSection(Section):
    """Where workers and people reach the daemon."""

    host: Annotated[str, Field(min_length=1)] = "0.0.0.0"  # noqa: S104  (workers on every compute node call it)
    """Address to listen on, for compute and login nodes."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8470
    """Port; 0: a free one (as with --user)."""
    url: str = ""
    """URL that workers and users call; empty: http://, this host, the port."""

    @field_validator("url")
    @classmethod
    def _http(cls, value: str) -> str:
        if value and not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", value):
            raise ValueError("give a URL such as http://head.example.org:8470")
        return value.rstrip("/")


class WebSection(Section):
    """The web page that the daemon serves below /web/, for people's browsers; it only shows."""

    serve: bool = True
    """Whether to serve the web page."""


class NotifySection(Section):
    """How owners hear of their jobs' begin and end (`mtbatch --mail-type`)."""

    hook: list[str] = []
    """Program and arguments; reads each message as JSON."""

    @field_validator("hook")
    @classmethod
    def _a_program(cls, value: list[str]) -> list[str]:
        if value and not value[0].startswith("/"):
            raise ValueError(f"begin with the absolute path of a program, not {value[0][:60]!r}: no shell is used")
        return value


class StoreSection(Section):
    """The journal."""

    path: Annotated[AbsolutePath, Field(min_length=1)] = "/var/lib/malletrain/malletrain.db"
    """SQLite file, on a local disk: its locks fail on NFS."""
    min_free_mb: Annotated[int, Field(ge=0)] = 64
    """MB that must be free there; with less, nothing new starts."""


class LogSection(Section):
    """The daemon's log, on stderr: readable text on a terminal, JSON otherwise; journald takes it from there."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""


class BreakerSection(Section):
    """When the daemon steps back by itself."""

    preemptions_per_hour: Annotated[int, Field(ge=1)] = 20
    """Above this no pilot starts; also above half as many late exits, a tenth as many failing nodes."""

    @property
    def faults_of_job(self) -> int:
        """Faults in an hour above which a job alone gets no nodes: a sixth, so that jobs that do harm stand back
        before the whole site does."""
        return max(1, self.preemptions_per_hour // 6)


#: Pins are 10 to 40 ms of slurmctld each (docs/adr/0005-batched-deeds.md): so many are two seconds at most.
MAX_STARTS = 50


class Config(Section):
    """The whole file. Every value has a default: a small site names its partition and account."""

    operators: list[Word] = []
    """Users, besides root, who may drain nodes and control everybody's malleable jobs."""
    slurm: SlurmSection = SlurmSection()
    charging: ChargingSection = ChargingSection()
    actuator: ActuatorSection = ActuatorSection()
    pool: PoolSection = PoolSection()
    promise: PromiseSection = PromiseSection()
    pilot: PilotSection = PilotSection()
    loop: LoopSection = LoopSection()
    sizing: SizingSection = SizingSection()
    api: ApiSection = ApiSection()
    web: WebSection = WebSection()
    notify: NotifySection = NotifySection()
    store: StoreSection = StoreSection()
    log: LogSection = LogSection()
    breaker: BreakerSection = BreakerSection()

    _gone: tuple[str, ...] = PrivateAttr(())

    @property
    def starts_at_a_look(self) -> int:
        """Most pilots that start at one look: one a second, since the last, while `controller_cycle` is promised."""
        return MAX_STARTS if self.promise.cycle_ratio is None else min(MAX_STARTS, max(1, int(self.loop.tick_s)))

    @property
    def gone(self) -> tuple[str, ...]:
        """Keys of the file that an earlier release had, each with the reason why it is gone."""
        return self._gone

    def with_gone(self, gone: Iterable[str]) -> Self:
        """This configuration, read from a file that holds such keys."""
        self._gone = tuple(gone)
        return self


#: Sections by their name in the file.
SECTIONS: Mapping[str, type[Section]] = {
    name: field.annotation
    for name, field in Config.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}

#: Tables of which there may be any number, by where they stand in the file.
TABLES: Mapping[tuple[str, ...], type[Section]] = {
    ("sizing", "limits"): LimitSection,
    ("sizing", "budgets"): BudgetSection,
}
