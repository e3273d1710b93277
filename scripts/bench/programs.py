"""What one bench uses of another: a program without an ending cannot be imported by its name."""

from __future__ import annotations

from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType


@cache
def program(name: str) -> ModuleType:
    """The program of this folder, loaded once and not run.

    Raises:
        FileNotFoundError: there is none of this name.
    """
    loader = SourceFileLoader(f"bench_{name}", str(Path(__file__).with_name(name)))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None  # a loader of source files always makes one
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module
