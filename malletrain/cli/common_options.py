"""Options that several commands have."""

from pathlib import Path

import click

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
SCRIPT = click.Path(path_type=Path, dir_okay=False, exists=True)

as_json = click.option("--json", "as_json", is_flag=True, help="JSON, for programs.")
config_file = click.option("--config", "config_file", metavar="FILE", type=FILE, help="The daemon's configuration.")
