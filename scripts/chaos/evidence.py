"""What a broken law is looked into with: the journal, and what the daemons and the jobs wrote."""

from __future__ import annotations

import shutil
from pathlib import Path

from malletrain.store.database import copy
from scripts.chaos.scene import Scene


def keep(scene: Scene, folder: Path) -> None:
    """Copy it to `folder`, which is made, and may have what was kept before.

    There are then `malletrain.db`, the daemon's log, Slurm's logs in `slurm/`, and in `work/` the job scripts and
    what their tasks printed. The daemon may run meanwhile.

    Raises:
        OSError, StoreError: something cannot be read or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    copy(scene.database, folder / scene.database.name)
    if scene.site.log.exists():
        shutil.copy(scene.site.log, folder)
    shutil.copytree(scene.lab.log, folder / "slurm", dirs_exist_ok=True)
    work = folder / "work"
    work.mkdir(exist_ok=True)
    for pattern in ("*.out", "*.sh"):
        for path in scene.work_folder.glob(pattern):
            shutil.copy(path, work)
