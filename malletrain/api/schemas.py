"""What people may send, with a bound on everything."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from malletrain.domain.job import Curve, DependencyKind, Elastic, MailType, MalleableJob, Profile

MAX_NODES = 100_000
MAX_NUMBER = 2**63 - 1  # what SQLite holds

Nodes = Annotated[int, Field(ge=1, le=MAX_NODES)]


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("only printable characters")
    return value


Label = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_printable)]
#: Names of Slurm: they end up in commands, so nothing that a shell, a list or an option parser would misread.
SlurmName = Annotated[str, Field(max_length=64, pattern=r"^([A-Za-z0-9][A-Za-z0-9_.@+-]*)?$")]


#: An absolute path with sbatch's patterns, such as %A.
FilePattern = Annotated[str, Field(max_length=4096, pattern=r"^/"), AfterValidator(_printable)]

#: A user's name or one address. It goes into the arguments of a site's program, and never begins with a dash.
MailAddress = Annotated[
    str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}(@[A-Za-z0-9][A-Za-z0-9.-]{0,252})?)?$")
]

#: Samples of a step, of all nodes together.
Batch = Annotated[int, Field(ge=1, le=2**31)]


class Body(BaseModel):
    """Unknown keys are refused; numbers are finite; texts are not numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class SessionBody(Body):
    """POST /v1/session."""

    credential: Annotated[str, Field(min_length=8, max_length=8192)]


class CheckBody(Body):
    """What `malletrain check` has found of a job's script before it is submitted."""

    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{16,64}$")]
    verdict: Literal["equal", "different", "undecided"]
    text: Annotated[str, Field(max_length=400), AfterValidator(_printable)] = ""


class JobBody(Body):
    """POST /v1/jobs."""

    name: Label
    min_nodes: Nodes
    max_nodes: Nodes
    sizes: Annotated[list[Nodes], Field(max_length=1024)] = []
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    elastic: Literal["live", "restart", "tasks"] = "live"
    account: SlurmName = ""
    partition: SlurmName = ""
    curve: Annotated[
        list[Annotated[list[Annotated[float, Field(gt=0, le=1e15)]], Field(min_length=2, max_length=2)]] | None,
        Field(max_length=1024),
    ] = None
    total_samples: Annotated[float, Field(gt=0, le=1e18)] | None = None
    profile: Literal["", "none", "passive", "active", "downward", "given"] = ""
    key: Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9._-]*$")] = ""
    batch_min: Batch | None = None
    batch_max: Batch | None = None
    deadline: Annotated[float, Field(ge=0, le=32_503_680_000)] | None = None
    budget_node_hours: Annotated[float, Field(gt=0, le=1e9)] | None = None
    after: Annotated[
        list[Annotated[str, Field(pattern=r"^after(any|ok|notok)?:[1-9][0-9]{0,17}$")]], Field(max_length=64)
    ] = []
    output: Annotated[list[FilePattern], Field(max_length=2)] = []
    mail: Annotated[list[Literal["begin", "end", "fail"]], Field(max_length=3)] = []
    mail_user: MailAddress = ""
    class_min: Annotated[
        list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]{1,64}:[1-9][0-9]{0,5}$")]], Field(max_length=32)
    ] = []

    trusted: bool = False
    check: CheckBody | None = None

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.min_nodes > self.max_nodes:
            raise ValueError(f"min_nodes {self.min_nodes} is above max_nodes {self.max_nodes}")
        outside = [n for n in self.sizes if not self.min_nodes <= n <= self.max_nodes]
        if outside:
            raise ValueError(f"sizes: {outside[0]} is not between min_nodes and max_nodes")
        nodes = [n for n, _ in self.curve or []]
        if any(n != int(n) or n > MAX_NODES for n in nodes) or nodes != sorted(set(nodes)):
            raise ValueError("curve: node counts must be whole and rise from point to point")
        if self.curve is not None and not nodes:
            raise ValueError("curve: at least one point, or null")
        if (self.profile == "given") != (self.curve is not None) and self.profile:
            raise ValueError(f"profile {self.profile}: a job with a curve is `given`, one without is not")
        if (self.batch_min is None) != (self.batch_max is None):
            raise ValueError("batch_min and batch_max: both, or neither")
        if self.batch_min is not None and self.batch_max is not None and self.batch_min > self.batch_max:
            raise ValueError(f"batch_min {self.batch_min} is above batch_max {self.batch_max}")
        if self.batch_min is not None and self.elastic != "live":
            raise ValueError("batch_min: only for live jobs; other scripts choose their own batch")
        return self

    def job(self, id: int, user: str, uid: int, submitted_at: float, account: str, mail_user: str) -> MalleableJob:
        """The job that is asked for, with what the daemon says of it."""
        as_sent = MalleableJob.__dataclass_fields__.keys() & type(self).model_fields.keys()
        made: dict[str, Any] = {
            "id": id,
            "user": user,
            "uid": uid,
            "submitted_at": submitted_at,
            "account": account,
            "mail_user": mail_user,
            "sizes": tuple(sorted(set(self.sizes))),
            "elastic": Elastic(self.elastic),
            "given_curve": self.curve and Curve(tuple((int(n), rate) for n, rate in self.curve)),
            "profile": Profile(self.profile) if self.profile else None,
            "budget_node_s": self.budget_node_hours and 3600.0 * self.budget_node_hours,
            "after": tuple(
                (DependencyKind(kind), int(job)) for kind, _, job in (a.partition(":") for a in self.after)
            ),
            "output": tuple(self.output),
            "mail": tuple(map(MailType, dict.fromkeys(self.mail))),
            "class_min": tuple((word, int(n)) for word, _, n in (each.rpartition(":") for each in self.class_min)),
        }
        return MalleableJob(**{name: getattr(self, name) for name in as_sent} | made)


class ArrayBody(Body):
    """POST /v1/jobs/{id}/arrays."""

    array_id: Annotated[int, Field(ge=1, le=2**32 - 1)]
    tasks: Annotated[int, Field(ge=1, le=10_000)]


class BanBody(Body):
    """POST /v1/bans."""

    user: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+$-]*$")]
    reason: Label


class DrainBody(Body):
    """POST /v1/drain. `nodes` as Slurm writes them, empty for all; `until` in Unix seconds."""

    nodes: Annotated[str, Field(max_length=65_536, pattern=r"^[A-Za-z0-9_.,\[\]-]*$")]
    until: Annotated[float, Field(ge=0, le=32_503_680_000)]
