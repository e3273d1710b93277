"""The command `malletraind`: says what to install where the daemon's packages are missing, as on the base wheel."""

import sys
from importlib import import_module
from typing import NoReturn

from malletrain import pip_install

OLDEST_PYTHON = (3, 11)


def main() -> NoReturn:
    """The entry point."""
    if sys.version_info < OLDEST_PYTHON:  # from a checkout, or installed with --ignore-requires-python
        wanted = ".".join(map(str, OLDEST_PYTHON))
        sys.exit(f"malletraind: needs Python {wanted} or newer, and this is {sys.version.split()[0]}")
    try:
        with import_module("malletrain.daemon.process.short_collections").no_collections():
            program = import_module("malletrain.daemon.main")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "malletrain":
            raise
        why = f"{error.name} is not installed here: the daemon needs more than the base package"
        print(f"malletraind: {why}: {pip_install('daemon')}", file=sys.stderr)
        sys.exit(2)
    program.main()
    sys.exit(0)
