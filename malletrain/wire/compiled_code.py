"""Environment variables that say where torch.compile keeps its code. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping

#: Of torch (torch/_inductor/runtime/cache_dir_utils.py).
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"

#: The same folder, where a launcher has chosen it for its own job.
COMPILED_VARIABLE = "MALLETRAIN_COMPILED"


def is_chosen(environ: Mapping[str, str]) -> bool:
    """Whether the user has chosen the folder of compiled code. What a launcher has chosen is for its job alone."""
    return environ.get(CACHE_VARIABLE, "") not in ("", environ.get(COMPILED_VARIABLE))
