"""One worker's process, as the simulation has it; what its job has trained, and the laws of that."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from malletrain.domain.job import Elastic
from malletrain.wire.messages import Directive, Message, Plan, Standing


@dataclass(eq=False)
class Process:
    """One worker's process. Times are those of `SimulatedClock.elapsed`."""

    job: int
    uid: int
    pilot: str
    restart: int
    node: str
    hello_at: float
    warm_at: float
    alive: bool = True
    frozen_until: float = 0.0
    cut_until: float = 0.0
    daemon: int = 0  #: the number of the daemon that it has said hello to
    has_greeted: bool = False
    warm: bool = False
    told: Directive | None = None
    coming: tuple[float, Directive] | None = None  #: the answer to its poll, and when it arrives
    at: Plan | None = None
    entering: Plan | None = None
    tried: int = 0
    ready: Plan | None = None  #: of the next world, whose group is made beside training
    failed: int = 0  #: the generation whose group it could not make beside training
    waits_s: float = 0.0
    away_s: float = 0.0  #: for how long its world is broken and the daemon not heard
    seen: int = 0
    step: int = 0
    holds_state: bool = False
    left_at: float | None = None
    finished_in: Plan | None = None  #: the world in which training ended
    ends: bool = False  #: it ends once its reports are delivered
    asked_for: int = 0
    outbox: deque[Message] = field(default_factory=deque)
    elastic: Elastic = Elastic.LIVE
    terminated: bool = False  #: its launcher has had SIGTERM
    term_at: float | None = None  #: when its node is taken: SIGTERM, and SIGKILL at `kill_at`
    kill_at: float | None = None
    ending_at: float | None = None  #: since when it knows of that
    broken_at: float | None = None  #: since when its world is broken
    script_at: float | None = None  #: when its script has started; None while none runs
    stopping_until: float | None = None  #: its script has been asked to end, and will have by then
    next_plan: Plan | None = None  #: what it starts it for then; None: it leaves
    leaving_by: int = 0  #: the generation by which it leaves
    must_start: bool = False  #: its script, once the daemon holds it no more
    failed_at: float | None = None  #: when its script failed last
    failures: int = 0
    losses: int = 0
    reported_at: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.pilot}.{self.restart}"

    @property
    def address(self) -> str:
        return f"{self.node}:{1 + self.restart}"

    @property
    def has_script(self) -> bool:
        """Of a job that is relaunched: its script runs, or is about to be started."""
        return self.script_at is not None or self.must_start

    def standing(self) -> Standing | None:
        """The world that it trains in, for its hello."""
        world = self.at or self.finished_in
        if world is None:
            return None
        if self.elastic is Elastic.RESTART and not self.has_script:
            return None
        if self.elastic is not Elastic.LIVE:
            return Standing(world.generation, world.members, 0, "", world.generation)
        return Standing(world.generation, world.members, self.step, self.address, max(self.seen, world.generation))


@dataclass(eq=False)
class JobProgress:
    """What one job has trained, and the laws of it.

    Attributes:
        committed: steps whose result is in the training state; goes back when all who held it are gone.
        saved: steps in the last checkpoint.
        trains_in: the generation that committed last; `ended`: those that trained before it and must not again.
    """

    total: int
    committed: int = 0
    saved: int = 0
    trains_in: int = 0
    ended: set[int] = field(default_factory=set)
    secrets: dict[int, str] = field(default_factory=dict)  #: of the daemons' plans, by number
    violations: list[str] = field(default_factory=list)

    def save(self, plan: Plan, step: int) -> None:
        """The world of `plan` writes the checkpoint of a job that is relaunched for each world."""
        if plan.generation in self.ended:
            self.violations.append(f"generation {plan.generation} saves step {step} beside {self.trains_in}")
        self.saved = step

    def keep(self, step: int) -> None:
        """A worker that is asked to end writes a checkpoint of what it holds, beside those that are there."""
        self.saved = max(self.saved, step)

    def goes(self, name: str, step: int, others: int) -> None:
        """One that holds `step` steps is gone, or leaves; the others hold `others` at most."""
        if step > max(self.saved, others):
            self.violations.append(f"{name} is gone with step {step}: {self.saved} are saved, {others} are held")

    def publish(self, plan: Plan) -> None:
        """A daemon shows a plan; each one that it makes has a secret of its own."""
        if plan.secret and self.secrets.setdefault(plan.generation, plan.secret) != plan.secret:
            self.violations.append(f"two plans are numbered {plan.generation}")

    def commit(self, plan: Plan, step: int) -> None:
        """One step is committed by the world of `plan`, whose members have done `step` before it."""
        if plan.generation in self.ended:
            self.violations.append(f"two worlds train: {plan.generation} beside {self.trains_in}")
        if plan.generation != self.trains_in:
            self.ended.add(self.trains_in)
            self.trains_in = plan.generation
        if step != self.committed:
            self.violations.append(
                f"generation {plan.generation} does step {step + 1}, committed are {self.committed}"
            )
        self.committed = step + 1
