"""What a job has trained, and the laws of that."""

from __future__ import annotations

from dataclasses import dataclass, field

from malletrain.wire.messages import Plan


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
