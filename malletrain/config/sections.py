"""What may stand in the file: every section and key with its default, its bounds and a line about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
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
        extra="forbid",
        strict=True,
        frozen=True,
        str_strip_whitespace=True,
        allow_inf_nan=False,
    )


class SlurmSection(Section):
    """The harvest partition that pilots run in, and how Slurm is asked."""

    partition: NonEmptyWord = "harvest"
    """Partition of the pilots: low PriorityTier, preemptible."""
    account: Word = ""
    """Account that pilots are charged to; empty where the site keeps no accounts."""
    qos: Word = ""
    """QOS of the pilots, best one with UsageFactor=0; empty for the account's default."""
    preemptible_partitions: list[NonEmptyWord] = []
    """Main partitions whose jobs are meant to give way to other main jobs; `malletrain doctor` names all others."""
    conf: AbsolutePath = ""
    """Path of slurm.conf, handed on as SLURM_CONF; empty for Slurm's own search."""
    command_timeout_s: Annotated[float, Field(ge=1, le=120)] = 10.0
    """Seconds after which a Slurm command that has not answered is given up."""

    def environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """What Slurm's commands are run in: this process's `own`, pointed at the slurm.conf that is named."""
        return {**own, "SLURM_CONF": self.conf} if self.conf else dict(own)


class ChargingSection(Section):
    """Whose account a job's node-hours count for, in budgets, shares and reports."""

    account: Literal["default_account", "default_wckey", "pilots"] = "default_account"
    """`default_account` or `default_wckey`: the job's owner's in Slurm's accounting; `pilots`: slurm.account."""
    users: dict[Word, NonEmptyWord] = {}
    """Accounts by user, such as {ada = "physics"}, which come before that."""


class ActuatorSection(Section):
    """The process that steers Slurm, where that is to be another one than the one that listens on the network."""

    socket: AbsolutePath = ""
    """Its Unix socket, such as /run/malletrain/actuator.sock; empty: malletraind steers Slurm itself."""
    listener: NonEmptyWord = "malletrain"
    """The user that malletraind runs as: the actuator refuses requests of any other."""
    audit_log: AbsolutePath = "/var/log/malletrain/actuator.jsonl"
    """The actuator's own record of every act, a line of JSON each; appended to, mode 0600."""
    starts_per_minute: Annotated[int, Field(ge=1, le=5000)] = 300
    """Most tasks that the actuator starts in a minute, whatever it is ordered."""
    cancels_per_hour: Annotated[int, Field(ge=1, le=100_000)] = 2000
    """Most tasks that it cancels in an hour; the rest follow in the next one. Giving nodes back is not limited."""


#: Most pilots in stage `few`: enough for a job to grow and shrink, and no main job of any width meets more.
FEW_PILOTS = 4


class PoolSection(Section):
    """Which nodes may be harvested, and how many at most."""

    keep_idle: Annotated[int, Field(ge=0)] = 1
    """Idle nodes left alone, for `srun -I`, hetjobs, reservations, bursts; refilled when main jobs take them."""
    spare_hetjobs: bool = False
    """Keep fewer, and say so, where `keep_idle` holds a part of the last week's hetjobs alone; not with a promise."""
    keep_leaves: Annotated[int, Field(ge=0)] = 0
    """Whole leaf switches left idle, of those that no main job is on, for jobs that need a leaf to themselves."""
    stage: Literal["few", "whole"] = "whole"
    """How far the site has taken MalleTrain on: `few` allows four pilots only, until its criteria are met."""
    max_pilots: Annotated[int, Field(ge=1, le=5000)] = 100
    """Most pilots at a time: slurmctld tries each blocked main job against each of them in every cycle."""
    include: list[NodeList] = []
    """Only these nodes; empty: the harvest partition's, but for cloud nodes and those powered down when idle."""
    exclude: list[NodeList] = []
    """Never these nodes."""

    @property
    def pilots(self) -> int:
        """Most pilots at a time, by the stage."""
        return min(FEW_PILOTS, self.max_pilots) if self.stage == "few" else self.max_pilots


class PromiseSection(Section):
    """What the main queue is promised; the daemon keeps as few nodes idle, and as many pilots, as keep it."""

    main_delay_p95: Annotated[Seconds, Field(ge=0, le=3600)] | None = None
    """95 % of main jobs start at most so much later than without pilots: seconds, or "2s", "500ms"; unset: none."""
    controller_cycle: Literal["off", "auto"] | Annotated[float, Field(ge=1.05, le=100)] = "off"
    """slurmctld's main cycle takes at most so many times as long as without pilots; `auto`: 1.5 or harmless."""

    @property
    def cycle_ratio(self) -> float | None:
        """The longest main cycle, as a multiple of one without pilots; None: no such promise."""
        if isinstance(self.controller_cycle, int | float):
            return self.controller_cycle
        return 1.5 if self.controller_cycle == "auto" else None


class PilotSection(Section):
    """Times of one pilot."""

    max_minutes: Annotated[int, Field(ge=1, le=60)] = 60
    """Longest time limit of a pilot; 30 to 60 suits most sites."""
    max_nodes: Annotated[int, Field(ge=1, le=256)] = 256
    """Most nodes of one pilot. Each holds one while that many pilots may be, else as many as hold all."""
    margin_s: Literal["auto"] | Annotated[float, Field(ge=0, le=3600)] = "auto"
    """Seconds between a pilot's end and its hole's; `auto`: from Slurm's own configuration and measured exits."""
    leave_patience_s: Annotated[float, Field(ge=1, le=120)] = 10.0
    """Seconds that a worker has to leave; for the main queue it is then killed. Fewer if its hole closes sooner."""

    join_minutes: Annotated[float, Field(ge=0, le=1440)] = 15.0
    """Minutes after which a pilot on which no worker has joined gives its node back; 0: never."""
    idle_minutes: Annotated[float, Field(ge=0, le=1440)] = 30.0
    """Minutes without a committed step after which a live job gives its nodes back; 0: never."""
    sbatch: list[Literal["--exclusive", "--mem=0", "--time=1"]] = ["--exclusive", "--mem=0", "--time=1"]
    """What pilots are submitted with; leave out what a submit filter of the site refuses."""


class LoopSection(Section):
    """How often the daemon looks, and how far ahead."""

    tick_s: Annotated[float, Field(ge=1, le=300)] = 10.0
    """Seconds between two full looks at the cluster."""
    watch_interval_s: Annotated[float, Field(ge=0.5, le=60)] = 2.0
    """Seconds between two light looks at the main queue, for yielding in time; at most tick_s."""
    horizon_s: Annotated[float, Field(ge=10, le=86400)] = 300.0
    """Seconds within which a change of size must pay; 120 to 600 are alike on measured logs, other values worse."""

    @field_validator("watch_interval_s")
    @classmethod
    def _quicker_than_ticks(cls, value: float, info: ValidationInfo) -> float:
        if value > info.data.get("tick_s", value):
            raise ValueError("is longer than tick_s: make it shorter, a fifth of tick_s is usual")
        return value


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
    by_user: dict[Word, Annotated[float, Field(ge=0)]] = {}
    """What it draws in jobs of these users, where that differs."""
    by_account: dict[Word, Annotated[float, Field(ge=0)]] = {}
    """The same by account; a user's goes before."""


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
    """Sizing policy by name: auto, exact, milp, lp, equal, or one that a plug-in brings."""
    objective: Literal["throughput", "jct", "srpt", "fair"] = "throughput"
    """What sizes are best for: training in all, short completion times (jct: by rest, srpt: by rank), fair shares."""
    alpha: Annotated[float, Field(ge=0, le=100)] = 0.0
    """Fairness: 0 for most throughput, 1 for proportional fairness, more for nearer to equal."""
    profile: Literal["auto", "none", "passive", "active", "downward"] = "auto"
    """How scalability is learnt: none, passive, active (sizes are tried), downward (large to small), auto."""
    classes: Literal["mix", "one", "off"] = "mix"
    """Where nodes differ: jobs are sized by class of nodes and may mix them, take one at a time, or go by count."""
    class_features: list[NonEmptyWord] = []
    """Features of nodes that make a class of their own, beside GRES and processors; `memory`: so does memory."""
    max_wait_minutes: Annotated[float, Field(ge=0)] = 30.0
    """A job without nodes for so long gets its fewest for ten minutes, before others gain; 0: no such promise."""
    user_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Most of the nodes that one user's jobs hold while others want them, as a part of all; 1: any number."""
    max_resizes: Annotated[int, Field(ge=0)] = 0
    """Most jobs that change their size at one tick; 0: any number."""
    max_weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Most `--weight` that users may give a job of theirs; operators may give up to 1000."""
    user_weights: dict[Word, Annotated[float, Field(gt=0, le=1000)]] = {}
    """Weight of the jobs of each user named, such as {alice = 2.0}; 1 for the others."""
    account_weights: dict[Word, Annotated[float, Field(gt=0, le=1000)]] = {}
    """The same by account."""
    account_shares: dict[Word, Annotated[float, Field(gt=0)]] = {}
    """For objective fair: parts of the node time that accounts should have; 1 for those that are not named."""
    limits: list[LimitSection] = []
    """Caps, guaranteed shares, power and licences, each a [[sizing.limits]] with keys of its own."""
    budgets: list[BudgetSection] = []
    """Node-hours of accounts for each day, week or month, each a [[sizing.budgets]] with keys of its own."""

    @field_validator("budgets")
    @classmethod
    def _told_apart(cls, value: list[BudgetSection]) -> list[BudgetSection]:
        names = [each.name for each in value]
        if len(set(names)) < len(names):
            raise ValueError("two budgets have the same name")
        return value


class ApiSection(Section):
    """Where workers and people reach the daemon."""

    host: Annotated[str, Field(min_length=1)] = "0.0.0.0"  # noqa: S104  (workers on every compute node call it)
    """Address to listen on; compute and login nodes must reach it."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8470
    """Port to listen on; 0 for a free one (the default of --user)."""
    url: str = ""
    """URL that workers and people use; empty: http:// with this machine's full name and the port."""

    certificate: AbsolutePath = ""
    """Certificate (PEM) of an https `url`, for which the daemon vouches by MUNGE; empty: authorities do."""

    @field_validator("url")
    @classmethod
    def _http(cls, value: str) -> str:
        if value and not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", value):
            raise ValueError("give a URL such as http://head.example.org:8470")
        return value.rstrip("/")


class WebSection(Section):
    """The web page that the daemon serves below /web/, for people's browsers; it only shows."""

    serve: bool = True
    """Whether there is one."""
    proxy_header: Annotated[str, Field(pattern=r"^([A-Za-z][A-Za-z0-9-]*)?$")] = ""
    """Header in which the site's proxy names the user whom it has signed in, such as X-Remote-User; empty: none."""
    proxy_address: str = ""
    """IP address of that proxy, as the daemon sees it; the header of any other address counts for nothing."""
    proxy_secret_file: AbsolutePath = ""
    """File with the secret that the proxy sends in X-MalleTrain-Proxy-Secret; mode 0400, the daemon's."""

    @field_validator("proxy_address")
    @classmethod
    def _an_address(cls, value: str) -> str:
        return str(ip_address(value)) if value else ""

    @model_validator(mode="after")
    def _all_or_none(self) -> Self:
        given = {"proxy_header": self.proxy_header, "proxy_address": self.proxy_address}
        given["proxy_secret_file"] = self.proxy_secret_file
        missing = [name for name, value in given.items() if not value]
        if missing and len(missing) < len(given):
            raise ValueError(f"a proxy needs {' and '.join(missing)}, too: anybody could write its header")
        return self


class NotifySection(Section):
    """How owners hear of their jobs' begin and end (`mtbatch --mail-type`)."""

    hook: list[str] = []
    """Program and arguments; each message is its input, as JSON; such as ["/usr/local/bin/malletrain-mail"]."""

    @field_validator("hook")
    @classmethod
    def _a_program(cls, value: list[str]) -> list[str]:
        if value and not value[0].startswith("/"):
            raise ValueError(f"begin with the absolute path of a program, not {value[0][:60]!r}: no shell is used")
        return value


class StoreSection(Section):
    """The journal."""

    path: Annotated[AbsolutePath, Field(min_length=1)] = "/var/lib/malletrain/malletrain.db"
    """SQLite file, on a local disk: SQLite's locks do not hold on NFS."""
    min_free_mb: Annotated[int, Field(ge=0)] = 64
    """MB (10^6 bytes) that must be free on its file system, else nothing new is started."""


class LogSection(Section):
    """The daemon's log, on stderr: readable text on a terminal, JSON otherwise; journald takes it from there."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is logged."""


class BreakerSection(Section):
    """When the daemon steps back by itself."""

    preemptions_per_hour: Annotated[int, Field(ge=1)] = 20
    """Preemptions in an hour above which no new pilot starts; pilots preempted within a minute count once."""
    slow_exits_per_hour: Annotated[int, Field(ge=0)] = 10
    """The same for pilots that were still there a minute after they should have left."""
    ailing_nodes_per_hour: Annotated[int, Field(ge=0)] = 2
    """The same for nodes that Slurm itself drained or set down within 15 minutes after a pilot."""
    faults_of_job: Annotated[int, Field(ge=1, le=1000)] = 3
    """Faults in an hour above which a job alone gets no nodes; twice as many of a user; of ailing nodes a third."""
    pause_minutes: Annotated[float, Field(ge=1, le=1440)] = 30.0
    """Minutes that it then stands back."""


#: Pins are 10 to 40 ms of slurmctld each (docs/adr/0005-batched-deeds.md): so many are two seconds at most.
MAX_STARTS = 50


class Config(Section):
    """The whole file. Every value has a default: a small site names its partition and account."""

    operators: list[Word] = []
    """Users who may drain nodes and steer everybody's malleable jobs; root always may."""
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
