"""Where torch.compile keeps what it has compiled. Standard library only."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.private_folder import PrivateFolder

#: Environment variable of torch (torch/_inductor/runtime/cache_dir_utils.py).
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"

#: Environment variable: the folder of compiled code whose content the job's pilots copy to each other; missing where
#: the user has chosen the folder, which may be on a shared file system already.
SHARED_VARIABLE = "MALLETRAIN_COMPILED"

#: The line of a batch script after which it is its author's (`slurm/submission/sbatch.py`).
SCRIPT_MARK = b"# The script as submitted:\n"


def compile_cache_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables with which compiled code is kept where this user alone can write.

    Torch's default is a folder in /tmp with a name that everybody can guess, and code in it is run: a user whose job
    was on the node before could have left some there. The folder here lasts like that one, so that the next pilot on
    the node finds what was compiled; if somebody has taken its name, this pilot gets another. Jobs of the same batch
    script have one folder, so that it holds what such a job needs (`compiled_code` copies it to other nodes).
    """
    if CACHE_VARIABLE in environ:
        return {}
    home = Path(tempfile.gettempdir()) / f"malletrain-compiled-{os.geteuid()}"
    path = home / code_key(environ)
    try:
        with PrivateFolder.at(home, create=True) as folder:
            folder.folder(path.name, create=True).close()
    except (ElasticError, OSError):
        return {CACHE_VARIABLE: tempfile.mkdtemp(prefix="malletrain-compiled-")}
    return {CACHE_VARIABLE: str(path), SHARED_VARIABLE: str(path)}


def code_key(environ: Mapping[str, str]) -> str:
    """Names the code of a job and the kind of its processor: a digest of the batch script as its author wrote it, and
    of the processor's features, since code for one may not run on another."""
    digest = hashlib.sha256()
    for path, begin, end in (
        (environ.get("MALLETRAIN_BATCH_SCRIPT", ""), SCRIPT_MARK, b""),
        ("/proc/cpuinfo", b"flags", b"\n"),
    ):
        try:
            text = Path(path).read_bytes() if path else b""
        except OSError:
            text = b""
        part = text.partition(begin)[2] or text
        digest.update(part.partition(end)[0] if end else part)
    return digest.hexdigest()[:16]
