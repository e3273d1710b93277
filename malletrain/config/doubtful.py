"""What is allowed, and hardly meant."""

from __future__ import annotations

from malletrain.config.sections import Config

#: Seconds from a node's release until its worker trains, as measured: Slurm's start, and Python's imports.
USUAL_START_S = 20.0


def doubts(config: Config) -> tuple[str, ...]:
    """What is allowed and hardly meant, and what is gone, one sentence each."""
    horizon = config.loop.horizon_s
    if horizon <= USUAL_START_S:
        return (
            *config.gone,
            f"loop.horizon_s = {horizon:g}: a job whose nodes take longer to train (usual: 5 to {USUAL_START_S:g} s) "
            "is never given any; take 120 to 600",
        )
    return config.gone
