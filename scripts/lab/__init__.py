"""A private, real Slurm cluster on one machine, for tests, demo and benches. See docs/contributing.md."""

from scripts.lab.api import Lab
from scripts.lab.conf import Change, LabConfig
from scripts.lab.errors import DeadlineError, LabError, UsageError

__all__ = ["Change", "DeadlineError", "Lab", "LabConfig", "LabError", "UsageError"]
