"""The lab fixtures, for the tests of the lab itself."""

from tests.slurm_fixtures import lab, lab_directory, lab_factory

__all__ = ["lab", "lab_directory", "lab_factory"]
