"""The environment that Slurm's commands are run in."""

from __future__ import annotations

import os
from collections.abc import Mapping

from malletrain.config import Config


def slurm_environment(config: Config) -> Mapping[str, str]:
    """The daemon's own, pointed at the slurm.conf that the configuration names."""
    environment = dict(os.environ)
    if config.slurm.conf:
        environment["SLURM_CONF"] = config.slurm.conf
    return environment
