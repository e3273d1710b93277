"""Where torch.compile keeps what it has compiled. Standard library only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.private_folder import PrivateFolder

#: Environment variable of torch (torch/_inductor/runtime/cache_dir_utils.py).
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def compile_cache_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables with which compiled code is kept where this user alone can write.

    Torch's default is a folder in /tmp with a name that everybody can guess, and code in it is run: a user whose job
    was on the node before could have left some there. The folder here lasts like that one, so that the next pilot on
    the node finds what was compiled; if somebody has taken its name, this pilot gets another.
    """
    if CACHE_VARIABLE in environ:
        return {}
    path = Path(tempfile.gettempdir()) / f"malletrain-compiled-{os.geteuid()}"
    try:
        PrivateFolder.at(path, create=True).close()
    except (ElasticError, OSError):
        path = Path(tempfile.mkdtemp(prefix="malletrain-compiled-"))
    return {CACHE_VARIABLE: str(path)}
