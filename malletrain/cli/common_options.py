"""What several commands have: options, and the error of those that failed."""

from pathlib import Path

import click

from malletrain.domain.errors import MalletrainError

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
SCRIPT = click.Path(path_type=Path, dir_okay=False, exists=True)

as_json = click.option("--json", "as_json", is_flag=True, help="JSON, for programs.")
config_file = click.option("--config", "config_file", metavar="FILE", type=FILE, help="The daemon's configuration.")


class CommandFailed(MalletrainError):
    """What was asked for was not done, or not in time."""

    exit_status = 1
