"""What harvesting would have done to the main queue, as modelled: a replay moves no main job, so it cannot see it.

A main job whose nodes hold pilots waits until the daemon has seen it (`look_s`), the workers have left (`exit_s`) and
the epilog has run (`epilog_s`). Slurm's quick scheduler starts it then. Its backfill scheduler starts it in the next
cycle; a cycle that comes before the nodes are free finds them taken, and then the job waits for the one after it.
With submissions at random phases of a cycle of C seconds that happens to the share  min(1, react / C)  of them, and
costs them C: the mean delay is react either way, the worst is react + C. Measured beside a real Slurm: every job
whose cycle came within the reaction paid a cycle, none whose cycle came later (docs/figures.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from malletrain.domain.errors import InvalidInput
from malletrain.slurm.formats import scalars, sdiag, text

#: bf_interval where SchedulerParameters does not say (slurm.conf(5)).
DEFAULT_CYCLE_S = 30.0


@dataclass(frozen=True, slots=True)
class Reaction:
    """Seconds: half the daemon's look at the queue (every 2 s), a worker's leaving, the site's epilog, and between
    two starts of backfill cycles. `source` says where the figures come from."""

    look_s: float = 1.0
    exit_s: float = 1.0
    epilog_s: float = 0.0
    cycle_s: float = DEFAULT_CYCLE_S
    source: str = "stated defaults"


@dataclass(frozen=True, slots=True)
class MainDelay:
    """`starts`: moments at which the log's jobs took idle nodes; `starts_on_pilots`: those at which a pilot held one
    of them. Of these `cycle_share` pay a backfill cycle more. `mean_s` is over all starts."""

    starts: int
    starts_on_pilots: int
    cycle_share: float
    mean_s: float
    mean_on_pilots_s: float
    worst_s: float
    assumed: Reaction


def modelled(starts: int, starts_on_pilots: int, reaction: Reaction) -> MainDelay:
    """The delay that such a reaction adds to starts that meet pilots."""
    react, cycle = reaction.look_s + reaction.exit_s + reaction.epilog_s, reaction.cycle_s
    paying = min(1.0, react / cycle) if cycle > 0 and starts_on_pilots else 0.0
    mean = react if starts_on_pilots else 0.0
    return MainDelay(
        starts,
        starts_on_pilots,
        paying,
        mean * starts_on_pilots / starts if starts else 0.0,
        mean,
        (react + cycle) if starts_on_pilots else 0.0,
        reaction,
    )


def parse_reaction(words: str, where: str) -> Reaction:
    """The reaction that a site's own words give: the output of `scontrol show config`, of `sdiag`, or both in a row.

    bf_interval and the length of the last backfill cycle make the cycle; whether there is an epilog is said, how long
    it takes is not: then a line `epilog_s=10` of one's own says it.
    Raises InvalidInput: neither command's output."""
    config = text.config(words)
    parameters = dict(part.partition("=")[::2] for part in config.get("SchedulerParameters", "").split(",") if part)
    interval = scalars.number(parameters.get("bf_interval", ""), int(DEFAULT_CYCLE_S))
    diagnosis = sdiag.parse(words, float(interval))
    if "SLURM_VERSION" not in config and diagnosis.at is None:
        raise InvalidInput(where, "is neither the output of `scontrol show config` nor of `sdiag`")
    said = ["scontrol show config"] * ("SLURM_VERSION" in config) + ["sdiag"] * (diagnosis.at is not None)
    epilog = next((line.partition("=")[2] for line in words.splitlines() if line.startswith("epilog_s=")), "")
    has_epilog = config.get("Epilog", "(null)") not in ("(null)", "")
    if has_epilog and not epilog:
        said.append("an epilog of unknown length, taken as 0 s; add a line epilog_s=SECONDS")
    try:
        epilog_s = float(epilog or 0.0)
    except ValueError:
        raise InvalidInput(where, f"epilog_s={epilog!r} is not a number of seconds") from None
    return Reaction(
        epilog_s=epilog_s, cycle_s=interval + (diagnosis.plan.backfill_cycle_s or 0.0), source=", ".join(said)
    )
